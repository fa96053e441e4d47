//! Measures the work of a database. Touches the counts of this process only.

use std::time::Instant;

use super::{Result, StoreError};
use crate::metrics::{self, Access};

/// Measures a statement that reads.
pub(super) async fn read<T>(work: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    let begun = Instant::now();
    let read = work.await;
    // Whatever fails here, other than by what is in the row, is the database.
    metrics::database(Access::Read, begun, read.is_err());
    read
}

/// Measures a transaction that writes. A refusal, such as of a stale record, is no failure of the database.
pub(super) async fn write<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let begun = Instant::now();
    let written = work.await;
    let failed = matches!(written, Err(StoreError::Unavailable(_) | StoreError::Damaged(_)));
    metrics::database(Access::Write, begun, failed);
    written
}
