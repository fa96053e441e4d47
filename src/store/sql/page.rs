//! Reads lists, page by page. Touches the store's database only.

use kiln_records::budget::LIST_BYTES;
use sqlx::Row as _;

use super::{
    Readers, Statement,
    conditions::Conditions,
    rows::{damaged, read_stored},
    statements::{condition, select_stored},
};
use crate::store::{PageText, Query, Result, Side, Sort, Stored, table::Document};

/// The records that the query asks for. Filters of jobs apply only to tables without sides.
pub(super) async fn page<R: Document>(readers: &Readers, side: Option<Side>, query: &Query) -> Result<Vec<Stored<R>>> {
    let Some(mut statement) = finish(select_stored::<R>(), side, query) else {
        return Ok(Vec::new());
    };
    let rows = readers.fetch_all(statement.build()).await?;
    rows.iter().map(read_stored).collect()
}

/// The documents that the query asks for, joined by the database, so that one row is read instead of many. Not for
/// deleted records: their documents lack the time of deletion.
pub(super) async fn page_text<R: Document>(
    readers: &Readers,
    side: Option<Side>,
    query: &Query,
) -> Result<PageText<R>> {
    let limit = fitting::<R>(readers, side, query).await?;
    // One more shows whether the list continues.
    let one_more = Query {
        limit: limit.saturating_add(1),
        ..query.clone()
    };
    let Some(mut statement) = finish(select_text::<R>(), side, &one_more) else {
        return Ok(PageText::default());
    };
    statement.push(") AS page");
    let row = readers.fetch_one(statement.build()).await?;
    let (text, positions): (Option<String>, Option<&str>) = (row.try_get(0)?, row.try_get(1)?);
    let (Some(mut text), Some(mut positions)) = (text, positions) else {
        return Ok(PageText::default());
    };
    let mut count = positions.split(',').count();
    let more = count > limit as usize;
    if more && let (Some((rest, _)), Some(end)) = (positions.rsplit_once(','), text.rfind(SEPARATOR)) {
        positions = rest;
        text.truncate(end);
        count -= 1;
    }
    let last = text.rsplit(SEPARATOR).next().unwrap_or_default();
    let record = serde_json::from_str(last).map_err(|error| damaged::<R>(last, &error))?;
    let position = positions.rsplit(',').next().and_then(|last| last.parse().ok());
    Ok(PageText {
        count,
        last: position.map(|position| (record, position)),
        more,
        text,
    })
}

/// How many of the records that the query asks for are no larger than a piece of a list together; one at least. Only their
/// sizes are read.
pub(super) async fn fitting<R: Document>(readers: &Readers, side: Option<Side>, query: &Query) -> Result<u32> {
    let sizes = Statement::new(format!("SELECT CAST(octet_length(record) AS BIGINT) FROM {}", R::NAME));
    let Some(mut sizes) = finish(sizes, side, query) else {
        return Ok(query.limit);
    };
    let (mut bytes, mut count) = (0, 0);
    for row in &readers.fetch_all(sizes.build()).await? {
        bytes += row.try_get::<i64, _>(0)?.unsigned_abs();
        if bytes > LIST_BYTES as u64 {
            return Ok(count.max(1));
        }
        count += 1;
    }
    Ok(query.limit)
}

/// Separates two documents. No document contains a line break: JSON escapes them.
const SEPARATOR: &str = ",\n";

/// Starts a statement that joins documents.
pub(super) fn select_text<R: Document>() -> Statement {
    let table = R::NAME;
    Statement::new(format!(
        "SELECT string_agg(record, '{SEPARATOR}'), string_agg(CAST(position AS TEXT), ',') \
         FROM (SELECT record, position FROM {table}"
    ))
}

/// Completes a statement from the query; `None` if no record can match.
pub(super) fn finish(mut statement: Statement, side: Option<Side>, query: &Query) -> Option<Statement> {
    // No text in the database contains a null character, and PostgreSQL refuses it in a query.
    let texts = [&query.name, &query.id_prefix].into_iter().flatten();
    let places = query.after.iter().flat_map(|after| [&after.key, &after.id]);
    if texts.chain(places).any(|text| text.contains('\0')) {
        return None;
    }
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
        // `~` sorts after every character of an id.
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
            // Nothing follows a text that is not a position.
            Sort::Position => place.push_bind(after.key.parse::<i64>().ok()?),
            Sort::Name => place.push_bind(after.key.clone()),
        };
        place.push(", ").push_bind(after.id.clone()).push(")");
    }
    // Not bound: SQLite plans a statement again whenever a value is bound to its LIMIT.
    let limit = query.limit;
    statement.push(format_args!(
        " ORDER BY {key} {direction}, id {direction} LIMIT {limit}"
    ));
    Some(statement)
}
