//! Tracks the objects that records refer to, and those without any reference left. Touches the store's database only.

use sqlx::{Executor, Row as _};
use uuid::Uuid;

use super::{Connection, Readers, Statement, ThisStore, now, statements::Chosen};
use crate::store::{Doomed, Record, Result, StoreError};
use kiln_records::link::{bucket_and_key, is_laid_out_below};

/// The most values in one statement: both databases have a limit.
const CHUNK: usize = 1000;

/// Adds references of a record to these objects.
pub(super) async fn refer<R: Record>(
    db: &mut Connection,
    kind: &'static str,
    id: R::Id,
    paths: &[String],
) -> Result<()> {
    let (owner, own_keys): (Uuid, _) = (id.into(), R::own_keys(id));
    let is_own = |path: &str| match (&own_keys, bucket_and_key(path)) {
        (Some(prefix), Some((_, key))) => is_laid_out_below(prefix, key),
        _ => false,
    };
    for paths in paths.chunks(CHUNK) {
        if let Some(row) = db.fetch_optional(doomed_among(paths).build()).await? {
            return Err(StoreError::Doomed(row.try_get(0)?));
        }
        let owner = owner.hyphenated().to_string();
        let mut statement = Statement::new("INSERT INTO object_refs (kind, owner, path, own) ");
        statement.push_values(paths, |mut row, path| {
            row.push_bind(kind).push_bind(owner.clone()).push_bind(path.clone());
            row.push_bind(i64::from(is_own(path)));
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
    let mut statement = Statement::new("INSERT INTO doomed_objects (path, since, own) SELECT path, ");
    statement.push_bind(now()).push(", max(own) FROM object_refs WHERE ");
    push_owned(&mut statement, chosen);
    statement
        .push(" AND NOT EXISTS (SELECT 1 FROM object_refs AS others WHERE others.path = object_refs.path AND NOT (");
    push_owned_as(&mut statement, "others", chosen);
    statement.push(")) GROUP BY path ON CONFLICT DO NOTHING");
    statement
}

/// Hands the own objects of these records to the others that refer to them.
pub(super) fn bequeath(chosen: Chosen) -> Statement {
    let mut statement = Statement::new("UPDATE object_refs SET own = 1 WHERE own = 0 AND path IN (SELECT path FROM ");
    statement.push("object_refs AS theirs WHERE theirs.own = 1 AND ");
    push_owned_as(&mut statement, "theirs", chosen);
    statement.push(")");
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
        statement.push(" RETURNING path, own");
        let rows = db.fetch_all(statement.build()).await?;
        for row in rows {
            let (path, own): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
            if own != 0 {
                let mut statement = Statement::new("UPDATE object_refs SET own = 1 WHERE path = ");
                statement.push_bind(path.clone());
                db.execute(statement.build()).await?;
            }
            let mut statement = Statement::new("INSERT INTO doomed_objects (path, since, own) SELECT ");
            statement.push_bind(path.clone()).push(", ").push_bind(now());
            statement.push(", ").push_bind(own);
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
pub(super) async fn doomed(readers: &Readers, limit: u32) -> Result<Vec<Doomed>> {
    let rows = readers.fetch_all(oldest_doomed(limit).build()).await?;
    let doomed = rows.iter().map(|row| {
        let own: i64 = row.try_get(1)?;
        Ok(Doomed {
            path: row.try_get(0)?,
            own: own != 0,
        })
    });
    doomed.collect()
}

pub(super) fn oldest_doomed(limit: u32) -> Statement {
    let mut statement = Statement::new("SELECT path, own FROM doomed_objects ORDER BY since, path LIMIT ");
    statement.push_bind(i64::from(limit));
    statement
}

/// Records that nothing is left to do about these objects.
pub(super) async fn forget_doomed(store: &ThisStore, paths: &[String]) -> Result<()> {
    for paths in paths.chunks(CHUNK) {
        let mut statement = Statement::new("DELETE FROM doomed_objects WHERE path IN (");
        push_list(&mut statement, paths);
        store.write_one_from_reserve(statement).await?;
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
