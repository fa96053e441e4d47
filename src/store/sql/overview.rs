//! Implements [`Overview`]: bounded reads of jobs. Touches the store's database only.

use async_trait::async_trait;
use kiln_records::{JobId, JobStatus, Moment};
use sqlx::Row as _;
use uuid::Uuid;

use super::{
    Row, Statement, ThisStore,
    runs::{COLUMNS, parsed, read},
};
use crate::store::{Overview, Result, StoreError, StoredRun};

#[async_trait]
impl Overview for ThisStore {
    async fn first_open_runs(&self, limit: u32) -> Result<Vec<StoredRun>> {
        let rows = self.readers().fetch_all(first_open(limit).build()).await?;
        readable(&rows)
    }

    async fn latest_runs(&self, statuses: &[JobStatus], limit: u32) -> Result<Vec<StoredRun>> {
        let mut latest = Vec::new();
        // One statement for each, which reads only the rows that it returns.
        for status in statuses {
            let rows = self.readers().fetch_all(latest_run(*status, limit).build()).await?;
            latest.extend(readable(&rows)?);
        }
        latest.sort_by_key(|stored| std::cmp::Reverse(stored.position));
        latest.truncate(limit as usize);
        Ok(latest)
    }

    async fn latest_successes(&self, artifact: Uuid, limit: u32) -> Result<Vec<StoredRun>> {
        let rows = self.readers().fetch_all(successes(artifact, limit).build()).await?;
        readable(&rows)
    }

    async fn latest_jobs(&self, status: JobStatus, since: Moment, limit: u32) -> Result<Vec<JobId>> {
        let mut statement = latest_ids(status, since, limit);
        let rows = self.readers().fetch_all(statement.build()).await?;
        rows.iter().map(|row| parsed(row.try_get(0)?)).collect()
    }

    async fn count_jobs(&self, status: JobStatus, most: u32) -> Result<u32> {
        let row = self.readers().fetch_one(count(status, most).build()).await?;
        let count: i64 = row.try_get(0)?;
        Ok(u32::try_from(count).unwrap_or(most))
    }
}

pub(super) fn first_open(limit: u32) -> Statement {
    Statement::new(format!(
        "SELECT {COLUMNS} FROM jobs WHERE is_open = 1 ORDER BY position, id LIMIT {limit}"
    ))
}

pub(super) fn latest_run(status: JobStatus, limit: u32) -> Statement {
    let mut statement = Statement::new(format!(
        "SELECT {COLUMNS} FROM jobs WHERE run IS NOT NULL AND status = "
    ));
    statement
        .push_bind(status.name())
        .push(format_args!(" ORDER BY position DESC, id DESC LIMIT {limit}"));
    statement
}

pub(super) fn successes(artifact: Uuid, limit: u32) -> Statement {
    let mut statement = Statement::new(format!(
        "SELECT {COLUMNS} FROM jobs WHERE run IS NOT NULL AND artifact = "
    ));
    statement.push_bind(artifact.hyphenated().to_string());
    // The empty text keeps SQLite from the index of statuses, which has the jobs of all recipes.
    statement
        .push(" AND status || '' = ")
        .push_bind(JobStatus::Success.name());
    statement.push(format_args!(" ORDER BY position DESC LIMIT {limit}"));
    statement
}

pub(super) fn latest_ids(status: JobStatus, since: Moment, limit: u32) -> Statement {
    let mut statement = Statement::new("SELECT id FROM jobs WHERE status = ");
    statement.push_bind(status.name());
    statement.push(" AND position > ").push_bind(since.micros());
    statement.push(format_args!(" ORDER BY position DESC, id DESC LIMIT {limit}"));
    statement
}

pub(super) fn count(status: JobStatus, most: u32) -> Statement {
    let mut statement = Statement::new("SELECT count(*) FROM (SELECT 1 FROM jobs WHERE status = ");
    statement
        .push_bind(status.name())
        .push(format_args!(" LIMIT {most}) AS counted"));
    statement
}

/// The jobs that this version can read.
fn readable(rows: &[Row]) -> Result<Vec<StoredRun>> {
    let read = rows.iter().map(read);
    read.filter(|run| !matches!(run, Err(StoreError::Damaged(_)))).collect()
}
