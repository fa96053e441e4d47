//! An embedded S3 server, for machines that have no S3 service. It touches its data directory, and listens on a
//! loopback address.
//!
//! `s3s` implements the protocol; this module is the storage behind it. Bytes are kept in files, names in SQLite:
//!
//! ```text
//! <dir>/credentials.json   the access key, mode 0600
//! <dir>/names.sqlite       buckets, objects, multipart uploads
//! <dir>/bodies/<random>    bytes of objects and parts; no file is named after a key, so no key can do harm
//! <dir>/incoming/          bytes that are still being received
//! ```
//!
//! A write is durable when it is answered: the body is synced and renamed before its record is committed with full
//! synchronisation. Completing an upload and copying an object change records only and move no bytes.
//!
//! Several servers, in one process or in several, may serve one directory at the same time.

mod attributes;
mod bodies;
mod checksums;
mod chunked;
mod conditions;
mod connections;
mod database;
mod directory;
mod fault;
mod front;
mod listing;
mod names;
mod on_buckets;
mod on_objects;
mod on_settings;
mod on_uploads;
mod places;
mod refusals;
mod service;
mod sums;
mod uploads;

use std::{
    collections::HashSet,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kiln_records::{Code, Failure};
use s3s::{
    S3Error,
    auth::SimpleAuth,
    config::{S3Config, StaticConfigProvider},
    service::S3ServiceBuilder,
};
use tokio::{net::TcpListener, task::spawn_blocking};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::directory::Credentials;
use self::{
    bodies::Bodies,
    database::{Database, Disk},
    directory::Directory,
    front::{Front, Signed},
    places::Limits,
    service::Service,
};

/// The region that the server reports. Requests signed for any region are accepted.
const REGION: &str = "us-east-1";

/// The largest XML document of a request, in bytes (4 MiB): the list of 10 000 parts with their checksums.
const MOST_XML: usize = 4 << 20;

/// How long [`EmbeddedS3::shutdown`] waits for running requests.
const GRACE: Duration = Duration::from_secs(10);

/// Why an embedded server did not start.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// The address can be reached from other machines, and the protocol is not encrypted.
    #[error("the embedded S3 server listens on a loopback address only, not on {0}")]
    NotLoopback(SocketAddr),
    /// The server cannot listen on the address.
    #[error("cannot listen on {address} for the embedded S3 server: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The data directory cannot be used.
    #[error("cannot use {} for the embedded S3 server: {source}", path.display())]
    Directory {
        /// The path that failed.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file with the access key is damaged.
    #[error("cannot read the access key in {}: {source}", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// The database cannot be used.
    #[error("cannot open the embedded S3 server's database: {0}")]
    Database(#[from] sqlx::Error),
    /// The database has tables that this version does not know, or its tables cannot be created.
    #[error("cannot prepare the embedded S3 server's database: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// Old files could not be removed.
    #[error("cannot remove the remains of an earlier embedded S3 server: {0}")]
    Sweep(S3Error),
}

impl From<EmbeddedError> for Failure {
    fn from(error: EmbeddedError) -> Self {
        match &error {
            EmbeddedError::NotLoopback(_) => Failure::new(Code::S3EmbeddedAddress, &error)
                .hint("use an address such as 127.0.0.1:9000, or configure an S3 service that other hosts can reach"),
            EmbeddedError::Listen { .. } => {
                Failure::new(Code::S3EmbeddedAddress, &error).hint("choose another port, or 0 for any free one")
            }
            EmbeddedError::Directory { source, .. } => Failure::io(&error, source),
            EmbeddedError::Migrate(sqlx::migrate::MigrateError::VersionMissing(_)) => {
                Failure::new(Code::S3Embedded, &error)
                    .hint("the data was written by a newer Kiln, or by one before 0.1.0; use that version")
            }
            _ => Failure::new(Code::S3Embedded, &error),
        }
    }
}

/// A running server. It stops when dropped; [`EmbeddedS3::shutdown`] also waits until it has stopped.
#[derive(Debug)]
pub struct EmbeddedS3 {
    address: SocketAddr,
    credentials: Credentials,
    database: Database,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl EmbeddedS3 {
    /// Serves a directory, created if necessary, on a loopback address. Port 0 picks a free port.
    pub async fn start(dir: &Path, address: SocketAddr) -> Result<Self, EmbeddedError> {
        Self::start_within(dir, address, Limits::default()).await
    }

    /// Like [`Self::start`], with at most so many connections at a time. Their requests have as many files open.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub async fn start_with(dir: &Path, address: SocketAddr, connections: usize) -> Result<Self, EmbeddedError> {
        Self::start_within(dir, address, Limits::of(connections)).await
    }

    async fn start_within(dir: &Path, address: SocketAddr, limits: Limits) -> Result<Self, EmbeddedError> {
        if !address.ip().is_loopback() {
            return Err(EmbeddedError::NotLoopback(address));
        }
        let listen = |source| EmbeddedError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;

        let directory = Directory::open(dir)?;
        let lock = {
            let directory = directory.clone();
            let waiting = spawn_blocking(move || directory.lock()).await;
            waiting.map_err(|error| listen(io::Error::other(error)))??
        };
        let credentials = directory.credentials()?;
        let database = Database::open(&directory).await?;
        let bodies = Bodies::new(&directory);
        sweep(&database, &bodies)
            .await
            .map_err(|fault| EmbeddedError::Sweep(fault.into()))?;
        drop(lock);

        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let service = Service::new(database.clone(), bodies, REGION, tasks.clone());
        let mut protocol = S3ServiceBuilder::new(service);
        protocol.set_auth(SimpleAuth::from_single(
            credentials.access_key.as_str(),
            credentials.secret_key.expose(),
        ));
        protocol.set_access(Signed);
        let mut config = S3Config::default();
        config.xml_max_body_size = MOST_XML;
        protocol.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        let front = Front::new(protocol.build(), limits);
        tasks.spawn(connections::accept(
            listener,
            front,
            limits,
            stop.clone(),
            tasks.clone(),
        ));
        Ok(Self {
            address,
            credentials,
            database,
            stop,
            tasks,
        })
    }

    /// The server's address, such as `http://127.0.0.1:9000`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The key that signs requests.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Stops accepting requests, gives running ones a few seconds to finish, and closes the database.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(GRACE, self.tasks.wait()).await.is_err() {
            tracing::warn!("embedded S3: requests were still in progress at shutdown");
        }
        // Writes in progress hold connections, so this waits for them too.
        if tokio::time::timeout(GRACE, self.database.close()).await.is_err() {
            tracing::warn!("embedded S3: the database was still in use at shutdown");
        }
    }
}

impl Drop for EmbeddedS3 {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Removes files left by crashes, and records of uploads completed long ago.
async fn sweep(database: &Database, bodies: &Bodies) -> fault::Result<()> {
    let mut db = database.write_to(Disk::Reserve).await?;
    uploads::forget_completed(&mut db).await?;
    // Files first, records second: a body that gets its record in between is not mistaken for an orphan.
    let old = {
        let bodies = bodies.clone();
        spawn_blocking(move || bodies.old()).await??
    };
    let orphans: HashSet<String> = names::unneeded(&mut db, old.into_iter().collect())
        .await?
        .into_iter()
        .collect();
    db.commit().await?;
    let bodies = bodies.clone();
    spawn_blocking(move || bodies.sweep(&orphans)).await??;
    Ok(())
}
