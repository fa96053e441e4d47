//! A small pool of connections that read the database.
//!
//! Not sqlx's own pool: that returns each connection through a task of its own, which costs more than finding a
//! record.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sqlx::{
    ConnectOptions, Connection, Execute, Executor, Sqlite, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteRow},
};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::store::measured::read as measured;

/// The number of connections, and so of concurrent reads.
const COUNT: u32 = 2;

/// Connections, each lent to one caller at a time.
pub(super) struct Readers {
    /// One permit for each idle connection.
    permits: Semaphore,
    idle: Mutex<Vec<SqliteConnection>>,
}

/// A connection that returns to the pool when dropped.
struct Lent<'r> {
    readers: &'r Readers,
    connection: Option<SqliteConnection>,
    // Dropped last, so that the connection is back before the next caller gets the permit.
    _permit: SemaphorePermit<'r>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.readers.idle().extend(self.connection.take());
    }
}

impl Readers {
    /// Opens all connections.
    pub(super) async fn open(options: &SqliteConnectOptions) -> sqlx::Result<Self> {
        let mut idle = Vec::new();
        for _ in 0..COUNT {
            idle.push(options.connect().await?);
        }
        Ok(Self {
            permits: Semaphore::new(idle.len()),
            idle: Mutex::new(idle),
        })
    }

    /// The rows that a statement finds.
    pub(super) async fn fetch_all<'q>(&self, query: impl Execute<'q, Sqlite> + 'q) -> sqlx::Result<Vec<SqliteRow>> {
        let read = async {
            let mut lent = self.lend().await?;
            let connection = lent.connection.as_mut().ok_or(sqlx::Error::PoolClosed)?;
            connection.fetch_all(query).await
        };
        measured(read).await
    }

    /// The row that a statement finds, if it finds one.
    pub(super) async fn fetch_optional<'q>(
        &self,
        query: impl Execute<'q, Sqlite> + 'q,
    ) -> sqlx::Result<Option<SqliteRow>> {
        let read = async {
            let mut lent = self.lend().await?;
            let connection = lent.connection.as_mut().ok_or(sqlx::Error::PoolClosed)?;
            connection.fetch_optional(query).await
        };
        measured(read).await
    }

    /// The row that a statement always finds.
    pub(super) async fn fetch_one<'q>(&self, query: impl Execute<'q, Sqlite> + 'q) -> sqlx::Result<SqliteRow> {
        self.fetch_optional(query).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// Waits until all connections are back, and closes them.
    pub(super) async fn close(&self) {
        let Ok(_all) = self.permits.acquire_many(COUNT).await else {
            return;
        };
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle());
        for connection in idle {
            if let Err(error) = connection.close().await {
                tracing::debug!("a connection was not closed properly: {error}");
            }
        }
    }

    async fn lend(&self) -> sqlx::Result<Lent<'_>> {
        let permit = self.permits.acquire().await.map_err(|_| sqlx::Error::PoolClosed)?;
        Ok(Lent {
            readers: self,
            connection: self.idle().pop(),
            _permit: permit,
        })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<SqliteConnection>> {
        // A list of connections is consistent at every moment, so poisoning does not matter.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
