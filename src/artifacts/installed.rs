//! Records of the packages of roots, as objects: that of a job beside its log, that of a layer beside the layer. Talks to S3
//! only.

use kiln_records::{Code, Failure, Installed, JobId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{ArtifactStore, job_objects::installed_key, store::ReadError};

/// More than any record has, packed or not, in bytes.
const LARGEST: usize = 32 << 20;

/// The packages that an attempt found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptInstalled {
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The packages.
    pub installed: Installed,
}

impl ArtifactStore {
    /// Stores the packages of a job's root, in place of those of an earlier attempt.
    ///
    /// # Errors
    ///
    /// S3 does not answer.
    pub async fn put_installed(&self, job: JobId, kept: &KeptInstalled) -> Result<(), Failure> {
        self.put_packed(&installed_key(job), kept).await
    }

    /// The packages that an attempt of a job found, if it told them.
    ///
    /// # Errors
    ///
    /// S3 does not answer, or the object is damaged.
    pub async fn installed(&self, job: JobId, attempt: u32) -> Result<Option<Installed>, Failure> {
        let kept: Option<KeptInstalled> = self.read_packed(&installed_key(job)).await?;
        Ok(kept.filter(|kept| kept.attempt == attempt).map(|kept| kept.installed))
    }

    /// Stores a record, packed.
    pub(super) async fn put_packed(&self, key: &str, record: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_vec(record).map_err(|error| Failure::new(Code::Io, error))?;
        let packed = zstd::bulk::compress(&text, 0).map_err(|error| Failure::io("cannot pack a record", &error))?;
        let bucket = self.recipes_bucket();
        self.put_bytes(bucket, key, "application/zstd", packed).await.map(drop)
    }

    /// A packed record, if it is there.
    pub(super) async fn read_packed<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Failure> {
        let broken = |error: &dyn std::fmt::Display| Failure::new(Code::S3Error, format!("{key}: {error}"));
        let read = self.read_small(self.recipes_bucket(), key, LARGEST).await;
        let packed = read.map_err(|error| match error {
            ReadError::S3(failure) => failure,
            ReadError::TooLarge(_) => broken(&error),
        })?;
        let Some(packed) = packed else { return Ok(None) };
        let text = zstd::bulk::decompress(&packed, LARGEST).map_err(|error| broken(&error))?;
        serde_json::from_slice(&text).map(Some).map_err(|error| broken(&error))
    }
}
