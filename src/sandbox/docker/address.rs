//! The addresses of container engines. Pure: no I/O.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::{
    records::{Code, Failure},
    remote_nodes::RemoteNodeSettings,
};

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

/// The engine's usual socket.
pub const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// The text form, as in `DOCKER_HOST`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineUrl {
    /// `unix://PATH`.
    Socket(PathBuf),
    /// `tcp://HOST:PORT`.
    Tcp(String),
    /// `ssh://[USER@]HOST[PATH]`.
    Ssh {
        /// The user, if one is named.
        user: Option<String>,
        /// The host.
        host: String,
        /// The engine's socket there.
        socket: PathBuf,
    },
}

impl FromStr for EngineUrl {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let bad = || {
            Failure::new(
                Code::EngineAddress,
                format!("`{text}` is no address of a container engine"),
            )
            .hint("unix:///var/run/docker.sock, tcp://host:2376 or ssh://user@host")
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        match scheme {
            _ if rest.is_empty() => Err(bad()),
            "unix" if rest.starts_with('/') => Ok(Self::Socket(rest.into())),
            "tcp" if !rest.contains('/') && rest.contains(':') => Ok(Self::Tcp(rest.to_owned())),
            "ssh" => {
                let (host, socket) = match rest.find('/') {
                    Some(at) => (&rest[..at], &rest[at..]),
                    None => (rest, DEFAULT_SOCKET),
                };
                let (user, host) = match host.rsplit_once('@') {
                    Some((user, host)) => (Some(user.to_owned()), host),
                    None => (None, host),
                };
                // A host that begins with a dash would be an option of the SSH client.
                if host.is_empty() || host.starts_with('-') || user.as_deref() == Some("") {
                    return Err(bad());
                }
                Ok(Self::Ssh {
                    user,
                    host: host.to_owned(),
                    socket: socket.into(),
                })
            }
            _ => Err(bad()),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_docker() {
        let of = |text: &str| text.parse::<EngineUrl>();
        assert_eq!(
            of("unix:///run/x.sock").unwrap(),
            EngineUrl::Socket("/run/x.sock".into())
        );
        assert_eq!(of("tcp://h:2376").unwrap(), EngineUrl::Tcp("h:2376".to_owned()));
        let ssh = |user: Option<&str>, socket: &str| EngineUrl::Ssh {
            user: user.map(str::to_owned),
            host: "x1000c0".to_owned(),
            socket: socket.into(),
        };
        assert_eq!(of("ssh://root@x1000c0").unwrap(), ssh(Some("root"), DEFAULT_SOCKET));
        let podman = "/run/podman/podman.sock";
        assert_eq!(of(&format!("ssh://x1000c0{podman}")).unwrap(), ssh(None, podman));
        for text in [
            "",
            "docker",
            "unix://x",
            "tcp://h",
            "ssh://",
            "ssh://-oProxyCommand=x",
            "ssh://@h",
            "ftp://h:1",
        ] {
            assert_eq!(of(text).unwrap_err().code, Code::EngineAddress, "{text}");
        }
    }
}
