//! Reads which packages an image has, by its own SPDX document. It reads S3 and writes nothing.

use kiln_records::{
    ArtifactKind, Failure, Link,
    sbom::{self, Listed},
};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::{ArtifactStore, ReadError, Unusable};

/// The largest document that is read, in bytes. An image of 3000 packages has one of some 3 MB.
const LARGEST: usize = 32 << 20;

/// The documents that are read at the same time, for all callers.
static READING: Semaphore = Semaphore::const_new(4);

/// Why the packages of an image cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum Unlisted {
    /// Its manifest cannot be read.
    #[error(transparent)]
    Manifest(#[from] Unusable),
    /// Its document is missing, too large, or not the one that the manifest names.
    #[error("{0}")]
    Document(String),
    /// S3 gives no answer.
    #[error(transparent)]
    S3(#[from] Failure),
    /// This process is about to end.
    #[error("the document is not read: {0}")]
    Ending(String),
}

impl ArtifactStore {
    /// The packages in an image's document, whose digest is that in the manifest; `None` if it has no document.
    ///
    /// # Errors
    ///
    /// When the manifest or the document cannot be read.
    pub async fn packages_of(&self, link: &Link) -> Result<Option<Listed>, Unlisted> {
        let ending = |error: &dyn std::fmt::Display| Unlisted::Ending(error.to_string());
        let _permit = READING.acquire().await.map_err(|error| ending(&error))?;
        let objects = self.read_manifest(link).await?;
        let document = objects
            .into_iter()
            .find(|object| object.media_type == ArtifactKind::Spdx.media_type());
        let Some(document) = document else { return Ok(None) };
        let path = &document.path;
        let text = self.read_linked(path, LARGEST).await.map_err(|error| match error {
            ReadError::TooLarge(size) => Unlisted::Document(format!("{path} has {size} bytes; {LARGEST} can be read.")),
            ReadError::S3(failure) => failure.into(),
        })?;
        let text = text.ok_or_else(|| Unlisted::Document(format!("{path} cannot be found in S3.")))?;
        if document
            .sha256
            .is_some_and(|sha256| sha256 != hex::encode(Sha256::digest(&text)))
        {
            let detail = format!("{path} has another digest than the manifest says.");
            return Err(Unlisted::Document(detail));
        }
        let read = tokio::task::spawn_blocking(move || sbom::read(&text)).await;
        let read = read.map_err(|error| ending(&error))?;
        let read = read.map_err(|error| Unlisted::Document(format!("{path} cannot be read: {error}.")))?;
        Ok(Some(read))
    }
}
