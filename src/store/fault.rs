//! Turns errors of databases into [`StoreError`]. Pure: no I/O.

use std::fmt;

use sqlx::{Error, migrate::MigrateError};

use super::StoreError;

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match error {
            Error::Database(found) if found.is_unique_violation() => Self::Exists,
            Error::ColumnDecode { .. }
            | Error::Decode(_)
            | Error::ColumnNotFound(_)
            | Error::ColumnIndexOutOfBounds { .. }
            | Error::TypeNotFound { .. } => Self::Damaged(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

/// The error for tables that could not be brought up to date.
pub(super) fn migration(place: impl fmt::Display, error: &MigrateError) -> StoreError {
    StoreError::Unavailable(match error {
        MigrateError::VersionMissing(_) | MigrateError::VersionTooNew(..) => {
            format!(
                "{place} was last used by a newer Kiln, or by one before 0.1.0, and this one does not know its tables"
            )
        }
        MigrateError::VersionMismatch(_) => format!("{place} has tables that no release of Kiln made"),
        error => format!("{place}: {error}"),
    })
}
