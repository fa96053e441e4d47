//! Decides which objects records may name, and which of them are the records' own. Pure: no I/O.

use kiln_records::link::{RECIPES, bucket_and_key, is_laid_out_below};
use uuid::Uuid;

use super::ArtifactStore;
use crate::config::ForeignBuckets;

/// Why a link may not be.
#[derive(Debug, thiserror::Error)]
pub enum Misplaced {
    /// Its path does not name an object in S3.
    #[error("{0} is not of the form s3://bucket/key.")]
    NotAPath(String),
    /// It is in a bucket that is not Kiln's.
    #[error(
        "{0} is in a bucket that is not this server's, and it reads no others (`foreign_buckets = \"read\"` in [s3] \
         allows it)."
    )]
    Foreign(String),
}

impl ArtifactStore {
    /// The bucket and key of an object that a link may name.
    pub(super) fn place<'p>(&self, path: &'p str) -> Result<(&'p str, &'p str), Misplaced> {
        let (bucket, key) = bucket_and_key(path).ok_or_else(|| Misplaced::NotAPath(path.to_owned()))?;
        match self.foreign_buckets {
            ForeignBuckets::Refuse if !self.is_own(bucket) => Err(Misplaced::Foreign(path.to_owned())),
            _ => Ok((bucket, key)),
        }
    }

    /// The bucket and key of an object, if it lies where Kiln and IMS lay the objects of recipes and images. No other
    /// object is ever deleted because of a record.
    pub fn own_place<'p>(&self, path: &'p str) -> Option<(&'p str, &'p str)> {
        let (bucket, key) = bucket_and_key(path)?;
        let is_laid_out = (bucket == self.images_bucket() && is_of_a_record("", key))
            || (bucket == self.recipes_bucket() && is_of_a_record(RECIPES, key));
        is_laid_out.then_some((bucket, key))
    }
}

/// Whether a key is `<beginning><id of a record>/…`.
fn is_of_a_record(beginning: &str, key: &str) -> bool {
    let bare = key.strip_prefix("deleted/").unwrap_or(key).strip_prefix(beginning);
    let id = bare.and_then(|bare| bare.split_once('/')).map(|(id, _)| id);
    id.is_some_and(|id| id.parse::<Uuid>().is_ok() && is_laid_out_below(&format!("{beginning}{id}/"), key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_below_an_id_are_those_of_records() {
        let id = Uuid::nil();
        for key in [format!("{id}/rootfs"), format!("deleted/{id}/deleted_manifest.json")] {
            assert!(is_of_a_record("", &key), "{key}");
            assert!(!is_of_a_record(RECIPES, &key), "{key}");
        }
        for key in [
            format!("recipes/{id}/recipe.tar.gz"),
            format!("deleted/recipes/{id}/r.tgz"),
        ] {
            assert!(is_of_a_record(RECIPES, &key), "{key}");
            assert!(!is_of_a_record("", &key), "{key}");
        }
        for key in [
            format!("logs/{id}/build.log.zst"),
            format!("changes/{id}/0"),
            format!("{id}"),
            format!("{id}/../x/y"),
            "golden/rootfs".to_owned(),
            "packages/0123".to_owned(),
        ] {
            assert!(!is_of_a_record("", &key) && !is_of_a_record(RECIPES, &key), "{key}");
        }
    }
}
