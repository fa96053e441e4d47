//! Stores records in a PostgreSQL database, which several servers may share. Touches that database only.

#[expect(clippy::duplicate_mod, reason = "compiled for each database")]
#[path = "../sql/mod.rs"]
mod sql;

use std::{fmt, str::FromStr, time::Duration};

use futures::{StreamExt, future::BoxFuture, stream::BoxStream};
use sqlx::{
    ConnectOptions, Connection, Execute, Executor, PgConnection, Pool, Postgres, QueryBuilder, Row,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions, PgRow},
};

use super::{Lock, News, PlaceLock, Result, StoreError, fault, measured};

/// How long to wait for the server, or for a free connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for another server that gives its jobs room at a place.
const PLACE_PATIENCE: Duration = Duration::from_secs(2);

/// The channel on which the triggers of the jobs' table tell of changes.
const JOBS_CHANNEL: &str = "kiln_jobs";

/// The most connections.
const CONNECTIONS: u32 = 16;

/// How long an idle connection is kept: each is a process of the server.
const IDLE: Duration = Duration::from_mins(1);

/// The first statements on each connection. No statement of Kiln takes long, so a slow one is stuck. A server may be
/// configured to answer before a write is durable; settings stricter than `on` are kept.
const SESSION: &str = "SET statement_timeout = '30s'; SET lock_timeout = '10s'; \
    SET idle_in_transaction_session_timeout = '60s'; SET default_transaction_isolation = 'read committed'; \
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') IN ('off', 'local')";

// Transactions that add or move references share a lock, and those that look for objects without references take it
// exclusively. With row locks only, the latter could doom an object that the former has just begun to refer to.
const BEGIN_SHARED: &str = "BEGIN; SELECT pg_advisory_xact_lock_shared(7740398493674204011)";
const BEGIN_ALONE: &str = "BEGIN; SELECT pg_advisory_xact_lock(7740398493674204011)";

/// The database that [`sql`] is compiled for.
type Db = Postgres;

/// The store that [`sql`] is compiled for.
type ThisStore = PostgresStore;

/// Connections for reading: any of the pool.
struct Readers(Pool<Postgres>);

impl Readers {
    /// The rows that a statement finds.
    async fn fetch_all<'q>(&self, query: impl Execute<'q, Postgres> + 'q) -> sqlx::Result<Vec<PgRow>> {
        measured::read(self.0.fetch_all(query)).await
    }

    /// The row that a statement finds, if it finds one.
    async fn fetch_optional<'q>(&self, query: impl Execute<'q, Postgres> + 'q) -> sqlx::Result<Option<PgRow>> {
        measured::read(self.0.fetch_optional(query)).await
    }

    /// The row that a statement always finds.
    async fn fetch_one<'q>(&self, query: impl Execute<'q, Postgres> + 'q) -> sqlx::Result<PgRow> {
        measured::read(self.0.fetch_one(query)).await
    }
}

/// The SQL function for the larger of two numbers.
const LATEST: &str = "greatest";

/// The database's own clock, in microseconds since 1970.
const CLOCK: &str = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)";

/// Whether servers on other hosts may use such a database, too.
const IS_SHARED: bool = true;

/// Records in a PostgreSQL database.
pub struct PostgresStore {
    place: String,
    pool: Pool<Postgres>,
    readers: Readers,
}

impl PostgresStore {
    /// Connects to `postgres://user:password@host:port/database` and brings its tables up to date.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] when the server cannot be reached or refuses the login, or when the database
    /// belongs to a newer Kiln.
    pub async fn connect(url: &str) -> Result<Self> {
        let mut options = PgConnectOptions::from_str(url)
            .map_err(|error| StoreError::Unavailable(format!("not a PostgreSQL URL: {error}")))?
            .disable_statement_logging();
        if options.get_application_name().is_none() {
            options = options.application_name("kiln");
        }
        let place = place(&options);
        let unreachable = |error: &dyn fmt::Display| StoreError::Unavailable(format!("{place}: {error}"));
        // Not from the pool, which keeps trying until its timeout and then reports only the timeout.
        let mut connection = match tokio::time::timeout(PATIENCE, options.connect()).await {
            Ok(connection) => connection.map_err(|error| unreachable(&error))?,
            Err(_) => return Err(unreachable(&format_args!("no answer within {} s", PATIENCE.as_secs()))),
        };
        sqlx::migrate!("src/store/postgres/migrations")
            .run(&mut connection)
            .await
            .map_err(|error| fault::migration(&place, &error))?;
        connection.close().await?;
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(PATIENCE)
            .idle_timeout(IDLE)
            .after_connect(|connection, _| {
                Box::pin(async move {
                    connection.execute(SESSION).await?;
                    Ok(())
                })
            })
            .connect_lazy_with(options);
        let readers = Readers(pool.clone());
        let store = Self { place, pool, readers };
        store.follow_clock().await?;
        Ok(store)
    }

    /// Runs `work` in one transaction.
    async fn write<T, W>(&self, lock: Lock, work: W) -> Result<T>
    where
        W: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T>>,
    {
        let written = async {
            let mut db = self
                .pool
                .begin_with(match lock {
                    Lock::Shared => BEGIN_SHARED,
                    Lock::Alone => BEGIN_ALONE,
                })
                .await?;
            let answer = work(&mut db).await?;
            db.commit().await?;
            Ok(answer)
        };
        measured::write(written).await
    }

    /// Runs one statement that writes. Returns the number of changed rows.
    async fn write_one(&self, mut statement: sqlx::QueryBuilder<Postgres>) -> Result<u64> {
        let written = async { Ok(statement.build().execute(&self.pool).await?.rows_affected()) };
        measured::write(written).await
    }

    /// As [`Self::write`]: the disk is the database server's business.
    async fn write_from_reserve<T, W>(&self, lock: Lock, work: W) -> Result<T>
    where
        W: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T>>,
    {
        self.write(lock, work).await
    }

    /// As [`Self::write_one`].
    async fn write_one_from_reserve(&self, statement: sqlx::QueryBuilder<Postgres>) -> Result<u64> {
        self.write_one(statement).await
    }

    /// A transaction that has the lock of a place. It takes no row, and ends when it is dropped.
    async fn place_lock(&self, place: &str, longest: Duration) -> Result<Option<PlaceLock>> {
        let mut transaction = self.pool.begin().await?;
        let mut limit = QueryBuilder::new("SELECT set_config('idle_in_transaction_session_timeout', ");
        limit.push_bind(format!("{}ms", longest.as_millis())).push(", true)");
        transaction.execute(limit.build()).await?;
        let until = tokio::time::Instant::now() + PLACE_PATIENCE;
        loop {
            let mut statement = QueryBuilder::new("SELECT pg_try_advisory_xact_lock(hashtextextended(");
            statement
                .push_bind(format!("place {place}"))
                .push(", 7740398493674204011))");
            let row = transaction.fetch_one(statement.build()).await?;
            if row.try_get(0)? {
                return Ok(Some(PlaceLock::held_by(transaction)));
            }
            if tokio::time::Instant::now() > until {
                return Ok(None);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What the triggers of the jobs' table tell, on a connection of its own.
    async fn listen(&self) -> Result<BoxStream<'static, Result<News>>> {
        let mut listener = PgListener::connect_with(&self.pool).await?;
        listener.listen(JOBS_CHANNEL).await?;
        let news = listener.into_stream().filter_map(async |told| match told {
            // A payload in words of a later version is no news for this one.
            Ok(told) => news(told.payload()).map(Ok),
            Err(error) => Some(Err(error.into())),
        });
        Ok(news.boxed())
    }

    /// Connections for reading.
    fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Waits for running operations.
    async fn finish(&self) {
        self.pool.close().await;
    }
}

/// A job's id, and what happened to it.
fn news(payload: &str) -> Option<News> {
    let (job, what) = payload.split_once(' ')?;
    let is_over = matches!(what, "ended" | "deleted");
    let job = job.parse().ok()?;
    Some(News { job, is_over })
}

/// Server and database, without user and password.
fn place(options: &PgConnectOptions) -> String {
    let server = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    format!(
        "PostgreSQL at {server}, database {}",
        options.get_database().unwrap_or(options.get_username())
    )
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.place).finish()
    }
}
