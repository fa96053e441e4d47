//! Accounts of the programs of emulated jobs, as objects beside the jobs' logs. Talks to S3 only.

use kiln_records::{Account, Failure, JobId};
use serde::{Deserialize, Serialize};

use super::{ArtifactStore, job_objects::account_key};

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
        self.put_packed(&account_key(job), kept).await
    }

    /// The account of a job, if it has one.
    pub async fn account(&self, job: JobId) -> Result<Option<KeptAccount>, Failure> {
        self.read_packed(&account_key(job)).await
    }
}
