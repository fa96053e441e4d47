//! Which objects an image's manifest names.

use crate::{
    artifacts::ArtifactStore,
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
    let entries = artifacts.manifest_entries(link).await?;
    let paths = entries.into_iter().map(|(path, _)| path);
    Ok(paths.filter(|path| bucket_and_key(path).is_some()).collect())
}
