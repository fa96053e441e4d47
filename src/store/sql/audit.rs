//! Implements [`Audit`]: the audit log. Touches the store's database only.

use async_trait::async_trait;
use futures::future::BoxFuture;
use kiln_records::{
    Moment,
    audit::{AuditEntry, KnownBy, MOST_ENTRIES},
};
use sqlx::{Executor, Row as _};
use uuid::Uuid;

use super::{Connection, Row, Statement, ThisStore};
use crate::store::{Audit, AuditQuery, Lock, Result, StoreError};

/// The columns that [`read`] reads.
const COLUMNS: &str = "number, at, who, known_by, identity, origin, method, path, record_id, request_id, status";

#[async_trait]
impl Audit for ThisStore {
    async fn add_audit_entry(&self, entry: &AuditEntry, from_reserve: bool) -> Result<i64> {
        let statement = insert(entry);
        if from_reserve {
            self.write_from_reserve(Lock::Shared, |db| add(db, statement)).await
        } else {
            self.write(Lock::Shared, |db| add(db, statement)).await
        }
    }

    async fn end_audit_entry(&self, number: i64, status: u16, made: Option<Uuid>) -> Result<()> {
        let mut end = Statement::new("UPDATE audit SET status = ");
        end.push_bind(i64::from(status));
        if let Some(made) = made {
            end.push(", record_id = ").push_bind(made.to_string());
        }
        end.push(" WHERE number = ").push_bind(number);
        self.write_one_from_reserve(end).await.map(drop)
    }

    async fn audit_entries(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>> {
        let rows = self.readers().fetch_all(listed(query).build()).await?;
        rows.iter().map(read).collect()
    }

    async fn count_audit_entries(&self, before: Moment) -> Result<u64> {
        let mut count = Statement::new("SELECT count(*) FROM audit WHERE at < ");
        count.push_bind(before.micros());
        let row = self.readers().fetch_one(count.build()).await?;
        let number: i64 = row.try_get(0)?;
        Ok(number.unsigned_abs())
    }

    async fn remove_audit_entries(&self, before: Moment, most: u32) -> Result<u64> {
        self.write_one_from_reserve(remove(before, most)).await
    }
}

fn add(db: &mut Connection, mut statement: Statement) -> BoxFuture<'_, Result<i64>> {
    Box::pin(async move {
        let number: i64 = db.fetch_one(statement.build()).await?.try_get(0)?;
        db.execute(forget(number).build()).await?;
        Ok(number)
    })
}

fn insert(entry: &AuditEntry) -> Statement {
    let entry = entry.clone();
    let mut add = Statement::new(
        "INSERT INTO audit (at, who, known_by, identity, origin, method, path, record_id, request_id) VALUES (",
    );
    let mut values = add.separated(", ");
    values.push_bind(entry.at.micros()).push_bind(entry.who);
    values.push_bind(entry.known_by.name()).push_bind(entry.identity);
    values.push_bind(entry.from).push_bind(entry.method);
    values
        .push_bind(entry.path)
        .push_bind(entry.record_id.map(|id| id.to_string()));
    values.push_bind(entry.request_id);
    add.push(") RETURNING number");
    add
}

/// Removes what is too much once there is an entry with this number.
pub(super) fn forget(number: i64) -> Statement {
    let mut forget = Statement::new("DELETE FROM audit WHERE number <= ");
    forget.push_bind(number - MOST_ENTRIES);
    forget
}

pub(super) fn remove(before: Moment, most: u32) -> Statement {
    let mut remove = Statement::new("DELETE FROM audit WHERE number IN (SELECT number FROM audit WHERE at < ");
    remove.push_bind(before.micros());
    remove.push(format_args!(" ORDER BY at, number LIMIT {most})"));
    remove
}

pub(super) fn listed(query: &AuditQuery) -> Statement {
    let mut statement = Statement::new(format!("SELECT {COLUMNS} FROM audit"));
    let mut word = " WHERE ";
    let mut next = || std::mem::replace(&mut word, " AND ");
    if let Some(who) = &query.who {
        statement.push(next()).push("who = ").push_bind(who.clone());
    }
    if let Some(id) = query.record_id {
        statement.push(next()).push("record_id = ").push_bind(id.to_string());
    }
    if let Some(since) = query.since {
        statement.push(next()).push("at >= ").push_bind(since.micros());
    }
    if let Some(until) = query.until {
        statement.push(next()).push("at < ").push_bind(until.micros());
    }
    statement.push(format_args!(" ORDER BY at DESC, number DESC LIMIT {}", query.limit));
    statement
}

fn read(row: &Row) -> Result<AuditEntry> {
    let damaged = |what: &str| StoreError::Damaged(format!("an entry of the audit log: {what}"));
    let known_by: &str = row.try_get(3)?;
    let record: Option<&str> = row.try_get(8)?;
    let status: Option<i64> = row.try_get(10)?;
    Ok(AuditEntry {
        number: row.try_get(0)?,
        at: Moment::from_micros(row.try_get(1)?),
        who: row.try_get(2)?,
        known_by: KnownBy::named(known_by).ok_or_else(|| damaged(known_by))?,
        identity: row.try_get(4)?,
        from: row.try_get(5)?,
        method: row.try_get(6)?,
        path: row.try_get(7)?,
        record_id: record.map(|id| id.parse().map_err(|_| damaged(id))).transpose()?,
        request_id: row.try_get(9)?,
        status: status.and_then(|status| u16::try_from(status).ok()),
    })
}
