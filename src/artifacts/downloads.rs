//! The objects of an image with addresses at which a client reads them itself. It reads S3 and writes nothing.

use std::time::Duration;

use kiln_records::Link;
use sha2::{Digest, Sha256};

use super::{ArtifactStore, Listed, Unusable};

/// How long an address is valid: a client may have many large objects to read, one after the other.
const URL_VALID: Duration = Duration::from_hours(6);

/// An image as it can be read.
#[derive(Debug)]
pub struct Downloads {
    /// The SHA-256 of its manifest, lower-case hexadecimal. It stands for all of its content.
    pub manifest_sha256: String,
    /// Its objects, in the order of the manifest.
    pub objects: Vec<Download>,
}

/// An object that can be read.
#[derive(Debug)]
pub struct Download {
    /// Its entry in the manifest.
    pub listed: Listed,
    /// Its size in bytes.
    pub size: u64,
    /// Its address, which lets anyone read it for six hours.
    pub url: String,
}

impl ArtifactStore {
    /// The objects of the image with this manifest.
    ///
    /// # Errors
    ///
    /// When the manifest is not valid, when an object does not exist, or when S3 gives no answer.
    pub async fn downloads(&self, link: &Link) -> Result<Downloads, Unusable> {
        let (listed, manifest) = self.read_whole_manifest(link).await?;
        let mut objects = Vec::with_capacity(listed.len());
        for listed in listed {
            let (bucket, key) = self.place(&listed.path)?;
            let size = self.size(bucket, key).await?;
            let size = size.ok_or_else(|| Unusable::Missing(listed.path.clone()))?;
            let url = self.presign_get(bucket, key, URL_VALID).await?;
            objects.push(Download { listed, size, url });
        }
        Ok(Downloads {
            manifest_sha256: hex::encode(Sha256::digest(&manifest)),
            objects,
        })
    }
}
