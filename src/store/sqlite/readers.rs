//! A small pool of connections that read the database.
//!
//! Each statement is run by a task. A caller that rests, as a future does that is not polled while its neighbour is awaited, would
//! otherwise keep a connection, or its place in the queue for one, from all others. sqlx's own pool leaves that to its callers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use sqlx::{
    ConnectOptions, Connection, Execute, Executor, SqlStr, Sqlite, SqliteConnection,
    sqlite::{SqliteArguments, SqliteConnectOptions, SqliteRow},
};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::task::AbortOnDropHandle;

use crate::store::measured::read as measured;

/// The number of connections, and so of concurrent reads.
const COUNT: u32 = 2;

/// Connections, each lent to one task at a time.
pub(super) struct Readers(Arc<Pool>);

struct Pool {
    /// One permit for each idle connection.
    permits: Semaphore,
    idle: Mutex<Vec<SqliteConnection>>,
}

/// A connection that returns to the pool when dropped.
struct Lent<'p> {
    pool: &'p Pool,
    connection: Option<SqliteConnection>,
    // Dropped last, so that the connection is back before the next task gets the permit.
    _permit: SemaphorePermit<'p>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.pool.idle().extend(self.connection.take());
    }
}

/// A statement and its arguments.
type Statement = (SqlStr, Option<SqliteArguments>);

fn statement<'q>(mut query: impl Execute<'q, Sqlite>) -> sqlx::Result<Statement> {
    let arguments = query.take_arguments().map_err(sqlx::Error::Encode)?;
    Ok((query.sql(), arguments))
}

impl Readers {
    /// Opens all connections.
    pub(super) async fn open(options: &SqliteConnectOptions) -> sqlx::Result<Self> {
        let mut idle = Vec::new();
        for _ in 0..COUNT {
            idle.push(options.connect().await?);
        }
        Ok(Self(Arc::new(Pool {
            permits: Semaphore::new(idle.len()),
            idle: Mutex::new(idle),
        })))
    }

    /// The rows that a statement finds.
    pub(super) async fn fetch_all<'q>(&self, query: impl Execute<'q, Sqlite>) -> sqlx::Result<Vec<SqliteRow>> {
        let statement = statement(query)?;
        self.read(|connection| connection.fetch_all(statement)).await
    }

    /// The row that a statement finds, if it finds one.
    pub(super) async fn fetch_optional<'q>(&self, query: impl Execute<'q, Sqlite>) -> sqlx::Result<Option<SqliteRow>> {
        let statement = statement(query)?;
        self.read(|connection| connection.fetch_optional(statement)).await
    }

    /// The row that a statement always finds.
    pub(super) async fn fetch_one<'q>(&self, query: impl Execute<'q, Sqlite>) -> sqlx::Result<SqliteRow> {
        self.fetch_optional(query).await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// Runs `work` in a task, which ends with the caller.
    async fn read<T, W>(&self, work: W) -> sqlx::Result<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, sqlx::Result<T>> + Send + 'static,
    {
        let pool = Arc::clone(&self.0);
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut lent = pool.lend().await?;
            work(lent.connection.as_mut().ok_or(sqlx::Error::PoolClosed)?).await
        }));
        measured(async { task.await.map_err(|_| sqlx::Error::WorkerCrashed)? }).await
    }

    /// Waits until all connections are back, and closes them.
    pub(super) async fn close(&self) {
        let Ok(_all) = self.0.permits.acquire_many(COUNT).await else {
            return;
        };
        self.0.permits.close();
        let idle = std::mem::take(&mut *self.0.idle());
        for connection in idle {
            if let Err(error) = connection.close().await {
                tracing::debug!("a connection was not closed properly: {error}");
            }
        }
    }
}

impl Pool {
    async fn lend(&self) -> sqlx::Result<Lent<'_>> {
        let permit = self.permits.acquire().await.map_err(|_| sqlx::Error::PoolClosed)?;
        Ok(Lent {
            pool: self,
            connection: self.idle().pop(),
            _permit: permit,
        })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<SqliteConnection>> {
        // A list of connections is consistent at every moment, so poisoning does not matter.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
