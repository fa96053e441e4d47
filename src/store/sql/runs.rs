//! Implements [`Runs`]: the state of jobs that Kiln runs. Touches the store's database only.

use async_trait::async_trait;
use kiln_records::{Image, Job, JobId, Run};
use sqlx::{Executor, Row as _};
use uuid::Uuid;

use super::{Row, Statement, ThisStore, conditions::Conditions, rows::damaged, statements::update};
use crate::store::{
    JobFilter, Lock, OpenRuns, Result, Runs, StoreError, StoredRun,
    table::{Table, Value},
};

/// The columns that [`read`] reads.
pub(super) const COLUMNS: &str = "record, run, revision, position";

#[async_trait]
impl Runs for ThisStore {
    async fn insert_run(&self, job: &Job, run: &Run) -> Result<()> {
        let mut more = columns(run)?;
        more.push(("artifact", Value::id(job.artifact_id)));
        // A job that has built has an image: room for it is asked for now.
        self.add_with_room(job, more, Some(Image::NAME)).await
    }

    async fn get_run(&self, id: JobId) -> Result<Option<StoredRun>> {
        let mut statement = Statement::new(format!("SELECT {COLUMNS} FROM jobs WHERE run IS NOT NULL AND id = "));
        statement.push_bind(id.to_string());
        let row = self.readers().fetch_optional(statement.build()).await?;
        row.as_ref().map(read).transpose()
    }

    async fn get_runs(&self, ids: &[JobId]) -> Result<Vec<StoredRun>> {
        let mut runs = Vec::with_capacity(ids.len());
        for ids in ids.chunks(ROWS_AT_ONCE) {
            let mut statement = Statement::new(format!("SELECT {COLUMNS} FROM jobs WHERE run IS NOT NULL AND id IN ("));
            for (at, id) in ids.iter().enumerate() {
                if at > 0 {
                    statement.push(", ");
                }
                statement.push_bind(id.to_string());
            }
            statement.push(")");
            for row in &self.readers().fetch_all(statement.build()).await? {
                match read(row) {
                    Ok(stored) => runs.push(stored),
                    Err(StoreError::Damaged(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(runs)
    }

    async fn open_runs(&self) -> Result<OpenRuns> {
        let mut statement = Statement::new(format!(
            "SELECT {COLUMNS}, id FROM jobs WHERE is_open = 1 ORDER BY position, id"
        ));
        let rows = self.readers().fetch_all(statement.build()).await?;
        let mut open = OpenRuns::default();
        for row in &rows {
            match read(row) {
                Ok(stored) => open.runs.push(stored),
                Err(StoreError::Damaged(_)) => open.unread.push(parsed(row.try_get(4)?)?),
                Err(error) => return Err(error),
            }
        }
        Ok(open)
    }

    async fn past_runs(&self, artifact: Uuid, limit: u32) -> Result<Vec<StoredRun>> {
        let mut statement = Statement::new(format!(
            "SELECT {COLUMNS} FROM jobs WHERE run IS NOT NULL AND artifact = "
        ));
        statement
            .push_bind(artifact.hyphenated().to_string())
            .push(format_args!(" ORDER BY position DESC LIMIT {limit}"));
        let rows = self.readers().fetch_all(statement.build()).await?;
        rows.iter().map(read).collect()
    }

    async fn replace_run(&self, job: &Job, run: &Run, revision: i64) -> Result<()> {
        // The end of a job frees its disk.
        match self
            .write_one_from_reserve(update(job, columns(run)?, revision))
            .await?
        {
            0 => Err(StoreError::Stale),
            _ => Ok(()),
        }
    }

    async fn deleted_runs(&self) -> Result<Vec<StoredRun>> {
        let mut statement = Statement::new(format!("SELECT {COLUMNS} FROM deleted_jobs ORDER BY position, id"));
        let rows = self.readers().fetch_all(statement.build()).await?;
        rows.iter().map(read).collect()
    }

    async fn forget_deleted_run(&self, id: JobId) -> Result<()> {
        let mut statement = Statement::new("DELETE FROM deleted_jobs WHERE id = ");
        statement.push_bind(id.to_string());
        self.write_one_from_reserve(statement).await.map(|_| ())
    }
}

/// Removes jobs, and keeps a note of what is to be cleaned up after those that Kiln ran.
pub(super) async fn delete(store: &ThisStore, lock: Lock, id: Option<JobId>, filter: &JobFilter) -> Result<Vec<JobId>> {
    let mut delete = Statement::new("DELETE FROM jobs");
    let mut conditions = Conditions::of(&mut delete);
    if let Some(id) = id {
        conditions.and("id = ").push_bind(id.to_string());
    }
    conditions.and_job(filter);
    delete.push(" RETURNING id, revision, position, record, run, caller");
    store
        .write_from_reserve(lock, move |db| {
            Box::pin(async move {
                let rows = db.fetch_all(delete.build()).await?;
                for chunk in rows.chunks(ROWS_AT_ONCE) {
                    if let Some(mut keep) = keep(chunk)? {
                        db.execute(keep.build()).await?;
                    }
                }
                rows.iter().map(|row| parsed(row.try_get(0)?)).collect()
            })
        })
        .await
}

/// The most rows in one statement: databases take some 30 000 values at once.
const ROWS_AT_ONCE: usize = 1000;

/// Records the cleanup of deleted rows, if any is needed.
fn keep(rows: &[Row]) -> Result<Option<Statement>> {
    let mut kept = Vec::new();
    for row in rows {
        if let Some(run) = row.try_get::<Option<&str>, _>(4)? {
            let (id, revision, position): (&str, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let (record, caller): (&str, Option<&str>) = (row.try_get(3)?, row.try_get(5)?);
            kept.push((id, revision, position, record, run, caller));
        }
    }
    if kept.is_empty() {
        return Ok(None);
    }
    let mut statement = Statement::new("INSERT INTO deleted_jobs (id, revision, position, record, run, caller) ");
    statement.push_values(kept, |mut row, (id, revision, position, record, run, caller)| {
        row.push_bind(id.to_owned()).push_bind(revision).push_bind(position);
        row.push_bind(record.to_owned()).push_bind(run.to_owned());
        row.push_bind(caller.map(str::to_owned));
    });
    Ok(Some(statement))
}

/// The columns of a run by which the store searches, and the run itself.
fn columns(run: &Run) -> Result<Vec<(&'static str, Value)>> {
    let text = serde_json::to_string(run).map_err(|error| StoreError::Damaged(format!("a run: {error}")))?;
    Ok(vec![
        ("run", Value::Text(Some(text))),
        ("is_open", Value::Number((!run.settled).then_some(1))),
    ])
}

pub(super) fn read(row: &Row) -> Result<StoredRun> {
    let (job, run): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
    Ok(StoredRun {
        job: serde_json::from_str(job).map_err(|error| damaged::<Job>(job, &error))?,
        run: serde_json::from_str(run).map_err(|error| damaged::<Job>(run, &error))?,
        revision: row.try_get(2)?,
        position: row.try_get(3)?,
    })
}

pub(super) fn parsed<T: std::str::FromStr<Err = uuid::Error>>(text: &str) -> Result<T> {
    text.parse()
        .map_err(|error| StoreError::Damaged(format!("an id: {text}: {error}")))
}
