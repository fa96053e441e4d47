//! Implements [`Collection`]: records with a live and a deleted side. Touches the store's database only.

use async_trait::async_trait;
use sqlx::Executor;
use uuid::Uuid;

use super::{
    Statement, ThisStore,
    budget::{Budget, check_size},
    objects::{bequeath, doom, forget_refs, forget_some_refs, refer},
    page::{fitting, page, page_text},
    rows::read_stored,
    statements::{Chosen, condition, insert, push_end_of_list, select_stored, update},
};
use crate::store::{
    Collection, Lock, Moment, PageText, Query, Result, Side, StoreError, Stored,
    table::{TwoSided, Value},
};

#[async_trait]
impl<R: TwoSided> Collection<R> for ThisStore {
    async fn insert(&self, record: &R, objects: &[String]) -> Result<()> {
        check_size(record)?;
        let budget = Budget::of(R::NAME);
        let more = vec![("revision", Value::Number(Some(1))), budget.column()];
        let mut statement = insert(record, Some(record.side()), more);
        let id = record.id();
        let (record, objects) = (record.clone(), objects.to_owned());
        let done = self
            .write(Lock::Shared, move |db| {
                Box::pin(async move {
                    budget.check(db).await?;
                    let done = db.execute(statement.build()).await;
                    done.map_err(|error| conflict(error, &record))?;
                    refer::<R>(db, R::NAME, id, &objects).await
                })
            })
            .await;
        match done {
            // A record that was added before violates two constraints, and databases differ in which one they report.
            Err(StoreError::LinkInUse(_)) if self.has::<R>(id).await? => Err(StoreError::Exists),
            done => done,
        }
    }

    async fn get(&self, side: Side, id: R::Id) -> Result<Option<Stored<R>>> {
        let mut statement = select_stored::<R>();
        chosen::<R>(side, Some(id)).push(&mut statement);
        let row = self.readers().fetch_optional(statement.build()).await?;
        row.as_ref().map(read_stored).transpose()
    }

    async fn page(&self, side: Side, query: &Query) -> Result<Vec<Stored<R>>> {
        page(self.readers(), Some(side), query).await
    }

    async fn fitting(&self, side: Side, query: &Query) -> Result<u32> {
        fitting::<R>(self.readers(), Some(side), query).await
    }

    async fn page_text(&self, query: &Query) -> Result<PageText<R>> {
        page_text(self.readers(), Some(Side::Live), query).await
    }

    async fn replace(&self, record: &R, revision: i64, objects: &[String]) -> Result<()> {
        check_size(record)?;
        let mut statement = update(record, Vec::new(), revision);
        statement.push(" AND ").push(condition(record.side()));
        let (record, objects) = (record.clone(), objects.to_owned());
        self.write(Lock::Shared, |db| {
            Box::pin(async move {
                let done = db.execute(statement.build()).await;
                if done.map_err(|error| conflict(error, &record))?.rows_affected() == 0 {
                    return Err(StoreError::Stale);
                }
                refer::<R>(db, R::NAME, record.id(), &objects).await
            })
        })
        .await
    }

    async fn forget_objects(&self, id: R::Id, objects: &[String]) -> Result<()> {
        let objects = objects.to_owned();
        self.write_from_reserve(Lock::Alone, move |db| {
            Box::pin(async move { forget_some_refs(db, R::NAME, id.into(), &objects).await })
        })
        .await
    }

    async fn delete(&self, id: Option<R::Id>, now: Moment) -> Result<u64> {
        let mut statement = delete::<R>(now);
        let lock = if let Some(id) = id {
            push_end_of_list(&mut statement, R::NAME, Some(Side::Deleted));
            chosen::<R>(Side::Live, Some(id)).push(&mut statement);
            Lock::Shared
        } else {
            push_whole_list(&mut statement, R::NAME);
            Lock::Alone
        };
        self.write_from_reserve(lock, |db| {
            Box::pin(async move { Ok(db.execute(statement.build()).await?.rows_affected()) })
        })
        .await
    }

    async fn delete_unchanged(&self, id: R::Id, revision: i64, now: Moment) -> Result<bool> {
        let mut statement = delete::<R>(now);
        push_end_of_list(&mut statement, R::NAME, Some(Side::Deleted));
        chosen::<R>(Side::Live, Some(id)).push(&mut statement);
        statement.push(" AND revision = ").push_bind(revision);
        Ok(self.write_one_from_reserve(statement).await? > 0)
    }

    async fn undelete(&self, id: R::Id) -> Result<bool> {
        let chosen = chosen::<R>(Side::Deleted, Some(id));
        self.write(Lock::Shared, move |db| {
            Box::pin(async move {
                let mut statement = select_stored::<R>();
                chosen.push(&mut statement);
                let Some(row) = db.fetch_optional(statement.build()).await? else {
                    return Ok(false);
                };
                let stored: Stored<R> = read_stored(&row)?;
                let mut statement = Statement::new(format!(
                    "UPDATE {} SET deleted = NULL, revision = revision + 1, position = ",
                    R::NAME
                ));
                push_end_of_list(&mut statement, R::NAME, Some(Side::Live));
                chosen.push(&mut statement);
                let done = db.execute(statement.build()).await;
                let done = done.map_err(|error| conflict(error, &stored.record))?;
                Ok(done.rows_affected() > 0)
            })
        })
        .await
    }

    async fn purge(&self, side: Side, id: Option<R::Id>, keep_objects: bool) -> Result<u64> {
        let chosen = chosen::<R>(side, id);
        // Exclusive, so that no record comes to refer to an object between the check and the doom, and the chosen set
        // stays the same from one statement to the next.
        self.write_from_reserve(Lock::Alone, move |db| {
            Box::pin(async move {
                if !keep_objects {
                    db.execute(doom(chosen).build()).await?;
                    db.execute(bequeath(chosen).build()).await?;
                }
                db.execute(forget_refs(chosen).build()).await?;
                let mut statement = Statement::new(format!("DELETE FROM {}", R::NAME));
                chosen.push(&mut statement);
                Ok(db.execute(statement.build()).await?.rows_affected())
            })
        })
        .await
    }
}

impl ThisStore {
    /// Whether the record exists, on either side.
    async fn has<R: TwoSided>(&self, id: R::Id) -> Result<bool> {
        let mut statement = Statement::new(format!("SELECT id FROM {} WHERE id = ", R::NAME));
        statement.push_bind(id.to_string());
        Ok(self.readers().fetch_optional(statement.build()).await?.is_some())
    }
}

/// Starts a statement that deletes records softly: the place in the list of deleted ones is to follow.
fn delete<R: TwoSided>(now: Moment) -> Statement {
    let mut statement = Statement::new(format!("UPDATE {} SET deleted = ", R::NAME));
    statement.push_bind(now.micros());
    statement.push(", revision = revision + 1, position = ");
    statement
}

fn chosen<R: TwoSided>(side: Side, id: Option<R::Id>) -> Chosen {
    Chosen {
        table: R::NAME,
        side,
        id: id.map(Into::<Uuid>::into),
    }
}

/// The rest of a statement that appends all live records to the deleted ones, in order.
fn push_whole_list(statement: &mut Statement, table: &str) {
    statement.push("moved.position FROM (SELECT id, row_number() OVER (ORDER BY position, id) - 1 + ");
    push_end_of_list(statement, table, Some(Side::Deleted));
    statement.push(format_args!(
        " AS position FROM {table} WHERE deleted IS NULL) AS moved WHERE {table}.id = moved.id"
    ));
}

/// The error for a row that violates a constraint.
fn conflict<R: TwoSided>(error: sqlx::Error, record: &R) -> StoreError {
    match (error.as_database_error(), record.link()) {
        // PostgreSQL names the index; SQLite only names its column.
        (Some(found), Some(link))
            if found.is_unique_violation() && found.constraint().unwrap_or(found.message()).contains("link_path") =>
        {
            StoreError::LinkInUse(link.path.clone())
        }
        _ => error.into(),
    }
}
