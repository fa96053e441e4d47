//! The addresses of container engines. Pure: no I/O.

use std::{fmt, path::PathBuf};

use reqwest::Url;

use crate::{remote_nodes::RemoteNodeSettings, settings::names_here};

/// How to reach an engine.
#[derive(Debug, Clone)]
pub enum EngineAddress {
    /// A socket of this host: the engine can mount files of this host's disk.
    Socket(PathBuf),
    /// A port of any host, with TLS. Plain TCP is not offered: anyone who reached the port would own the host.
    Tls {
        /// Host and port.
        host: String,
        /// A directory with the client's key and certificate and the authority, as PEM files that `docker` itself
        /// expects: `key.pem`, `cert.pem` and `ca.pem`.
        certificates: PathBuf,
    },
    /// The engine's socket on another host, over SSH.
    Ssh {
        /// The host, as the SSH client knows it.
        host: String,
        /// The engine's socket there.
        socket: PathBuf,
        /// How to log in there.
        login: RemoteNodeSettings,
    },
}

impl EngineAddress {
    /// Whether the same address leads to the same engine from every host.
    pub fn is_shared(&self) -> bool {
        let host = match self {
            Self::Socket(_) => return false,
            Self::Tls { host, .. } | Self::Ssh { host, .. } => host,
        };
        let is_here = |url: Url| names_here(&url);
        !Url::parse(&format!("tcp://{host}")).is_ok_and(is_here)
    }
}

impl fmt::Display for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix://{}", path.display()),
            Self::Tls { host, .. } => write!(f, "tcp://{host}"),
            Self::Ssh { host, login, .. } => write!(f, "ssh://{}@{host}", login.user),
        }
    }
}
