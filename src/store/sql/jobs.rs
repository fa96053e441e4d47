//! Implements [`Jobs`]. Touches the store's database only.

use async_trait::async_trait;
use kiln_records::{Job, JobId};

use super::{
    ThisStore,
    page::{page, page_text},
    rows::read_stored,
    runs,
    statements::{select_stored, update},
};
use crate::store::{JobFilter, Jobs, Lock, PageText, Query, Result, StoreError, Stored};

#[async_trait]
impl Jobs for ThisStore {
    async fn insert_job(&self, job: &Job) -> Result<()> {
        self.add(job, Vec::new()).await
    }

    async fn get_job(&self, id: JobId) -> Result<Option<Stored<Job>>> {
        let mut statement = select_stored::<Job>();
        statement.push(" WHERE id = ").push_bind(id.to_string());
        let row = self.readers().fetch_optional(statement.build()).await?;
        row.as_ref().map(read_stored).transpose()
    }

    async fn page_jobs(&self, query: &Query) -> Result<Vec<Stored<Job>>> {
        page(self.readers(), None, query).await
    }

    async fn page_text_of_jobs(&self, query: &Query) -> Result<PageText<Job>> {
        page_text(self.readers(), None, query).await
    }

    async fn replace_job(&self, job: &Job, revision: i64) -> Result<()> {
        match self.write_one(update(job, Vec::new(), revision)).await? {
            0 => Err(StoreError::Stale),
            _ => Ok(()),
        }
    }

    async fn delete_job(&self, id: JobId) -> Result<bool> {
        let deleted = runs::delete(self, Lock::Shared, Some(id), &JobFilter::default()).await?;
        Ok(!deleted.is_empty())
    }

    async fn delete_jobs(&self, filter: &JobFilter) -> Result<Vec<JobId>> {
        // Exclusive, since two deletions that lock the same rows in different orders would deadlock.
        runs::delete(self, Lock::Alone, None, filter).await
    }
}
