//! Lists the objects that an image's manifest names. Reads S3 only.

use kiln_records::{Failure, Image, link::bucket_and_key};

use crate::artifacts::ArtifactStore;

/// The S3 paths in an image's manifest, also if IMS has deleted the image. Nothing else in the manifest is checked: a
/// record is not left out because Kiln would have rejected its manifest.
///
/// # Errors
///
/// `manifest_invalid` when the manifest cannot be parsed, and the errors of S3.
pub async fn objects_of(artifacts: &ArtifactStore, image: &Image) -> Result<Vec<String>, Failure> {
    let Some(link) = &image.link else {
        return Ok(Vec::new());
    };
    let entries = artifacts.manifest_entries(link).await?;
    let paths = entries.into_iter().map(|(path, _)| path);
    Ok(paths.filter(|path| bucket_and_key(path).is_some()).collect())
}
