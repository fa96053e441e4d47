//! The errors of the server, and the S3 error that the client sees for each. Pure: no I/O.

use std::io;

use s3s::{S3Error, S3ErrorCode, StdError};

/// Result of the server's own functions.
pub(super) type Result<T> = std::result::Result<T, Fault>;

/// An error on its way to the client.
#[derive(Debug)]
pub(super) enum Fault {
    /// An error to be returned to the client unchanged.
    S3(S3Error),
    /// The database failed.
    Database(sqlx::Error),
    /// The file system failed.
    Io(io::Error),
    /// The client's body ended early, or its signature was wrong.
    Body(StdError),
    /// A record in the database cannot be parsed.
    Record(serde_json::Error),
    /// A task of the server panicked or was stopped.
    Task(tokio::task::JoinError),
}

macro_rules! fault_from {
    ($($variant:ident($from:ty)),* $(,)?) => {
        $(impl From<$from> for Fault {
            fn from(error: $from) -> Self {
                Self::$variant(error)
            }
        })*
    };
}

fault_from!(
    S3(S3Error),
    Database(sqlx::Error),
    Io(io::Error),
    Record(serde_json::Error),
    Task(tokio::task::JoinError),
);

impl From<S3ErrorCode> for Fault {
    fn from(code: S3ErrorCode) -> Self {
        Self::S3(code.into())
    }
}

// Primary result codes of SQLite.
const SQLITE_BUSY: i32 = 5;
const SQLITE_FULL: i32 = 13;

impl Fault {
    /// Why there is no [room](kiln_reserve::Reserve::room) for a change that has not begun.
    pub(super) fn room(error: io::Error) -> Self {
        if is_full(error.kind()) {
            Self::S3(storage_full())
        } else {
            Self::Io(error)
        }
    }

    /// Whether a change that failed so is certain to have left nothing in the database. Any other failed commit may
    /// still turn up after the next crash.
    pub(super) fn left_no_trace(&self) -> bool {
        match self {
            Self::S3(_) | Self::Record(_) => true,
            Self::Database(error) => matches!(primary_code(error), Some(SQLITE_FULL | SQLITE_BUSY)),
            Self::Io(_) | Self::Body(_) | Self::Task(_) => false,
        }
    }
}

impl From<Fault> for S3Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::S3(error) => error,
            Fault::Body(error) => S3Error::with_message(S3ErrorCode::IncompleteBody, error.to_string()),
            Fault::Io(error) if is_full(error.kind()) => storage_full(),
            Fault::Database(sqlx::Error::PoolTimedOut) => {
                S3Error::with_message(S3ErrorCode::SlowDown, "the database is busy")
            }
            Fault::Database(error) => match primary_code(&error) {
                Some(SQLITE_FULL) => storage_full(),
                Some(SQLITE_BUSY) => S3Error::with_source(S3ErrorCode::SlowDown, Box::new(error)),
                _ => internal(error),
            },
            Fault::Io(error) => internal(error),
            Fault::Record(error) => internal(error),
            Fault::Task(error) => internal(error),
        }
    }
}

fn internal(error: impl std::error::Error + Send + Sync + 'static) -> S3Error {
    tracing::error!(%error, "embedded S3: request failed");
    S3Error::internal_error(error)
}

fn is_full(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Not one of Amazon's codes. Status 507 keeps SDKs from retrying a request that cannot succeed.
fn storage_full() -> S3Error {
    let mut error = S3Error::with_message(
        S3ErrorCode::Custom("StorageFull".into()),
        "no space left for this object",
    );
    if let Ok(status) = 507.try_into() {
        error.set_status_code(status);
    }
    error
}

fn primary_code(error: &sqlx::Error) -> Option<i32> {
    // SQLite's extended codes contain the primary code in the low byte.
    error
        .as_database_error()?
        .code()?
        .parse::<i32>()
        .ok()
        .map(|code| code & 0xff)
}
