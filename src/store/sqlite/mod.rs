//! Stores records in an SQLite file. Several processes may have it open: SQLite's own locks keep them apart. Touches
//! that file and those beside it only.

mod backup;
mod file;
#[expect(clippy::duplicate_mod, reason = "compiled for each database")]
#[path = "../sql/mod.rs"]
mod sql;

mod readers;
mod writer;

use std::{fmt, path::Path, time::Duration};

use futures::{StreamExt, future::BoxFuture, stream::BoxStream};
use kiln_reserve::Reserve;
use sqlx::{
    ConnectOptions, Sqlite, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

pub use self::backup::{Origin as BackupOrigin, backup, restore};
use super::{Lock, News, PlaceLock, Result, fault, measured};

/// How long a statement waits for another process to finish writing.
const BUSY_TIMEOUT: Duration = Duration::from_secs(15);

/// The database that [`sql`] is compiled for.
type Db = Sqlite;

/// The store that [`sql`] is compiled for.
type ThisStore = SqliteStore;

/// The connections that [`sql`] reads with.
type Readers = readers::Readers;

/// The SQL function for the larger of two numbers.
const LATEST: &str = "max";

/// The database's own clock, in microseconds since 1970: days since noon in Greenwich on November 24, 4714 B.C.
const CLOCK: &str = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)";

/// Whether servers on other hosts may use such a database, too.
const IS_SHARED: bool = false;

/// Records in an SQLite file.
pub struct SqliteStore {
    file: file::DatabaseFile,
    reserve: Reserve,
    writer: writer::Writer,
    readers: Readers,
}

impl SqliteStore {
    /// Opens the file, creating it if necessary, and brings its tables up to date.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](super::StoreError::Unavailable) when the file cannot be used: it is not a database, it belongs
    /// to a newer Kiln, or it is on a network file system, where SQLite's locks do not hold.
    pub async fn open(path: &Path) -> Result<Self> {
        let file = file::DatabaseFile::at(path).await?;
        let options = SqliteConnectOptions::new()
            .filename(file.path())
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            .disable_statement_logging();
        // Otherwise two processes would both find the tables missing and create them.
        let lock = file.lock().await?;
        let mut connection = options.connect().await.map_err(|error| file.fault(error))?;
        sqlx::migrate!("src/store/sqlite/migrations")
            .run(&mut connection)
            .await
            .map_err(|error| fault::migration(&file, &error))?;
        drop(lock);
        let readers = Readers::open(&options.clone().pragma("query_only", "ON")).await?;
        let writer = writer::Writer::start(connection, options);
        let reserve = Reserve::of(file.path());
        Ok(Self {
            file,
            reserve,
            writer,
            readers,
        })
    }

    /// Runs `work` in one transaction, unless the rest of the disk is kept for others. There is one writer, so every
    /// transaction is exclusive.
    async fn write<T, W>(&self, lock: Lock, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        match self.reserve.room() {
            // A closed database has no log, and says itself that it is closed.
            Err(error) if !self.writer.is_closed() => measured::write(async { Err(self.file.fault(error)) }).await,
            _ => self.write_from_reserve(lock, work).await,
        }
    }

    /// Runs `work` in one transaction, for which blocks of the disk are kept: it removes records, or ends what uses the
    /// disk.
    async fn write_from_reserve<T, W>(&self, _: Lock, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        measured::write(self.writer.write(work)).await
    }

    /// Runs one statement that writes. Returns the number of changed rows.
    async fn write_one(&self, statement: sqlx::QueryBuilder<Sqlite>) -> Result<u64> {
        self.write(Lock::Shared, |db| execute(db, statement)).await
    }

    /// As [`Self::write_one`], with the blocks that are kept. Returns the number of changed rows.
    async fn write_one_from_reserve(&self, statement: sqlx::QueryBuilder<Sqlite>) -> Result<u64> {
        self.write_from_reserve(Lock::Shared, |db| execute(db, statement)).await
    }

    /// Nothing: servers on other hosts cannot use the file.
    #[expect(clippy::unused_async, reason = "the other database asks its server")]
    async fn place_lock(&self, _: &str, _: Duration) -> Result<Option<PlaceLock>> {
        Ok(Some(PlaceLock { _transaction: None }))
    }

    /// Nothing, for ever.
    #[expect(clippy::unused_async, reason = "the other database asks its server")]
    async fn listen(&self) -> Result<BoxStream<'static, Result<News>>> {
        Ok(futures::stream::pending().boxed())
    }

    /// Connections for reading.
    fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Waits for running operations.
    async fn finish(&self) {
        self.writer.close().await;
        self.readers.close().await;
    }
}

fn execute(db: &mut SqliteConnection, mut statement: sqlx::QueryBuilder<Sqlite>) -> BoxFuture<'_, Result<u64>> {
    Box::pin(async move { Ok(statement.build().execute(db).await?.rows_affected()) })
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteStore").field(&self.file.path()).finish()
    }
}

#[cfg(test)]
mod tests;
