//! The database of names: connections and transactions. Touches the SQLite file only. Several processes may have it
//! open: SQLite's own locks keep them apart.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kiln_reserve::Reserve;
use sqlx::{
    Connection, Sqlite, SqliteConnection, SqlitePool, Transaction,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use super::{
    EmbeddedError,
    directory::Directory,
    fault::{Fault, Result},
};

/// How long a statement waits for another process to finish writing.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// The number of connections for reading.
const READERS: u32 = 4;

/// A transaction that may write.
pub(super) type Write = Transaction<'static, Sqlite>;

/// A transaction that reads a consistent view.
pub(super) type Read = Transaction<'static, Sqlite>;

/// The part of the disk that a change may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disk {
    /// What is free for all.
    Free,
    /// Also the blocks that are kept for removals.
    Reserve,
}

/// Connections to the database.
#[derive(Debug, Clone)]
pub(super) struct Database {
    reserve: Reserve,
    writer: SqlitePool,
    readers: SqlitePool,
}

impl Database {
    /// Opens the database and brings its tables up to date. Must be called under [`Directory::lock`].
    pub(super) async fn open(directory: &Directory) -> std::result::Result<Self, EmbeddedError> {
        let options = SqliteConnectOptions::new()
            .filename(directory.database())
            .create_if_missing(true)
            .foreign_keys(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT);
        let writer = SqlitePoolOptions::new()
            .max_connections(1)
            .after_release(|connection, _| Box::pin(is_usable(connection)))
            .connect_with(options.clone())
            .await?;
        sqlx::migrate!("./migrations").run(&writer).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .connect_with(options.pragma("query_only", "ON"))
            .await?;
        Ok(Self {
            reserve: Reserve::of(&directory.database()),
            writer,
            readers,
        })
    }

    /// Begins a transaction that may write, where the disk has room for it.
    pub(super) async fn write(&self) -> Result<Write> {
        self.write_to(Disk::Free).await
    }

    /// Begins a transaction that may write to this part of the disk. Takes the write lock at once: a transaction that
    /// begins by reading and writes later cannot wait for another writer; it fails.
    pub(super) async fn write_to(&self, disk: Disk) -> Result<Write> {
        if disk == Disk::Free {
            self.reserve.room().map_err(Fault::room)?;
        }
        Ok(self.writer.begin_with("BEGIN IMMEDIATE").await?)
    }

    /// Begins a transaction that reads. It sees one moment of the database throughout.
    pub(super) async fn read(&self) -> Result<Read> {
        Ok(self.readers.begin().await?)
    }

    /// Waits for running statements, and closes the connections.
    pub(super) async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// Whether a connection can be used again. SQLite ends a transaction by itself when the disk is full. sqlx does not
/// notice, and would treat every later one on the connection as nested, so such a connection is closed.
async fn is_usable(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    // Waits for a rollback in progress.
    connection.ping().await?;
    Ok(!connection.is_in_transaction())
}

/// Microseconds since 1970.
pub(super) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A time from the database in the form that S3 returns.
pub(super) fn timestamp(us: i64) -> s3s::dto::Timestamp {
    (UNIX_EPOCH + Duration::from_micros(us.unsigned_abs())).into()
}

/// SQLite's numbers are signed. No file is large enough for the difference to matter.
pub(super) fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_transaction_that_sqlite_ended_spoils_none_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::open(&Directory::open(dir.path()).unwrap()).await.unwrap();
        let mut db = database.write().await.unwrap();
        // SQLite does this by itself when the disk is full.
        sqlx::query("ROLLBACK").execute(&mut *db).await.unwrap();
        assert!(db.commit().await.is_err());
        let mut db = database.write().await.unwrap();
        sqlx::query("INSERT INTO bucket VALUES ('b', 0)")
            .execute(&mut *db)
            .await
            .unwrap();
        db.commit().await.unwrap();
        let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM bucket")
            .fetch_one(&mut *database.read().await.unwrap())
            .await
            .unwrap();
        assert_eq!(seen, 1);
    }
}
