//! Connects to an engine over a socket, TLS or SSH. Every request opens a connection of its own, so that a restarted
//! engine is found again; only the tunnel over SSH is kept open.

use std::{path::Path, sync::Arc, time::Duration};

use bollard::{API_DEFAULT_VERSION, Docker};
use futures::future::BoxFuture;
use kiln_records::Failure;
use tokio::sync::Mutex;

use super::{
    address::EngineAddress,
    dialect::Dialect,
    fault::{TIMEOUT_S, failure, gone},
    tunnel::Tunnel,
};

/// The most time for the way to an engine.
const CONNECTING: Duration = Duration::from_mins(1);

/// The most time of all trials of an engine: two kernels are tried, one after the other.
pub(super) const PROBING: Duration = Duration::from_mins(5);

/// Does some work with an engine in this time at most, whatever it waits for: the body of an answer, a lock, a tunnel.
///
/// # Errors
///
/// `engine_gone` when the time is over; the work stops where it is. Or else the work's own failure.
pub(super) fn within<'a, T: 'a>(
    limit: Duration,
    what: &'a str,
    work: impl Future<Output = Result<T, Failure>> + Send + 'a,
) -> BoxFuture<'a, Result<T, Failure>> {
    let work = tokio::time::timeout(limit, work);
    let late = move |_| {
        gone(format!(
            "the container engine took more than {} s to {what}",
            limit.as_secs()
        ))
    };
    Box::pin(async move { work.await.map_err(late)? })
}

/// An engine and the way to it.
#[derive(Debug)]
pub(super) struct Engine {
    address: Arc<EngineAddress>,
    open: Arc<Mutex<Option<Open>>>,
}

/// An open way to the engine.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) client: Docker,
    /// The tunnel, if the engine is behind SSH.
    pub(super) tunnel: Option<Arc<Tunnel>>,
    /// Whose API it speaks.
    pub(super) dialect: Dialect,
}

impl Engine {
    pub(super) fn at(address: EngineAddress) -> Self {
        Self {
            address: Arc::new(address),
            open: Arc::default(),
        }
    }

    pub(super) fn address(&self) -> &EngineAddress {
        &self.address
    }

    /// The way to the engine. Connects if there is no connection yet, or if the tunnel is gone. That goes on if whoever asks does
    /// not wait for it: a login may take longer than an answer about a sandbox.
    ///
    /// # Errors
    ///
    /// `engine_gone`.
    pub(super) async fn open(&self) -> Result<Open, Failure> {
        let mut known = Arc::clone(&self.open).lock_owned().await;
        if let Some(open) = known.as_ref() {
            let is_there = match &open.tunnel {
                Some(tunnel) => tunnel.is_open().await,
                None => true,
            };
            if is_there {
                return Ok(open.clone());
            }
        }
        *known = None;
        let address = Arc::clone(&self.address);
        let connecting = tokio::spawn(async move {
            let open = within(CONNECTING, "connect", connect(&address)).await?;
            *known = Some(open.clone());
            Ok(open)
        });
        connecting.await.unwrap_or_else(|error| Err(gone(error)))
    }
}

async fn connect(address: &EngineAddress) -> Result<Open, Failure> {
    let what = format!("cannot reach the container engine at {address}");
    let bad = |error: bollard::errors::Error| gone(format!("{what}: {error}"));
    let local =
        |path: &Path| Docker::connect_with_socket(&path.to_string_lossy(), TIMEOUT_S, API_DEFAULT_VERSION).map_err(bad);
    let (client, tunnel, socket) = match address {
        EngineAddress::Socket(path) => (local(path)?, None, Some(path.clone())),
        EngineAddress::Tls { host, certificates } => {
            let file = |name: &str| certificates.join(name);
            let (key, certificate, authority) = (file("key.pem"), file("cert.pem"), file("ca.pem"));
            let client = Docker::connect_with_ssl(host, &key, &certificate, &authority, TIMEOUT_S, API_DEFAULT_VERSION);
            (client.map_err(bad)?, None, None)
        }
        EngineAddress::Ssh { host, socket, login } => {
            let tunnel = Tunnel::open(host, socket, login).await?;
            let path = tunnel.socket().clone();
            (local(&path)?, Some(Arc::new(tunnel)), Some(path))
        }
    };
    let client = client
        .negotiate_version()
        .await
        .map_err(|error| failure(&what, &error))?;
    let dialect = Dialect::of(&client, socket).await?;
    Ok(Open {
        client,
        tunnel,
        dialect,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_engine_that_hangs_is_not_waited_for() {
        let hangs = std::future::pending::<Result<(), Failure>>();
        let failure = within(Duration::from_millis(1), "look", hangs).await.unwrap_err();
        assert_eq!(failure.code, kiln_records::Code::EngineGone);
        assert_eq!(within(Duration::from_secs(30), "look", async { Ok(7) }).await, Ok(7));
    }

    #[tokio::test]
    async fn who_gives_up_waiting_for_a_connection_leaves_it_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("engine.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let engine = Engine::at(EngineAddress::Socket(socket));
        for _ in 0..2 {
            let asked = tokio::time::timeout(Duration::from_millis(100), engine.open());
            assert!(asked.await.is_err(), "nobody answers yet");
        }
        let first = listener.accept().await.unwrap();
        let second = tokio::time::timeout(Duration::from_millis(10), listener.accept());
        assert!(second.await.is_err(), "it began anew");
        // The engine goes away, and whoever asks next is told so.
        drop((first, listener));
        assert_eq!(engine.open().await.unwrap_err().code, kiln_records::Code::EngineGone);
    }
}
