//! Keeps what callers add within their budgets, and notes what had to go. Touches the store's database only.

use async_trait::async_trait;
use kiln_records::{Image, ImageSet, Job, Moment, PublicKey, Recipe, Schedule, budget::RECORD_BYTES};
use sqlx::{Executor, Row as _};

use super::{Connection, Row, Statement, ThisStore, statements::insert};
use crate::{
    metrics,
    store::{
        Allowance, Budgets, Count, Dropped, DroppedKind, Lock, Maker, Result, StoreError,
        table::{Document, Table, Value},
    },
};

/// The table of remote build nodes.
pub(super) const NODES: &str = "remote_build_nodes";

/// The table of changes of channels.
pub(super) const CHANGES: &str = "promotions";

/// The tables of records that count for their callers.
const COUNTED: [&str; 8] = [
    Recipe::NAME,
    Image::NAME,
    PublicKey::NAME,
    Job::NAME,
    Schedule::NAME,
    ImageSet::NAME,
    NODES,
    CHANGES,
];

/// What the caller may still add to a table.
pub(super) struct Budget {
    table: &'static str,
    allowance: Option<Allowance>,
}

impl Budget {
    /// That of the caller on whose behalf this task works.
    pub(super) fn of(table: &'static str) -> Self {
        Self {
            table,
            allowance: Allowance::current(),
        }
    }

    /// The column that says whose a row is.
    pub(super) fn column(&self) -> (&'static str, Value) {
        let caller = self.allowance.as_ref().map(|allowance| allowance.caller.clone());
        ("caller", Value::Text(caller))
    }

    /// Whether there is room for one more row.
    pub(super) async fn check(&self, db: &mut Connection) -> Result<()> {
        let Some((allowance, limits)) = self.allowance.as_ref().and_then(|one| Some((one, one.most?))) else {
            return Ok(());
        };
        let mut own = Statement::new(format!("SELECT count(*) FROM {} WHERE caller = ", self.table));
        own.push_bind(allowance.caller.clone());
        let all = Statement::new(format!("SELECT count(*) FROM {}", self.table));
        for (mut count, most, is_own) in [(own, limits.of_caller, true), (all, limits.of_all, false)] {
            if most > 0 && number(db, &mut count).await? >= i64::from(most) {
                return Err(StoreError::TooMany {
                    kind: self.table,
                    most,
                    is_own,
                });
            }
        }
        Ok(())
    }
}

/// Checks the size of a record that a caller makes or changes. What others have made so large earlier, Kiln itself can
/// still change.
pub(super) fn check_size(record: &impl Document) -> Result<()> {
    if Allowance::current().is_none_or(|allowance| allowance.most.is_none()) {
        return Ok(());
    }
    match Value::document(record) {
        Value::Text(Some(text)) if text.len() > RECORD_BYTES => Err(StoreError::TooLarge { bytes: text.len() }),
        _ => Ok(()),
    }
}

impl ThisStore {
    /// Adds a row at the end of a list without sides, within the caller's budget.
    pub(super) async fn add<T: Table>(&self, record: &T, more: Vec<(&'static str, Value)>) -> Result<()> {
        self.add_with_room(record, more, None).await
    }

    /// The same for a record that becomes another one of this table, too: there has to be room for both.
    pub(super) async fn add_with_room<T: Table>(
        &self,
        record: &T,
        mut more: Vec<(&'static str, Value)>,
        becomes: Option<&'static str>,
    ) -> Result<()> {
        let budget = Budget::of(T::NAME);
        let other = becomes.map(Budget::of);
        more.push(("revision", Value::Number(Some(1))));
        more.push(budget.column());
        let mut add = insert(record, None, more);
        self.write(Lock::Shared, move |db| {
            Box::pin(async move {
                budget.check(db).await?;
                if let Some(other) = other {
                    other.check(db).await?;
                }
                db.execute(add.build()).await?;
                Ok(())
            })
        })
        .await
    }
}

#[async_trait]
impl Budgets for ThisStore {
    async fn caller_of(&self, maker: Maker) -> Result<Option<String>> {
        let mut select = Statement::new("SELECT ");
        push_caller(&mut select, maker);
        Ok(self.readers().fetch_one(select.build()).await?.try_get(0)?)
    }

    async fn dropped(&self) -> Result<Vec<Dropped>> {
        let mut select = Statement::new("SELECT kind, number, last FROM dropped ORDER BY kind");
        let rows = self.readers().fetch_all(select.build()).await?;
        let mut dropped = Vec::with_capacity(rows.len());
        for row in &rows {
            let (kind, number): (&str, i64) = (row.try_get(0)?, row.try_get(1)?);
            // A kind of a later version is that version's to tell.
            if let Some(kind) = DroppedKind::named(kind) {
                dropped.push(Dropped {
                    kind,
                    number: number.unsigned_abs(),
                    last: Moment::from_micros(row.try_get(2)?),
                });
            }
        }
        Ok(dropped)
    }

    async fn note_dropped(&self, kind: DroppedKind, number: u64) -> Result<()> {
        self.write(Lock::Shared, move |db| Box::pin(note_dropped(db, kind, number)))
            .await
    }

    async fn counts(&self) -> Result<Vec<Count>> {
        let mut counts = Vec::new();
        for kind in COUNTED {
            let mut all = Statement::new(format!("SELECT count(*) FROM {kind}"));
            let all: i64 = self.readers().fetch_one(all.build()).await?.try_get(0)?;
            let mut most = Statement::new(format!(
                "SELECT caller, count(*) FROM {kind} WHERE caller IS NOT NULL GROUP BY caller ORDER BY count(*) DESC LIMIT 1"
            ));
            let row = self.readers().fetch_optional(most.build()).await?;
            let read = |row: Row| Ok::<_, StoreError>((row.try_get(0)?, row.try_get::<i64, _>(1)?.unsigned_abs()));
            counts.push(Count {
                kind,
                all: all.unsigned_abs(),
                most: row.map(read).transpose()?,
            });
        }
        Ok(counts)
    }
}

/// Adds the caller for whom counts what comes of a record.
pub(super) fn push_caller(statement: &mut Statement, maker: Maker) {
    let (tables, id): (&[&str], _) = match maker {
        Maker::Job(id) => (&["jobs", "deleted_jobs"], id.to_string()),
        Maker::Set(id) => (&["sets"], id.to_string()),
        Maker::Schedule(id) => (&["schedules"], id.to_string()),
    };
    statement.push("coalesce(NULL");
    for table in tables {
        statement.push(format_args!(", (SELECT caller FROM {table} WHERE id = "));
        statement.push_bind(id.clone()).push(")");
    }
    statement.push(")");
}

/// The number that a statement selects.
pub(super) async fn number(db: &mut Connection, select: &mut Statement) -> Result<i64> {
    Ok(db.fetch_one(select.build()).await?.try_get(0)?)
}

/// Notes what was dropped before its promised age: in the records, in the log, and in the metrics.
pub(super) async fn note_dropped(db: &mut Connection, kind: DroppedKind, number: u64) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    let mut note = Statement::new("INSERT INTO dropped (kind, number, last) VALUES (");
    let mut values = note.separated(", ");
    values
        .push_bind(kind.name())
        .push_bind(i64::try_from(number).unwrap_or(i64::MAX))
        .push_bind(Moment::now().micros());
    note.push(") ON CONFLICT (kind) DO UPDATE SET number = dropped.number + excluded.number, last = excluded.last");
    db.execute(note.build()).await?;
    tracing::warn!(
        kind = kind.name(),
        number,
        "something was dropped before its promised age: there was too much of it (docs/security.md#budgets)"
    );
    metrics::dropped(kind.name(), number);
    Ok(())
}
