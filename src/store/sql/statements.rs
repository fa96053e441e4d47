//! Builds the statements that all tables have in common. Pure: no I/O.

use uuid::Uuid;

use super::{
    super::LATEST,
    Statement, now,
    rows::{STORED, push},
};
use crate::store::{
    Side,
    table::{Table, Value},
};

/// One record of one side, or the whole side.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    pub(super) table: &'static str,
    pub(super) side: Side,
    pub(super) id: Option<Uuid>,
}

impl Chosen {
    /// Adds the condition for these rows.
    pub(super) fn push(self, statement: &mut Statement) {
        statement.push(" WHERE ").push(condition(self.side));
        if let Some(id) = self.id {
            statement.push(" AND id = ").push_bind(id.hyphenated().to_string());
        }
    }
}

/// Starts a statement that reads all columns of a table.
pub(super) fn select<T: Table>() -> Statement {
    Statement::new(format!("SELECT {} FROM {}", T::COLUMNS.join(", "), T::NAME))
}

/// Starts a statement that reads records.
pub(super) fn select_stored<T: Table>() -> Statement {
    let deleted = if T::COLUMNS.contains(&"deleted") {
        ", deleted"
    } else {
        ""
    };
    Statement::new(format!("SELECT {STORED}{deleted} FROM {}", T::NAME))
}

/// Adds a row at the end of the list, with additional columns of the store's own.
pub(super) fn insert<T: Table>(record: &T, side: Option<Side>, more: Vec<(&'static str, Value)>) -> Statement {
    let mut statement = Statement::new(format!("INSERT INTO {} (position", T::NAME));
    for column in T::COLUMNS.iter().chain(more.iter().map(|(column, _)| column)) {
        statement.push(", ").push(column);
    }
    statement.push(") VALUES (");
    push_end_of_list(&mut statement, T::NAME, side);
    for value in record
        .values()
        .into_iter()
        .chain(more.into_iter().map(|(_, value)| value))
    {
        statement.push(", ");
        push(&mut statement, value);
    }
    statement.push(")");
    statement
}

/// Replaces a row, including additional columns of the store's own, if its revision is still this one. The side does
/// not change.
pub(super) fn update<T: Table>(record: &T, more: Vec<(&'static str, Value)>, revision: i64) -> Statement {
    let mut statement = Statement::new(format!("UPDATE {} SET revision = revision + 1", T::NAME));
    let mut values = T::COLUMNS.iter().zip(record.values());
    let id = values.next();
    let values = values
        .by_ref()
        .map(|(column, value)| (*column, value))
        .filter(|(column, _)| *column != "deleted");
    for (column, value) in values.chain(more) {
        statement.push(format_args!(", {column} = "));
        push(&mut statement, value);
    }
    statement.push(" WHERE revision = ").push_bind(revision);
    if let Some((column, value)) = id {
        statement.push(format_args!(" AND {column} = "));
        push(&mut statement, value);
    }
    statement
}

/// The next place in a list: now, or right after the last row if the clock was set back.
pub(super) fn push_end_of_list(statement: &mut Statement, table: &str, side: Option<Side>) {
    statement.push(LATEST).push("(").push_bind(now());
    statement.push(format_args!(", (SELECT coalesce(max(position), 0) + 1 FROM {table}"));
    if let Some(side) = side {
        statement.push(" WHERE ").push(condition(side));
    }
    statement.push("))");
}

/// The condition for rows of one side. The text must equal that of the partial indexes.
pub(super) const fn condition(side: Side) -> &'static str {
    match side {
        Side::Live => "deleted IS NULL",
        Side::Deleted => "deleted IS NOT NULL",
    }
}
