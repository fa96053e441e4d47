//! Layers: the roots of recipes as they were after their packages, kept between jobs. A layer is an object named by its
//! SHA-256; a small object beside it, named by the key of everything the layer depends on, leads to it. Talks to S3 only.
//!
//! A reader checks the digest. What is missing, damaged or of another size is no layer, and is made anew.

use std::time::Duration;

use jiff::Timestamp;
use kiln_records::{
    Code, Failure,
    protocol::{FoundLayer, ObjectSource, PackageFile, PackageUrl},
};
use serde::{Deserialize, Serialize};

use super::{
    ArtifactStore,
    packages::oldest,
    store::{ObjectInfo, ReadError},
};

/// The key prefix of all that belongs to layers, in the bucket for recipes.
const PREFIX: &str = "layers/";

/// The largest layer, in bytes: that of one PUT in S3.
pub const LARGEST: u64 = 5 << 30;

/// The most bytes of an entry, which has a few hundred.
const LARGEST_ENTRY: usize = 64 << 10;

/// What leads from a key to its layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerEntry {
    /// The layer's SHA-256, hexadecimal.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
    /// Files that each root must have of its own, and that are not in the layer.
    pub anew: Vec<String>,
}

fn entry_of(key: &str) -> String {
    format!("{PREFIX}keys/{key}.json")
}

fn data_of(sha256: &str) -> String {
    format!("{PREFIX}data/{sha256}")
}

impl ArtifactStore {
    /// The layer of a key, if it is all there.
    ///
    /// # Errors
    ///
    /// S3 does not answer.
    pub async fn find_layer(&self, key: &str, valid: Duration) -> Result<Option<FoundLayer>, Failure> {
        let bucket = self.recipes_bucket();
        let text = match self.read_small(bucket, &entry_of(key), LARGEST_ENTRY).await {
            Ok(text) => text,
            Err(ReadError::TooLarge(_)) => None,
            Err(ReadError::S3(failure)) => return Err(failure),
        };
        // An entry that is not one leads nowhere.
        let Some(entry) = text.and_then(|text| serde_json::from_slice::<LayerEntry>(&text).ok()) else {
            return Ok(None);
        };
        let data = data_of(&entry.sha256);
        if self.size(bucket, &data).await? != Some(entry.size) {
            return Ok(None);
        }
        Ok(Some(FoundLayer {
            layer: Some(ObjectSource {
                url: self.presign_get(bucket, &data, valid).await?,
                size: entry.size,
                md5: None,
                sha256: Some(entry.sha256),
            }),
            anew: entry.anew,
            never: None,
        }))
    }

    /// Leads a key to a layer, which may not be there yet. Returns where to put it.
    ///
    /// # Errors
    ///
    /// `upload_invalid` for one that is too large or has no SHA-256; S3 does not answer.
    pub async fn keep_layer(&self, key: &str, entry: &LayerEntry, valid: Duration) -> Result<PackageUrl, Failure> {
        let file = PackageFile {
            sha256: entry.sha256.clone(),
            size: entry.size,
        };
        let url = self.shared_url(&data_of(""), LARGEST, file, valid).await?;
        let text = serde_json::to_vec(entry).map_err(|error| Failure::new(Code::Protocol, error))?;
        let bucket = self.recipes_bucket();
        self.put_bytes(bucket, &entry_of(key), "application/json", text).await?;
        Ok(url)
    }

    /// What belongs to layers that were stored before a moment, and the oldest beyond a number of bytes in all.
    ///
    /// # Errors
    ///
    /// S3 fails.
    pub async fn old_layers(&self, before: Timestamp, bytes: u64) -> Result<Vec<ObjectInfo>, Failure> {
        Ok(oldest(self.list(self.recipes_bucket(), PREFIX).await?, before, bytes))
    }
}
