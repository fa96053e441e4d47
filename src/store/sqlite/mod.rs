//! Records in an SQLite file. Several processes may have it open: SQLite's own locks keep them apart.

mod file;
#[expect(clippy::duplicate_mod, reason = "compiled for each database")]
#[path = "../sql/mod.rs"]
mod sql;

use std::{fmt, path::Path, time::Duration};

use sqlx::{
    Connection, Pool, Sqlite, SqliteConnection, Transaction,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use super::{Lock, Result, fault};

/// How long a statement waits for another process to finish writing.
const BUSY_TIMEOUT: Duration = Duration::from_secs(15);

/// Connections that read at the same time.
const READERS: u32 = 4;

/// What [`sql`] is compiled for.
type Db = Sqlite;

/// See [`sql`].
type ThisStore = SqliteStore;

/// The function that tells the larger of two numbers.
const LATEST: &str = "max";

/// Records in an SQLite file.
pub struct SqliteStore {
    file: file::DatabaseFile,
    writer: Pool<Sqlite>,
    readers: Pool<Sqlite>,
}

impl SqliteStore {
    /// Opens the file, or makes it, and brings its tables up to date.
    ///
    /// # Errors
    ///
    /// [`super::StoreError::Unavailable`] when the file cannot be used: it is no database or that of a newer Kiln, or it is on a
    /// network file system, where SQLite's locks do not hold.
    pub async fn open(path: &Path) -> Result<Self> {
        let file = file::DatabaseFile::at(path).await?;
        let options = SqliteConnectOptions::new()
            .filename(file.path())
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT);
        // One writer: others in this process wait for it in turn, which is fairer and quicker than SQLite's polling.
        let writer = SqlitePoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .after_release(|connection, _| Box::pin(is_usable(connection)))
            .connect_with(options.clone())
            .await
            .map_err(|error| file.fault(error))?;
        // Two processes would both find the tables missing and both make them.
        let lock = file.lock().await?;
        sqlx::migrate!("migrations/records-sqlite")
            .run(&writer)
            .await
            .map_err(|error| fault::migration(&file, &error))?;
        drop(lock);
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .test_before_acquire(false)
            .connect_with(options.pragma("query_only", "ON"))
            .await?;
        Ok(Self { file, writer, readers })
    }

    /// Begins to write. Takes the write lock at once: a transaction that begins by reading cannot be made to wait for
    /// another writer later, it fails. There is one writer, so it is always alone.
    async fn write(&self, _: Lock) -> Result<Transaction<'static, Sqlite>> {
        Ok(self.writer.begin_with("BEGIN IMMEDIATE").await?)
    }

    /// For single statements that write.
    fn writers(&self) -> &Pool<Sqlite> {
        &self.writer
    }

    /// For single statements that read.
    fn readers(&self) -> &Pool<Sqlite> {
        &self.readers
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteStore").field(&self.file.path()).finish()
    }
}

/// SQLite ends a transaction by itself when the disk is full. sqlx does not notice, and would take every later one on
/// the connection for a nested one: such a connection is better closed.
async fn is_usable(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    // Waits for a rollback that is under way.
    connection.ping().await?;
    Ok(!connection.is_in_transaction())
}

#[cfg(test)]
mod tests;
