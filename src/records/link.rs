//! Links: the locations of objects, as records and manifests hold them. Pure: no I/O.

use serde::{Deserialize, Serialize};

/// The location of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Link {
    /// The object: `s3://bucket/key`.
    pub path: String,
    /// Entity tag without quotes; informative.
    #[serde(default)]
    pub etag: String,
    /// The kind of store.
    #[serde(rename = "type")]
    pub store: StoreType,
}

/// Kinds of stores a [`Link`] can point into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoreType {
    /// S3.
    S3,
}

impl StoreType {
    /// Every kind.
    pub const ALL: [Self; 1] = [Self::S3];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::S3 => "s3",
        }
    }
}

impl Link {
    /// A link into S3.
    pub fn s3(bucket: &str, key: &str, etag: &str) -> Self {
        Self {
            path: format!("s3://{bucket}/{key}"),
            etag: etag.to_owned(),
            store: StoreType::S3,
        }
    }

    /// Bucket and key, or none when the path has another form.
    pub fn bucket_and_key(&self) -> Option<(&str, &str)> {
        bucket_and_key(&self.path)
    }
}

/// The beginning of the keys of recipes, in their bucket. Images have no such beginning in theirs.
pub const RECIPES: &str = "recipes/";

/// Bucket and key of `s3://bucket/key`, or none when the path has another form or contains something that S3 does not
/// accept. A `?` is part of the key.
pub fn bucket_and_key(path: &str) -> Option<(&str, &str)> {
    let (bucket, key) = path.strip_prefix("s3://")?.split_once('/')?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_bucket = (3..=255).contains(&bucket.len()) && bucket.bytes().all(plain);
    let is_key = (1..=1024).contains(&key.len()) && !key.chars().any(char::is_control);
    (is_bucket && is_key).then_some((bucket, key))
}

/// Whether a key is laid out as one of the objects below `prefix`, or as one of them after IMS has deleted its record,
/// which puts `deleted/` before the key.
pub fn is_laid_out_below(prefix: &str, key: &str) -> bool {
    let key = key.strip_prefix("deleted/").unwrap_or(key);
    let below = key.strip_prefix(prefix);
    // A service between here and S3 might take such parts for steps in a path.
    below.is_some_and(|below| below.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_below_a_prefix_is_laid_out_so() {
        for key in ["id/rootfs", "id/logs/1", "deleted/id/rootfs"] {
            assert!(is_laid_out_below("id/", key), "{key}");
        }
        for key in [
            "id",
            "id/",
            "id2/rootfs",
            "x/id/rootfs",
            "deleted/deleted/id/r",
            "id/../x/r",
            "id//r",
            "id/./r",
        ] {
            assert!(!is_laid_out_below("id/", key), "{key}");
        }
    }

    #[test]
    fn only_paths_of_s3_have_a_bucket_and_a_key() {
        assert_eq!(
            bucket_and_key("s3://ims/recipes/a b?x=1"),
            Some(("ims", "recipes/a b?x=1"))
        );
        for path in [
            "ims/k",
            "s3://ims",
            "s3://ims/",
            "s3:///k",
            "s3://a b/k",
            "s3://ims/a\nb",
            "http://ims/k",
            "s3://ab/k",
        ] {
            assert_eq!(bucket_and_key(path), None, "{path}");
        }
    }
}
