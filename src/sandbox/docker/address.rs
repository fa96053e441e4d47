//! Where a container engine is.

use std::{fmt, path::PathBuf};

use crate::remote_nodes::RemoteNodeSettings;

/// How an engine is reached.
#[derive(Debug, Clone)]
pub enum EngineAddress {
    /// A socket of this host: the engine can mount what lies on this host's disk.
    Socket(PathBuf),
    /// A port of any host, with TLS. Without it whoever gets to the port owns the host, so that it is not offered.
    Tls {
        /// Host and port.
        host: String,
        /// The client's key and certificate and the authority, PEM files as `docker` itself wants them: `key.pem`,
        /// `cert.pem` and `ca.pem` in this directory.
        certificates: PathBuf,
    },
    /// The engine's socket on another host, through SSH.
    Ssh {
        /// The host, as the SSH client knows it.
        host: String,
        /// The engine's socket there.
        socket: PathBuf,
        /// How it is logged in to.
        login: RemoteNodeSettings,
    },
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
