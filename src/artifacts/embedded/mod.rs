//! An S3 server of Kiln's own, for machines that have none.
//!
//! `s3s` speaks the protocol; the storage behind it is here. Bytes lie in files, names in SQLite:
//!
//! ```text
//! <dir>/credentials.json   the access key, mode 0600
//! <dir>/names.sqlite       buckets, objects, multipart uploads
//! <dir>/bodies/<random>    bytes of objects and parts; named by no key, so no key can do harm
//! <dir>/incoming/          bytes still being received
//! ```
//!
//! A write is durable when it is answered: the body is synced and renamed before its record is committed with full
//! synchronisation. Completing an upload and copying an object move records only, never bytes.
//!
//! Several servers, in one process or many, may serve one directory at the same time.

mod attributes;
mod bodies;
mod checksums;
mod conditions;
mod database;
mod directory;
mod fault;
mod listing;
mod names;
mod on_buckets;
mod on_objects;
mod on_uploads;
mod service;
mod uploads;

use std::{
    collections::HashSet,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use s3s::{
    S3Error,
    auth::SimpleAuth,
    service::{S3Service, S3ServiceBuilder},
};
use tokio::{net::TcpListener, task::spawn_blocking};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::directory::Credentials;
use self::{bodies::Bodies, database::Database, directory::Directory, service::Service};
use super::S3Settings;
use crate::records::{Code, Failure};

/// The region that the server says it is in. Requests may be signed for any.
const REGION: &str = "us-east-1";

/// How long [`EmbeddedS3::shutdown`] waits for requests in progress.
const GRACE: Duration = Duration::from_secs(10);

/// Why an embedded server did not start.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// The address can be reached from other machines, but the protocol is not encrypted.
    #[error("the embedded S3 server listens on a loopback address only, not on {0}")]
    NotLoopback(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address} for the embedded S3 server: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The data directory cannot be used.
    #[error("cannot use {} for the embedded S3 server: {source}", path.display())]
    Directory {
        /// What of it.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file with the access key is damaged.
    #[error("cannot read the access key in {}: {source}", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The database cannot be used.
    #[error("cannot open the embedded S3 server's database: {0}")]
    Database(#[from] sqlx::Error),
    /// The database has tables that this version does not know, or they cannot be made.
    #[error("cannot prepare the embedded S3 server's database: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// Old files could not be cleared away.
    #[error("cannot clear away what an earlier embedded S3 server left: {0}")]
    Sweep(S3Error),
}

impl From<EmbeddedError> for Failure {
    fn from(error: EmbeddedError) -> Self {
        match &error {
            EmbeddedError::NotLoopback(_) => Failure::new(Code::S3EmbeddedAddress, &error)
                .hint("give an address such as 127.0.0.1:9000, or configure an S3 service that others can reach"),
            EmbeddedError::Listen { .. } => {
                Failure::new(Code::S3EmbeddedAddress, &error).hint("choose another port, or 0 for any free one")
            }
            EmbeddedError::Directory { source, .. } => Failure::io(&error, source),
            EmbeddedError::Migrate(sqlx::migrate::MigrateError::VersionMissing(_)) => {
                Failure::new(Code::S3Embedded, &error).hint("the data was written by a newer Kiln; use that one")
            }
            _ => Failure::new(Code::S3Embedded, &error),
        }
    }
}

/// A running server. It stops when dropped; [`EmbeddedS3::shutdown`] also waits for that.
#[derive(Debug)]
pub struct EmbeddedS3 {
    address: SocketAddr,
    credentials: Credentials,
    database: Database,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl EmbeddedS3 {
    /// Serves the directory, made if it is not there, on a loopback address; port 0 means any free one.
    pub async fn start(dir: &Path, address: SocketAddr) -> Result<Self, EmbeddedError> {
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
        tasks.spawn(accept(listener, protocol.build(), stop.clone(), tasks.clone()));
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

    /// The key to sign requests with.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Settings for a client of this server.
    pub fn settings(&self) -> S3Settings {
        S3Settings {
            endpoint: Some(self.endpoint()),
            access_key: Some(self.credentials.access_key.clone()),
            secret_key: Some(self.credentials.secret_key.clone()),
            ..S3Settings::default()
        }
    }

    /// Takes no more requests, lets those in progress end, for some seconds at most, and closes the database.
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

async fn accept(listener: TcpListener, service: S3Service, stop: CancellationToken, tasks: TaskTracker) {
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely: some will be free soon.
                    tracing::warn!(%error, "embedded S3: a connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        // Otherwise a body waits 40 ms for the client to acknowledge the headers before it.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "embedded S3: small packets will be late");
        }
        let (service, stop) = (service.clone(), stop.clone());
        tasks.spawn(async move {
            let builder = Builder::new(TokioExecutor::new());
            let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "embedded S3: a connection broke");
            }
        });
    }
}

/// Removes what crashes left behind, and forgets uploads completed long ago.
async fn sweep(database: &Database, bodies: &Bodies) -> fault::Result<()> {
    let mut db = database.write().await?;
    uploads::forget_completed(&mut db).await?;
    // Files first, records second: a body that got its record in between is not taken for an orphan.
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
