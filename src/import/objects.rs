//! Which objects an image's manifest names.

use serde_json::Value;

use crate::{
    artifacts::{ArtifactStore, ReadError, manifest},
    records::{Failure, Image, link::bucket_and_key},
};

/// The S3 paths that an image's manifest names; so does the manifest of an image that IMS deleted. What else the
/// manifest says is not looked at: a record is not left out because Kiln would not have taken its manifest.
///
/// # Errors
///
/// `manifest_invalid` when the manifest cannot be read, and those of S3.
pub async fn objects_of(artifacts: &ArtifactStore, image: &Image) -> Result<Vec<String>, Failure> {
    let Some(link) = &image.link else {
        return Ok(Vec::new());
    };
    let invalid = |cause: &str| Failure::new("manifest_invalid", format_args!("{} {cause}", link.path));
    let (bucket, key) = link.bucket_and_key().ok_or_else(|| invalid("is no path in S3"))?;
    let text = artifacts
        .read_small(bucket, key, manifest::MAX_SIZE)
        .await
        .map_err(|error| match error {
            ReadError::TooLarge(_) => invalid("is too large"),
            ReadError::S3(failure) => failure,
        })?;
    let text = text.ok_or_else(|| invalid("is not in S3"))?;
    let manifest: Value = serde_json::from_slice(&text).map_err(|_| invalid("is not JSON"))?;
    let entries = manifest
        .get("artifacts")
        .and_then(Value::as_array)
        .ok_or_else(|| invalid("has no `artifacts`"))?;
    let paths = entries.iter().filter_map(|entry| entry.pointer("/link/path")?.as_str());
    Ok(paths
        .filter(|path| bucket_and_key(path).is_some())
        .map(str::to_owned)
        .collect())
}
