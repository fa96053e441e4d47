//! Implements [`Usages`]: the use of jobs over time. Touches the store's database only.

use async_trait::async_trait;
use kiln_records::{JobId, usage::UsageCurve};
use sqlx::Row as _;

use super::{Statement, ThisStore};
use crate::store::{Result, StoreError, Usages};

#[async_trait]
impl Usages for ThisStore {
    async fn put_usage(&self, job: JobId, curve: &UsageCurve) -> Result<()> {
        let record = serde_json::to_string(curve).map_err(|error| damaged(&error))?;
        let mut put = Statement::new("INSERT INTO job_usage (job, record) SELECT ");
        put.push_bind(job.to_string()).push(", ").push_bind(record);
        put.push(" WHERE EXISTS (SELECT 1 FROM jobs WHERE id = ")
            .push_bind(job.to_string());
        put.push(") ON CONFLICT (job) DO UPDATE SET record = excluded.record");
        self.write_one(put).await.map(drop)
    }

    async fn usage(&self, job: JobId) -> Result<Option<UsageCurve>> {
        let mut get = Statement::new("SELECT record FROM job_usage WHERE job = ");
        get.push_bind(job.to_string());
        let Some(row) = self.readers().fetch_optional(get.build()).await? else {
            return Ok(None);
        };
        let record: &str = row.try_get(0)?;
        serde_json::from_str(record).map(Some).map_err(|error| damaged(&error))
    }

    async fn drop_usage(&self, job: JobId) -> Result<()> {
        let mut drop_it = Statement::new("DELETE FROM job_usage WHERE job = ");
        drop_it.push_bind(job.to_string());
        self.write_one_from_reserve(drop_it).await.map(drop)
    }
}

fn damaged(error: &serde_json::Error) -> StoreError {
    StoreError::Damaged(format!("the use of a job: {error}"))
}
