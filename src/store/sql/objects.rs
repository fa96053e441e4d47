//! Tracks the objects that records refer to, and those without any reference left. Touches the store's database only.

use sqlx::{Executor, Row as _};
use uuid::Uuid;

use super::{Connection, Readers, Statement, ThisStore, now, statements::Chosen};
use crate::store::{Result, StoreError};

/// The most values in one statement: both databases have a limit.
const CHUNK: usize = 1000;

/// Adds references of a record to these objects.
pub(super) async fn refer(db: &mut Connection, kind: &'static str, owner: Uuid, paths: &[String]) -> Result<()> {
    for paths in paths.chunks(CHUNK) {
        if let Some(row) = db.fetch_optional(doomed_among(paths).build()).await? {
            return Err(StoreError::Doomed(row.try_get(0)?));
        }
        let owner = owner.hyphenated().to_string();
        let mut statement = Statement::new("INSERT INTO object_refs (kind, owner, path) ");
        statement.push_values(paths, |mut row, path| {
            row.push_bind(kind).push_bind(owner.clone()).push_bind(path.clone());
        });
        statement.push(" ON CONFLICT DO NOTHING");
        db.execute(statement.build()).await?;
    }
    Ok(())
}

/// One of these objects that is doomed.
pub(super) fn doomed_among(paths: &[String]) -> Statement {
    let mut statement = Statement::new("SELECT path FROM doomed_objects WHERE path IN (");
    push_list(&mut statement, paths);
    statement.push(" LIMIT 1");
    statement
}

/// Dooms the objects that only these records refer to.
pub(super) fn doom(chosen: Chosen) -> Statement {
    let mut statement = Statement::new("INSERT INTO doomed_objects (path, since) SELECT DISTINCT path, ");
    statement.push_bind(now()).push(" FROM object_refs WHERE ");
    push_owned(&mut statement, chosen);
    statement
        .push(" AND NOT EXISTS (SELECT 1 FROM object_refs AS others WHERE others.path = object_refs.path AND NOT (");
    push_owned_as(&mut statement, "others", chosen);
    statement.push(")) ON CONFLICT DO NOTHING");
    statement
}

/// Removes all references of these records.
pub(super) fn forget_refs(chosen: Chosen) -> Statement {
    let mut statement = Statement::new("DELETE FROM object_refs WHERE ");
    push_owned(&mut statement, chosen);
    statement
}

/// Removes some references of one record, and dooms the objects that have no other.
pub(super) async fn forget_some_refs(
    db: &mut Connection,
    kind: &'static str,
    owner: Uuid,
    paths: &[String],
) -> Result<()> {
    let owner = owner.hyphenated().to_string();
    for paths in paths.chunks(CHUNK) {
        let mut statement = Statement::new("DELETE FROM object_refs WHERE kind = ");
        statement.push_bind(kind).push(" AND owner = ").push_bind(owner.clone());
        statement.push(" AND path IN (");
        push_list(&mut statement, paths);
        statement.push(" RETURNING path");
        let rows = db.fetch_all(statement.build()).await?;
        for row in rows {
            let path: String = row.try_get(0)?;
            let mut statement = Statement::new("INSERT INTO doomed_objects (path, since) SELECT ");
            statement.push_bind(path.clone()).push(", ").push_bind(now());
            statement
                .push(" WHERE NOT EXISTS (SELECT 1 FROM object_refs WHERE path = ")
                .push_bind(path);
            statement.push(") ON CONFLICT DO NOTHING");
            db.execute(statement.build()).await?;
        }
    }
    Ok(())
}

/// Objects that no record names, oldest first.
pub(super) async fn doomed(readers: &Readers, limit: u32) -> Result<Vec<String>> {
    let rows = readers.fetch_all(oldest_doomed(limit).build()).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

pub(super) fn oldest_doomed(limit: u32) -> Statement {
    let mut statement = Statement::new("SELECT path FROM doomed_objects ORDER BY since, path LIMIT ");
    statement.push_bind(i64::from(limit));
    statement
}

/// Records that these objects are gone.
pub(super) async fn forget_doomed(store: &ThisStore, paths: &[String]) -> Result<()> {
    for paths in paths.chunks(CHUNK) {
        let mut statement = Statement::new("DELETE FROM doomed_objects WHERE path IN (");
        push_list(&mut statement, paths);
        store.write_one(statement).await?;
    }
    Ok(())
}

/// The condition for references of these records.
fn push_owned(statement: &mut Statement, chosen: Chosen) {
    push_owned_as(statement, "object_refs", chosen);
}

fn push_owned_as(statement: &mut Statement, refs: &str, chosen: Chosen) {
    let table = chosen.table;
    statement.push(format_args!(
        "{refs}.kind = '{table}' AND {refs}.owner IN (SELECT id FROM {table}"
    ));
    chosen.push(statement);
    statement.push(")");
}

/// The rest of a list in parentheses.
fn push_list(statement: &mut Statement, texts: &[String]) {
    let mut list = statement.separated(", ");
    for text in texts {
        list.push_bind(text.clone());
    }
    list.push_unseparated(")");
}
