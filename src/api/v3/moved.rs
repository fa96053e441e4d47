//! Restoring what an IMS deleted before its records were imported.
//!
//! IMS moves the objects of a deleted record to keys that begin with `deleted/`, and lists an image's in
//! `deleted_manifest.json`. Here they are copied back; the record gets its old link; the copies under `deleted/` go when
//! the record is back. Every step may be repeated.

use serde_json::Value;

use crate::{
    api::{
        Api,
        objects::must_exist,
        problem::{Problem, Result},
    },
    artifacts::{Copied, ReadError, manifest},
    records::{Link, link::bucket_and_key},
};

const PREFIX: &str = "deleted/";

/// IMS's media type of the manifest inside `deleted_manifest.json`.
const MANIFEST_TYPE: &str = "application/vnd.cray.image.manifest";

/// Objects that are back where they were.
pub(super) struct Moved {
    /// The record's link.
    pub(super) link: Link,
    /// What the record refers to.
    pub(super) objects: Vec<String>,
    /// What is not needed any more when the record is back.
    pub(super) superfluous: Vec<String>,
}

/// Brings back a recipe's archive; none when IMS did not move it.
pub(super) async fn recipe(api: &Api, link: &Link) -> Result<Option<Moved>> {
    if !was_moved(link) {
        return Ok(None);
    }
    let back = copy_back(api, &link.path).await?;
    Ok(Some(Moved {
        objects: vec![back.path.clone()],
        superfluous: vec![link.path.clone()],
        link: back,
    }))
}

/// Brings back an image's objects; none when IMS did not move them.
pub(super) async fn image(api: &Api, link: &Link) -> Result<Option<Moved>> {
    if !was_moved(link) || !link.path.ends_with("/deleted_manifest.json") {
        return Ok(None);
    }
    let unusable = |cause: &str| Problem::unprocessable(format_args!("{} {cause}.", link.path));
    let (bucket, key) = bucket_and_key(&link.path).ok_or_else(|| unusable("is no path in S3"))?;
    let text = match api.artifacts.read_small(bucket, key, manifest::MAX_SIZE).await {
        Ok(text) => text.ok_or_else(|| unusable("cannot be found in S3"))?,
        Err(ReadError::TooLarge(_)) => return Err(unusable("is too large")),
        Err(ReadError::S3(failure)) => return Err(failure.into()),
    };
    let deleted: Value = serde_json::from_slice(&text).map_err(|_| unusable("is not JSON"))?;
    let entries = deleted
        .get("artifacts")
        .and_then(Value::as_array)
        .ok_or_else(|| unusable("has no `artifacts`"))?;
    let named = entries
        .iter()
        .filter_map(|entry| Some((entry, entry.pointer("/link/path")?.as_str()?)));
    // All of them, before any is copied: a copy that nobody comes to use would stay for ever.
    for (_, path) in named.clone() {
        must_exist(api, path).await?;
    }
    let (mut own, mut objects, mut superfluous) = (None, Vec::new(), vec![link.path.clone()]);
    for (entry, path) in named {
        let back = copy_back(api, path).await?;
        objects.push(back.path.clone());
        superfluous.push(path.to_owned());
        if entry.get("type").is_some_and(|media_type| media_type == MANIFEST_TYPE) {
            own = Some(back);
        }
    }
    Ok(Some(Moved {
        link: own.ok_or_else(|| unusable("does not name the image's manifest"))?,
        objects,
        superfluous,
    }))
}

fn was_moved(link: &Link) -> bool {
    bucket_and_key(&link.path).is_some_and(|(_, key)| key.starts_with(PREFIX))
}

async fn copy_back(api: &Api, path: &str) -> Result<Link> {
    let gone = || Problem::unprocessable(format_args!("{path} cannot be found in S3."));
    let (bucket, key) = bucket_and_key(path).ok_or_else(gone)?;
    let to = key.strip_prefix(PREFIX).ok_or_else(gone)?;
    match api.artifacts.copy(bucket, key, to).await? {
        Copied::As(etag) => Ok(Link::s3(bucket, to, &etag)),
        Copied::Missing => Err(gone()),
        Copied::Occupied => Err(Problem::unprocessable(format_args!(
            "{path} cannot be restored: s3://{bucket}/{to} is there already, and something else."
        ))),
    }
}
