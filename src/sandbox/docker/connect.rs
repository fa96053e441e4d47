//! Connects to an engine over a socket, TLS or SSH. Every request opens a connection of its own, so that a restarted
//! engine is found again; only the tunnel over SSH is kept open.

use std::sync::Arc;

use bollard::{API_DEFAULT_VERSION, Docker};
use kiln_records::Failure;
use tokio::sync::Mutex;

use super::{
    address::EngineAddress,
    fault::{failure, gone},
    tunnel::Tunnel,
};

/// Seconds until an engine must have begun to answer. The longest request is the upload of a toolbox.
const TIMEOUT_S: u64 = 600;

/// An engine and the way to it.
#[derive(Debug)]
pub(super) struct Engine {
    address: EngineAddress,
    open: Mutex<Option<Open>>,
}

/// An open way to the engine.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) client: Docker,
    /// The tunnel, if the engine is behind SSH.
    pub(super) tunnel: Option<Arc<Tunnel>>,
}

impl Engine {
    pub(super) fn at(address: EngineAddress) -> Self {
        Self {
            address,
            open: Mutex::new(None),
        }
    }

    pub(super) fn address(&self) -> &EngineAddress {
        &self.address
    }

    /// The way to the engine. Connects if there is no connection yet, or if the tunnel is gone.
    ///
    /// # Errors
    ///
    /// `engine_gone`.
    pub(super) async fn open(&self) -> Result<Open, Failure> {
        let mut known = self.open.lock().await;
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
        let open = self.connect().await?;
        *known = Some(open.clone());
        Ok(open)
    }

    async fn connect(&self) -> Result<Open, Failure> {
        let what = format!("cannot reach the container engine at {}", self.address);
        let bad = |error: bollard::errors::Error| gone(format!("{what}: {error}"));
        let (client, tunnel) = match &self.address {
            EngineAddress::Socket(path) => {
                let path = path.to_string_lossy();
                (
                    Docker::connect_with_socket(&path, TIMEOUT_S, API_DEFAULT_VERSION).map_err(bad)?,
                    None,
                )
            }
            EngineAddress::Tls { host, certificates } => {
                let file = |name: &str| certificates.join(name);
                let (key, certificate, authority) = (file("key.pem"), file("cert.pem"), file("ca.pem"));
                let client =
                    Docker::connect_with_ssl(host, &key, &certificate, &authority, TIMEOUT_S, API_DEFAULT_VERSION);
                (client.map_err(bad)?, None)
            }
            EngineAddress::Ssh { host, socket, login } => {
                let tunnel = Tunnel::open(host, socket, login).await?;
                let path = tunnel.socket().to_string_lossy().into_owned();
                let client = Docker::connect_with_socket(&path, TIMEOUT_S, API_DEFAULT_VERSION).map_err(bad)?;
                (client, Some(Arc::new(tunnel)))
            }
        };
        let client = client
            .negotiate_version()
            .await
            .map_err(|error| failure(&what, &error))?;
        Ok(Open { client, tunnel })
    }
}
