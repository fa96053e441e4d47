//! Restores records that an IMS deleted before they were imported. Copies objects in S3.
//!
//! IMS moves the objects of a deleted record to keys that begin with `deleted/`, and lists an image's objects in
//! `deleted_manifest.json`. This module copies them back, and the record gets its old link. The copies under `deleted/`
//! are removed once the record is restored. Every step can be repeated.

use std::fmt::Display;

use kiln_records::{Code, Failure, Link, link::bucket_and_key};

use crate::{
    api::{
        Api,
        problem::{Problem, Result},
    },
    artifacts::Copied,
};

const PREFIX: &str = "deleted/";

/// IMS's media type of the manifest inside `deleted_manifest.json`.
const MANIFEST_TYPE: &str = "application/vnd.cray.image.manifest";

/// Objects that were copied back.
pub(super) struct Moved {
    /// The record's link.
    pub(super) link: Link,
    /// The objects that the record refers to.
    pub(super) objects: Vec<String>,
    /// The objects that are superfluous once the record is restored.
    pub(super) superfluous: Vec<String>,
}

/// Copies back a recipe's archive; none when IMS did not move it.
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

/// Copies back an image's objects; none when IMS did not move them.
pub(super) async fn image(api: &Api, link: &Link) -> Result<Option<Moved>> {
    if !was_moved(link) || !link.path.ends_with("/deleted_manifest.json") {
        return Ok(None);
    }
    let unusable = |cause: &dyn Display| Problem::unprocessable(format_args!("{cause}."));
    let named = api.artifacts.manifest_entries(link).await;
    let named = named.map_err(|failure| match failure.code {
        Code::ManifestInvalid => Problem::from(Failure {
            detail: format!("{failure}."),
            ..failure
        }),
        _ => failure.into(),
    })?;
    // All of them are checked before any is copied: an unused copy would stay for ever.
    for (path, _) in &named {
        api.artifacts.must_exist(path).await?;
    }
    let (mut own, mut objects, mut superfluous) = (None, Vec::new(), vec![link.path.clone()]);
    for (path, entry) in named {
        let back = copy_back(api, &path).await?;
        objects.push(back.path.clone());
        superfluous.push(path);
        if entry.get("type").is_some_and(|media_type| media_type == MANIFEST_TYPE) {
            own = Some(back);
        }
    }
    Ok(Some(Moved {
        link: own.ok_or_else(|| unusable(&format_args!("{} does not name the image's manifest", link.path)))?,
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
    if !api.artifacts.is_own(bucket) {
        return Err(Problem::unprocessable(format_args!(
            "{path} cannot be restored: only objects in this server's own buckets are moved."
        )));
    }
    match api.artifacts.copy(bucket, key, to).await? {
        Copied::As(etag) => Ok(Link::s3(bucket, to, &etag)),
        Copied::Missing => Err(gone()),
        Copied::Occupied => Err(Problem::unprocessable(format_args!(
            "{path} cannot be restored: s3://{bucket}/{to} is there already, and something else."
        ))),
    }
}
