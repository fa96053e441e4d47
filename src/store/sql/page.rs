//! Lists, page by page.

use sqlx::{Executor, Pool};

use super::{
    Db, Statement,
    conditions::Conditions,
    rows::read_stored,
    statements::{condition, select_stored},
};
use crate::store::{Query, Result, Side, Sort, Stored, table::Table};

/// The records that the query asks for. A table without sides is one of jobs.
pub(super) async fn page<T: Table>(readers: &Pool<Db>, side: Option<Side>, query: &Query) -> Result<Vec<Stored<T>>> {
    let Some(mut statement) = statement::<T>(side, query) else {
        return Ok(Vec::new());
    };
    let rows = readers.fetch_all(statement.build()).await?;
    rows.iter().map(read_stored).collect()
}

/// What to say to the database; nothing when no record can be meant.
pub(super) fn statement<T: Table>(side: Option<Side>, query: &Query) -> Option<Statement> {
    // No text in the database has such a character, and PostgreSQL refuses to look for it.
    let texts = [&query.name, &query.id_prefix].into_iter().flatten();
    let places = query.after.iter().flat_map(|after| [&after.key, &after.id]);
    if texts.chain(places).any(|text| text.contains('\0')) {
        return None;
    }
    let mut statement = select_stored::<T>();
    let mut conditions = Conditions::of(&mut statement);
    match side {
        Some(side) => drop(conditions.and(condition(side))),
        None => conditions.and_job(&query.jobs),
    }
    if let Some(name) = &query.name {
        conditions.and("name = ").push_bind(name.clone());
    }
    if let Some(prefix) = &query.id_prefix {
        conditions.and("id >= ").push_bind(prefix.clone());
        // Comes after every character that an id has.
        conditions.and("id < ").push_bind(format!("{prefix}~"));
    }
    if let Some(arch) = query.arch {
        conditions.and("arch = ").push_bind(arch.name());
    }
    let key = match query.sort {
        Sort::Position => "position",
        Sort::Name => "name",
    };
    let (direction, beyond) = if query.descending { ("DESC", "<") } else { ("ASC", ">") };
    if let Some(after) = &query.after {
        let place = conditions.and(format_args!("({key}, id) {beyond} ("));
        match query.sort {
            // Nothing comes after what is no position.
            Sort::Position => place.push_bind(after.key.parse::<i64>().ok()?),
            Sort::Name => place.push_bind(after.key.clone()),
        };
        place.push(", ").push_bind(after.id.clone()).push(")");
    }
    statement
        .push(format_args!(" ORDER BY {key} {direction}, id {direction} LIMIT "))
        .push_bind(i64::from(query.limit));
    Some(statement)
}
