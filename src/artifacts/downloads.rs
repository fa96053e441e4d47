//! The objects of an image with addresses at which a client reads them itself. It reads S3 and writes nothing.

use kiln_records::{ImageId, Link};
use sha2::{Digest, Sha256};

use super::{ArtifactStore, LONG_URL_VALID, Unusable};

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
    /// Its media type.
    pub media_type: String,
    /// Its place: `s3://bucket/key`.
    pub path: String,
    /// Its SHA-256, lower-case hexadecimal, if the manifest has it.
    pub sha256: Option<String>,
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
            let url = self.presign_get(bucket, key, LONG_URL_VALID).await?;
            objects.push(Download {
                media_type: listed.media_type,
                path: listed.path,
                sha256: listed.sha256,
                size,
                url,
            });
        }
        Ok(Downloads {
            manifest_sha256: hex::encode(Sha256::digest(&manifest)),
            objects,
        })
    }

    /// Those of these objects beside an image's manifest that are there, given their names and media types.
    ///
    /// # Errors
    ///
    /// When S3 gives no answer.
    pub async fn downloads_beside(&self, image: ImageId, objects: &[(&str, &str)]) -> Result<Vec<Download>, Unusable> {
        let bucket = self.images_bucket();
        let mut found = Vec::new();
        for (name, media_type) in objects {
            let key = format!("{image}/{name}");
            let Some(size) = self.size(bucket, &key).await? else {
                continue;
            };
            found.push(Download {
                media_type: (*media_type).to_owned(),
                path: format!("s3://{bucket}/{key}"),
                sha256: None,
                size,
                url: self.presign_get(bucket, &key, LONG_URL_VALID).await?,
            });
        }
        Ok(found)
    }
}
