//! The database of names. Several processes may have it open: SQLite's own locks keep them apart.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::{
    Connection, Sqlite, SqliteConnection, SqlitePool, Transaction,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use super::{EmbeddedError, directory::Directory, fault::Result};

/// How long a statement waits for another process to finish writing.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections that read at the same time.
const READERS: u32 = 4;

/// A transaction that may write.
pub(super) type Write = Transaction<'static, Sqlite>;

/// A consistent view, for reading.
pub(super) type Read = Transaction<'static, Sqlite>;

/// Connections to the database.
#[derive(Debug, Clone)]
pub(super) struct Database {
    writer: SqlitePool,
    readers: SqlitePool,
}

impl Database {
    /// Opens the database and brings its tables up to date. To be called under [`Directory::lock`].
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
        sqlx::migrate!("migrations/embedded-s3").run(&writer).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .connect_with(options.pragma("query_only", "ON"))
            .await?;
        Ok(Self { writer, readers })
    }

    /// Begins to write. Takes the write lock at once: a transaction that begins by reading cannot be made to wait
    /// for another writer later, it fails.
    pub(super) async fn write(&self) -> Result<Write> {
        Ok(self.writer.begin_with("BEGIN IMMEDIATE").await?)
    }

    /// Begins to read. Everything read until the end is from one moment.
    pub(super) async fn read(&self) -> Result<Read> {
        Ok(self.readers.begin().await?)
    }

    /// Waits for running statements and closes.
    pub(super) async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// SQLite ends a transaction by itself when the disk is full. sqlx does not notice, and would take every later one on
/// the connection for a nested one: such a connection is better closed.
async fn is_usable(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    // Waits for a rollback that is under way.
    connection.ping().await?;
    Ok(!connection.is_in_transaction())
}

/// Microseconds since 1970.
pub(super) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A moment out of the database, as S3 answers it.
pub(super) fn timestamp(us: i64) -> s3s::dto::Timestamp {
    (UNIX_EPOCH + Duration::from_micros(us.unsigned_abs())).into()
}

/// SQLite counts in signed numbers. No file is as large as the difference.
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
        // As SQLite does by itself when the disk is full.
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
