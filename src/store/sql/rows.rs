//! Rows to records and back.

use std::fmt;

use sqlx::{Column, Decode, Row as _, Type};

use super::{Db, Row, Statement};
use crate::store::{
    Result, StoreError, Stored,
    table::{Columns, Table, Value},
};

/// The columns of a row, by number: looking names up would take a third of the time of a long list.
struct Cursor<'r> {
    row: &'r Row,
    next: usize,
}

impl<'r> Cursor<'r> {
    fn take<T: Decode<'r, Db> + Type<Db>>(&mut self) -> Result<T> {
        let value = self.row.try_get(self.next);
        self.next += 1;
        value.map_err(|error| self.damaged(&error))
    }
}

impl<'r> Columns<'r> for Cursor<'r> {
    fn maybe_text(&mut self) -> Result<Option<&'r str>> {
        self.take()
    }

    fn maybe_number(&mut self) -> Result<Option<i64>> {
        self.take()
    }

    fn flag(&mut self) -> Result<bool> {
        self.take()
    }

    fn damaged(&self, what: &dyn fmt::Display) -> StoreError {
        let column = self.next.checked_sub(1).and_then(|last| self.row.columns().get(last));
        let id: &str = self.row.try_get(0).unwrap_or("?");
        StoreError::Damaged(format!("{id}: {}: {what}", column.map_or("?", Column::name)))
    }
}

/// The record in a row.
pub(super) fn read<T: Table>(row: &Row) -> Result<T> {
    T::read(&mut Cursor { row, next: 0 })
}

/// The record in a row, and what the store adds to it.
pub(super) fn read_stored<T: Table>(row: &Row) -> Result<Stored<T>> {
    let mut columns = Cursor { row, next: 0 };
    Ok(Stored {
        record: T::read(&mut columns)?,
        revision: columns.number()?,
        position: columns.number()?,
    })
}

/// Adds a value to a statement.
pub(super) fn push(statement: &mut Statement, value: Value) {
    match value {
        Value::Text(text) => statement.push_bind(text),
        Value::Number(number) => statement.push_bind(number),
        Value::Flag(flag) => statement.push_bind(flag),
    };
}
