//! Records in an SQLite file. Several processes may have it open: SQLite's own locks keep them apart.

mod file;
#[expect(clippy::duplicate_mod, reason = "compiled for each database")]
#[path = "../sql/mod.rs"]
mod sql;

mod readers;
mod writer;

use std::{fmt, path::Path, time::Duration};

use futures::future::BoxFuture;
use sqlx::{
    ConnectOptions, Sqlite, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use super::{Lock, Result, fault};

/// How long a statement waits for another process to finish writing.
const BUSY_TIMEOUT: Duration = Duration::from_secs(15);

/// What [`sql`] is compiled for.
type Db = Sqlite;

/// See [`sql`].
type ThisStore = SqliteStore;

/// What reads.
type Readers = readers::Readers;

/// The function that tells the larger of two numbers.
const LATEST: &str = "max";

/// Records in an SQLite file.
pub struct SqliteStore {
    file: file::DatabaseFile,
    writer: writer::Writer,
    readers: Readers,
}

impl SqliteStore {
    /// Opens the file, or makes it, and brings its tables up to date.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](super::StoreError::Unavailable) when the file cannot be used: it is no database or that of a
    /// newer Kiln, or it is on a network file system, where SQLite's locks do not hold.
    pub async fn open(path: &Path) -> Result<Self> {
        let file = file::DatabaseFile::at(path).await?;
        let options = SqliteConnectOptions::new()
            .filename(file.path())
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            .disable_statement_logging();
        // Two processes would both find the tables missing and both make them.
        let lock = file.lock().await?;
        let mut connection = options.connect().await.map_err(|error| file.fault(error))?;
        sqlx::migrate!("migrations/records-sqlite")
            .run(&mut connection)
            .await
            .map_err(|error| fault::migration(&file, &error))?;
        drop(lock);
        let readers = Readers::open(&options.clone().pragma("query_only", "ON")).await?;
        let writer = writer::Writer::start(connection, options);
        Ok(Self { file, writer, readers })
    }

    /// Writes something in one transaction. There is one writer, so it is always alone.
    async fn write<T, W>(&self, _: Lock, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        self.writer.write(work).await
    }

    /// Says one thing that writes. Answers how many rows it changed.
    async fn write_one(&self, mut statement: sqlx::QueryBuilder<Sqlite>) -> Result<u64> {
        self.writer
            .write(|db| Box::pin(async move { Ok(statement.build().execute(db).await?.rows_affected()) }))
            .await
    }

    /// For what only reads.
    fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Finishes what is under way.
    async fn finish(&self) {
        self.writer.close().await;
        self.readers.close().await;
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteStore").field(&self.file.path()).finish()
    }
}

#[cfg(test)]
mod tests;
