//! Converts rows to records and back. Pure: no I/O.

use std::{fmt, str::FromStr};

use kiln_records::{Moment, Role, Token};
use sqlx::Row as _;

use super::{Row, Statement};
use crate::store::{
    Result, StoreError, Stored,
    table::{Document, Value},
};

/// The columns that [`read_stored`] reads.
pub(super) const STORED: &str = "record, revision, position";

/// The record in a row, with the store's own columns. A fourth column is the time of deletion.
pub(super) fn read_stored<R: Document>(row: &Row) -> Result<Stored<R>> {
    let text: &str = row.try_get(0)?;
    let mut record: R = serde_json::from_str(text).map_err(|error| damaged::<R>(text, &error))?;
    if row.len() > 3 {
        let deleted: Option<i64> = row.try_get(3)?;
        record.set_deleted(deleted.map(Moment::from_micros));
    }
    Ok(Stored {
        record,
        revision: row.try_get(1)?,
        position: row.try_get(2)?,
    })
}

/// The error for an unreadable document. The beginning of the text often shows whose it is.
pub(super) fn damaged<R: Document>(text: &str, error: &serde_json::Error) -> StoreError {
    let beginning: String = text.chars().take(80).collect();
    StoreError::Damaged(format!("{}: {error}: {beginning}", R::NAME))
}

/// The token in a row.
pub(super) fn read_token(row: &Row) -> Result<Token> {
    let role: &str = row.try_get(3)?;
    let expires: Option<i64> = row.try_get(4)?;
    Ok(Token {
        id: parsed(row.try_get(0)?)?,
        created: Moment::from_micros(row.try_get(1)?),
        name: row.try_get(2)?,
        role: Role::ALL
            .into_iter()
            .find(|known| known.name() == role)
            .ok_or_else(|| StoreError::Damaged(format!("tokens: unknown role `{role}`")))?,
        expires: expires.map(Moment::from_micros),
    })
}

fn parsed<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<T> {
    text.parse()
        .map_err(|error| StoreError::Damaged(format!("tokens: {text}: {error}")))
}

/// Adds a value to a statement.
pub(super) fn push(statement: &mut Statement, value: Value) {
    match value {
        Value::Text(text) => statement.push_bind(text),
        Value::Number(number) => statement.push_bind(number),
    };
}
