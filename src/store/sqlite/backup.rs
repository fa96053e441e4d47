//! Copies records while they are in use, and puts a copy back. Touches these two files only.
//!
//! A backup is a database of SQLite itself, with one more table that says where it is from.

use std::{
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use kiln_records::{Code, Failure};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Row, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tempfile::{TempDir, TempPath};

use super::{BUSY_TIMEOUT, SqliteStore};

/// The first bytes of a database.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The name of a file that is not complete yet, in a directory of its own.
const NAME: &str = "records.sqlite";

/// What a backup says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The id of the server, by which its jobs are its own.
    pub server: String,
    /// The version of Kiln that made it.
    pub kiln: String,
    /// When it was made.
    pub made: String,
}

/// Copies the records in the file `from` to the new file `to`, as they are at one moment.
///
/// # Errors
///
/// `backup_exists` when there is such a file, `store_unavailable` when there are no records, or they are damaged.
pub async fn backup(from: &Path, to: &Path, origin: &Origin) -> Result<(), Failure> {
    refuse_existing(to)?;
    let dir = beside(to)?;
    let partial = dir.path().join(NAME);
    let mut source = options(from, false)
        .connect()
        .await
        .map_err(|error| unusable(from, &error))?;
    // Outside a transaction of ours: it reads in one of its own, so servers go on writing.
    let copied = sqlx::query("VACUUM INTO $1")
        .bind(text(&partial)?)
        .execute(&mut source)
        .await;
    let closed = source.close().await;
    copied.and(closed).map_err(|error| unusable(from, &error))?;
    let named = async {
        let mut copy = options(&partial, false).connect().await?;
        let statement = "CREATE TABLE kiln_backup (server TEXT NOT NULL, kiln TEXT NOT NULL, made TEXT NOT NULL)";
        sqlx::query(statement).execute(&mut copy).await?;
        sqlx::query("INSERT INTO kiln_backup (server, kiln, made) VALUES ($1, $2, $3)")
            .bind(&origin.server)
            .bind(&origin.kiln)
            .bind(&origin.made)
            .execute(&mut copy)
            .await?;
        let found = check(&mut copy).await?;
        copy.close().await.map(|()| found)
    };
    match named.await.map_err(|error| unusable(&partial, &error))? {
        None => keep(&partial, to),
        Some(damage) => Err(Failure::new(
            Code::StoreDamaged,
            format!("{} is damaged: {damage}", from.display()),
        )),
    }
}

/// Puts a backup where no records are yet, if `accept` has no objection to its origin. Returns the origin.
///
/// # Errors
///
/// `backup_exists` when there are records, `backup_invalid` when the file is no backup, is damaged, or is that of a newer
/// version.
pub async fn restore(
    from: &Path,
    to: &Path,
    accept: impl FnOnce(&Origin) -> Result<(), Failure>,
) -> Result<Origin, Failure> {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = to.as_os_str().to_owned();
        name.push(suffix);
        refuse_existing(Path::new(&name))?;
    }
    let invalid = |why: &dyn std::fmt::Display| {
        Failure::new(
            Code::BackupInvalid,
            format!("{} cannot be restored: {why}", from.display()),
        )
    };
    let dir = beside(to)?;
    let partial = dir.path().join(NAME);
    let mut head = Vec::new();
    let failed = |error: io::Error| Failure::io("cannot read the backup", &error);
    fs_err::File::open(from)
        .map_err(failed)?
        .take(16)
        .read_to_end(&mut head)
        .map_err(failed)?;
    if head != MAGIC {
        return Err(invalid(&"it is no backup by `kiln backup`"));
    }
    fs_err::copy(from, &partial).map_err(|error| Failure::io("cannot copy the backup", &error))?;
    private(&partial)?;
    let read = async {
        let mut copy = options(&partial, true).connect().await?;
        if let Some(damage) = check(&mut copy).await? {
            return Ok(Err(format!("it is damaged: {damage}")));
        }
        let there = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'kiln_backup'";
        let count: i64 = sqlx::query_scalar(there).fetch_one(&mut copy).await?;
        if count == 0 {
            return Ok(Err(
                "it is no backup by `kiln backup`, but the file of a server".to_owned()
            ));
        }
        let row = sqlx::query("SELECT server, kiln, made FROM kiln_backup")
            .fetch_one(&mut copy)
            .await?;
        let origin = Origin {
            server: row.try_get(0)?,
            kiln: row.try_get(1)?,
            made: row.try_get(2)?,
        };
        sqlx::query("DROP TABLE kiln_backup").execute(&mut copy).await?;
        copy.close().await?;
        Ok::<_, sqlx::Error>(Ok(origin))
    };
    let origin = read
        .await
        .map_err(|error| invalid(&error))?
        .map_err(|why| invalid(&why))?;
    // Brings the tables up to date, and refuses those of a newer version.
    let store = SqliteStore::open(&partial).await.map_err(|error| invalid(&error))?;
    crate::store::Store::close(&store).await;
    drop(store);
    let (found, expected) = (schema(&partial).await, fresh_schema(&partial).await);
    if found.map_err(|error| invalid(&error))? != expected.map_err(|error| invalid(&error))? {
        return Err(invalid(&"its tables are not those of Kiln"));
    }
    accept(&origin)?;
    keep(&partial, to)?;
    Ok(origin)
}

/// The statements that made everything in a database.
async fn schema(path: &Path) -> Result<Vec<(String, Option<String>)>, sqlx::Error> {
    let mut database = options(path, true).connect().await?;
    let statement = "SELECT type || ' ' || name, sql FROM sqlite_master ORDER BY 1, 2";
    let rows = sqlx::query_as(statement).fetch_all(&mut database).await?;
    database.close().await?;
    Ok(rows)
}

/// Those of new tables, which are made beside the file for a moment.
async fn fresh_schema(beside: &Path) -> Result<Vec<(String, Option<String>)>, Failure> {
    let failed = |error: io::Error| Failure::io("cannot compare the tables", &error);
    let dir = tempfile::tempdir_in(beside.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    let path = dir.path().join("fresh.sqlite");
    let store = SqliteStore::open(&path).await?;
    crate::store::Store::close(&store).await;
    drop(store);
    schema(&path).await.map_err(|error| unusable(&path, &error))
}

/// The first sign of damage.
async fn check(database: &mut SqliteConnection) -> Result<Option<String>, sqlx::Error> {
    for pragma in ["PRAGMA integrity_check(1)", "PRAGMA foreign_key_check"] {
        let rows = sqlx::query(AssertSqlSafe(pragma)).fetch_all(&mut *database).await?;
        if let Some(row) = rows.first() {
            let said: String = row.try_get(0)?;
            if said != "ok" {
                return Ok(Some(said));
            }
        }
    }
    Ok(None)
}

fn options(path: &Path, distrusted: bool) -> SqliteConnectOptions {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging();
    if distrusted {
        // Nothing in the file is run but what Kiln asks for.
        options
            .pragma("trusted_schema", "OFF")
            .journal_mode(SqliteJournalMode::Delete)
    } else {
        options
    }
}

/// A directory beside `to` for files that are not complete yet. It goes when this is dropped.
fn beside(to: &Path) -> Result<TempDir, Failure> {
    let dir = match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    tempfile::Builder::new()
        .prefix(".kiln-backup-")
        .tempdir_in(dir)
        .map_err(|error| Failure::io("cannot write the records", &error))
}

/// Gives a complete file its name.
fn keep(partial: &Path, to: &Path) -> Result<(), Failure> {
    private(partial)?;
    let synced = fs_err::File::open(partial).and_then(|file| file.sync_all());
    synced.map_err(|error| Failure::io("cannot write the records", &error))?;
    let named = TempPath::try_from_path(partial).map_err(|error| Failure::io("cannot write the records", &error))?;
    match named.persist_noclobber(to) {
        Ok(()) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => refuse_existing(to),
        Err(error) => Err(Failure::io("cannot write the records", &error.error)),
    }
}

/// Only its owner reads it: it has the digests of tokens.
fn private(path: &Path) -> Result<(), Failure> {
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|error| Failure::io("cannot write the records", &error))
}

fn refuse_existing(path: &Path) -> Result<(), Failure> {
    match fs_err::symlink_metadata(path) {
        Ok(_) => Err(Failure::new(
            Code::BackupExists,
            format!("{} exists already", path.display()),
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::io("cannot look for the file", &error)),
    }
}

fn unusable(path: &Path, error: &sqlx::Error) -> Failure {
    Failure::new(Code::StoreUnavailable, format!("{}: {error}", path.display()))
}

fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str()
        .ok_or_else(|| Failure::new(Code::Io, format!("{} is no text in UTF-8", path.display())))
}
