//! Jobs.

use async_trait::async_trait;
use sqlx::{Executor, Row as _};

use super::{
    Row, Statement, ThisStore,
    conditions::Conditions,
    page::{page, page_text},
    rows::read_stored,
    statements::{insert, select_stored, update},
};
use crate::{
    records::{Job, JobId},
    store::{JobFilter, Jobs, Lock, PageText, Query, Result, StoreError, Stored, table::Value},
};

#[async_trait]
impl Jobs for ThisStore {
    async fn insert_job(&self, job: &Job) -> Result<()> {
        let statement = insert(job, None, vec![("revision", Value::Number(Some(1)))]);
        self.write_one(statement).await.map(|_| ())
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
        match self.write_one(update(job, revision)).await? {
            0 => Err(StoreError::Stale),
            _ => Ok(()),
        }
    }

    async fn delete_job(&self, id: JobId) -> Result<bool> {
        let mut statement = Statement::new("DELETE FROM jobs WHERE id = ");
        statement.push_bind(id.to_string());
        Ok(self.write_one(statement).await? > 0)
    }

    async fn delete_jobs(&self, filter: &JobFilter) -> Result<Vec<JobId>> {
        let mut statement = Statement::new("DELETE FROM jobs");
        Conditions::of(&mut statement).and_job(filter);
        statement.push(" RETURNING id");
        // Alone, since two that meet the same rows in another order would wait for each other.
        self.write(Lock::Alone, |db| {
            Box::pin(async move { ids(&db.fetch_all(statement.build()).await?) })
        })
        .await
    }
}

/// The ids in the first column.
pub(super) fn ids(rows: &[Row]) -> Result<Vec<JobId>> {
    let ids = rows.iter().map(|row| {
        let id: &str = row.try_get(0)?;
        id.parse()
            .map_err(|error| StoreError::Damaged(format!("jobs: {id}: {error}")))
    });
    ids.collect()
}
