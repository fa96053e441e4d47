//! The trait for reads of pages that show many records at once. Pure: no I/O here.

use async_trait::async_trait;
use kiln_records::{JobId, JobStatus, Moment};
use uuid::Uuid;

use super::{Result, StoredRun};

/// Reads that cost the same however many records there are.
#[async_trait]
pub trait Overview: Send + Sync {
    /// Up to `limit` jobs that Kiln runs and that have something left to do or to clean up, oldest first. Jobs that
    /// cannot be read are left out: a server of a later version carries them out.
    async fn first_open_runs(&self, limit: u32) -> Result<Vec<StoredRun>>;

    /// Up to `limit` jobs that Kiln runs and that have one of these statuses, newest first. Jobs that cannot be read are
    /// left out.
    async fn latest_runs(&self, statuses: &[JobStatus], limit: u32) -> Result<Vec<StoredRun>>;

    /// Up to `limit` jobs that started from a recipe or image and succeeded, newest first. Jobs that cannot be read are
    /// left out.
    async fn latest_successes(&self, artifact: Uuid, limit: u32) -> Result<Vec<StoredRun>>;

    /// The ids of up to `limit` jobs that have this status and were added after a moment, newest first.
    async fn latest_jobs(&self, status: JobStatus, since: Moment, limit: u32) -> Result<Vec<JobId>>;

    /// The number of jobs with this status, counted up to `most`.
    async fn count_jobs(&self, status: JobStatus, most: u32) -> Result<u32>;
}
