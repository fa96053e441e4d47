//! Accounts of the programs of emulated jobs, as objects beside the jobs' logs. Talks to S3 only.

use kiln_records::{Account, Code, Failure, JobId};
use serde::{Deserialize, Serialize};

use super::{ArtifactStore, job_objects::account_key, store::ReadError};

/// More than any account has, packed or not, in bytes.
const LARGEST: usize = 32 << 20;

/// The account of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAccount {
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The account.
    pub account: Account,
}

impl ArtifactStore {
    /// Stores the account of a job, in place of that of an earlier attempt.
    pub async fn put_account(&self, job: JobId, kept: &KeptAccount) -> Result<(), Failure> {
        let text = serde_json::to_vec(kept).map_err(|error| Failure::new(Code::Io, error))?;
        let packed = zstd::bulk::compress(&text, 0).map_err(|error| Failure::io("cannot pack an account", &error))?;
        let (bucket, key) = (self.recipes_bucket(), account_key(job));
        self.put_bytes(bucket, &key, "application/zstd", packed).await.map(drop)
    }

    /// The account of a job, if it has one.
    pub async fn account(&self, job: JobId) -> Result<Option<KeptAccount>, Failure> {
        let key = account_key(job);
        let broken = |error: &dyn std::fmt::Display| Failure::new(Code::S3Error, format!("{key}: {error}"));
        let read = self.read_small(self.recipes_bucket(), &key, LARGEST).await;
        let packed = read.map_err(|error| match error {
            ReadError::S3(failure) => failure,
            ReadError::TooLarge(_) => broken(&error),
        })?;
        let Some(packed) = packed else { return Ok(None) };
        let text = zstd::bulk::decompress(&packed, LARGEST).map_err(|error| broken(&error))?;
        let kept: KeptAccount = serde_json::from_slice(&text).map_err(|error| broken(&error))?;
        Ok(Some(kept))
    }
}
