//! Implements [`Audit`]: the audit log. Touches the store's database only.

use async_trait::async_trait;
use futures::future::BoxFuture;
use kiln_records::{
    Moment,
    audit::{AuditEntry, KnownBy},
    budget::{AUDIT_ENTRIES, AUDIT_ENTRIES_OF_CALLER, REFUSED_ENTRIES, REFUSED_ENTRIES_OF_CALLER},
};
use sqlx::{Executor, Row as _};
use uuid::Uuid;

use super::{Connection, Row, Statement, ThisStore, budget::note_dropped};
use crate::store::{Allowance, Audit, AuditQuery, DroppedKind, Lock, Result, StoreError};

/// The entries are counted when one has a number that this divides: a count reads an index as a whole.
const COUNT_EVERY: i64 = 512;

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
        if (400..500).contains(&status) {
            end.push(", refused = 1");
        }
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
        if number % COUNT_EVERY == 0 {
            forget(db).await?;
        }
        Ok(number)
    })
}

fn insert(entry: &AuditEntry) -> Statement {
    let entry = entry.clone();
    let mut add = Statement::new(
        "INSERT INTO audit (at, who, known_by, identity, origin, method, path, record_id, request_id, caller) VALUES (",
    );
    let mut values = add.separated(", ");
    values.push_bind(entry.at.micros()).push_bind(entry.who);
    values.push_bind(entry.known_by.name()).push_bind(entry.identity);
    values.push_bind(entry.from).push_bind(entry.method);
    values
        .push_bind(entry.path)
        .push_bind(entry.record_id.map(|id| id.to_string()));
    values.push_bind(entry.request_id);
    values.push_bind(Allowance::current().map(|allowance| allowance.caller));
    add.push(") RETURNING number");
    add
}

/// Removes what is too much: of each caller's entries the caller's oldest, then the oldest of all. Entries about refused
/// requests are counted apart, so that they push out no others.
async fn forget(db: &mut Connection) -> Result<()> {
    let groups = db.fetch_all(counts().build()).await?;
    for (refused, of_all, of_caller, kind) in [
        (None, AUDIT_ENTRIES, AUDIT_ENTRIES_OF_CALLER, DroppedKind::AuditEntry),
        (
            Some(1),
            REFUSED_ENTRIES,
            REFUSED_ENTRIES_OF_CALLER,
            DroppedKind::RefusedEntry,
        ),
    ] {
        let (mut left, mut dropped) = (0, 0);
        for group in &groups {
            let (caller, is, count): (Option<&str>, Option<i64>, i64) =
                (group.try_get(0)?, group.try_get(1)?, group.try_get(2)?);
            if is != refused {
                continue;
            }
            left += count;
            if let Some(caller) = caller
                && count > of_caller
            {
                let gone = db
                    .execute(oldest(Some(caller), refused, count - of_caller).build())
                    .await?;
                dropped += gone.rows_affected();
                left -= count - of_caller;
            }
        }
        if left > of_all {
            let gone = db.execute(oldest(None, refused, left - of_all).build()).await?;
            dropped += gone.rows_affected();
        }
        note_dropped(db, kind, dropped).await?;
    }
    Ok(())
}

/// The number of entries by caller, and by whether they were refused.
pub(super) fn counts() -> Statement {
    Statement::new("SELECT caller, refused, count(*) FROM audit GROUP BY caller, refused")
}

/// Removes the oldest entries of a caller, or of all.
pub(super) fn oldest(caller: Option<&str>, refused: Option<i64>, most: i64) -> Statement {
    let mut remove = Statement::new("DELETE FROM audit WHERE number IN (SELECT number FROM audit WHERE ");
    if let Some(caller) = caller {
        remove.push("caller = ").push_bind(caller.to_owned()).push(" AND ");
    }
    remove.push(if refused.is_some() {
        "refused = 1"
    } else {
        "refused IS NULL"
    });
    remove.push(format_args!(" ORDER BY number LIMIT {most})"));
    remove
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
