//! Implements [`FailedTwins`]: pairs of programs whose native twins have failed. Touches the store's database only.

use async_trait::async_trait;
use kiln_records::{Code, FailedTwin, JobId, Moment, TwinPair, arch::Arch};
use sqlx::{Executor, Row as _};

use super::{Row, Statement, ThisStore, runs::parsed};
use crate::store::{FailedTwins, Lock, Result, StoreError};

/// The columns that [`read`] reads.
const COLUMNS: &str = "job, package, version, path, target, host, code, since";

#[async_trait]
impl FailedTwins for ThisStore {
    async fn add_failed_twin(&self, failed: &FailedTwin) -> Result<()> {
        let FailedTwin { pair, job, since, code } = failed.clone();
        let mut add = Statement::new(format!("INSERT INTO failed_twins ({COLUMNS}) VALUES ("));
        let mut values = add.separated(", ");
        values
            .push_bind(job.to_string())
            .push_bind(pair.package)
            .push_bind(pair.version);
        values.push_bind(pair.path).push_bind(pair.target.name());
        values
            .push_bind(pair.host.name())
            .push_bind(code.name())
            .push_bind(since.micros());
        add.push(") ON CONFLICT DO NOTHING");
        let forget = format!(
            "DELETE FROM failed_twins WHERE job NOT IN (SELECT job FROM failed_twins ORDER BY since DESC, job LIMIT {})",
            FailedTwin::MOST
        );
        self.write(Lock::Shared, move |db| {
            Box::pin(async move {
                db.execute(add.build()).await?;
                db.execute(Statement::new(forget).build()).await?;
                Ok(())
            })
        })
        .await
    }

    async fn failed_twins(&self, target: Option<Arch>) -> Result<Vec<FailedTwin>> {
        let mut statement = Statement::new(format!("SELECT {COLUMNS} FROM failed_twins"));
        if let Some(target) = target {
            statement.push(" WHERE target = ").push_bind(target.name());
        }
        statement.push(" ORDER BY since DESC, job");
        let rows = self.readers().fetch_all(statement.build()).await?;
        rows.iter().map(read).collect()
    }

    async fn forget_failed_twin(&self, job: JobId) -> Result<bool> {
        let mut statement = Statement::new("DELETE FROM failed_twins WHERE job = ");
        statement.push_bind(job.to_string());
        Ok(self.write_one_from_reserve(statement).await? > 0)
    }
}

fn read(row: &Row) -> Result<FailedTwin> {
    let arch = |column: usize| -> Result<Arch> {
        let name: &str = row.try_get(column)?;
        name.parse().map_err(|_| damaged(name))
    };
    let code: &str = row.try_get(6)?;
    Ok(FailedTwin {
        job: parsed(row.try_get(0)?)?,
        pair: TwinPair {
            package: row.try_get(1)?,
            version: row.try_get(2)?,
            path: row.try_get(3)?,
            target: arch(4)?,
            host: arch(5)?,
        },
        code: Code::named(code).ok_or_else(|| damaged(code))?,
        since: Moment::from_micros(row.try_get(7)?),
    })
}

fn damaged(what: &str) -> StoreError {
    StoreError::Damaged(format!("a twin that failed: {what}"))
}
