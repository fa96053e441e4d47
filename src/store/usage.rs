//! What a store does with the use of jobs over time.

use async_trait::async_trait;
use kiln_records::{JobId, usage::UsageCurve};

use super::Result;

/// The use of jobs over time: one curve for each job.
#[async_trait]
pub trait Usages: Send + Sync {
    /// Stores the curve of a job in place of an earlier one. Does nothing if the job is gone.
    async fn put_usage(&self, job: JobId, curve: &UsageCurve) -> Result<()>;

    /// The curve of a job, if anything was measured.
    async fn usage(&self, job: JobId) -> Result<Option<UsageCurve>>;

    /// Removes the curve of a job.
    async fn drop_usage(&self, job: JobId) -> Result<()>;
}
