//! The written form of a container engine's address. Pure: no I/O, but for the environment.

use std::{path::PathBuf, str::FromStr};

use super::DockerEngineSettings;
use kiln_records::{Code, Failure};

/// The engine's usual socket.
pub const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// An address as written in `DOCKER_HOST`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineUrl {
    /// `unix://PATH`.
    Socket(PathBuf),
    /// `tcp://HOST:PORT`.
    Tcp(String),
    /// `ssh://[USER@]HOST[PATH]`.
    Ssh {
        /// The user, if named.
        user: Option<String>,
        /// The host.
        host: String,
        /// The engine's socket on that host.
        socket: PathBuf,
    },
}

impl FromStr for EngineUrl {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let bad = || {
            Failure::new(
                Code::EngineAddress,
                format!("`{text}` is not the address of a container engine"),
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
                // A leading dash would make the host an option of the SSH client.
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

impl DockerEngineSettings {
    /// The directory of the client's certificates.
    ///
    /// # Errors
    ///
    /// `engine_address` when the directory is unknown.
    pub fn client_certificates(&self) -> Result<PathBuf, Failure> {
        self.certificates.clone().ok_or_else(no_certificates)
    }
}

fn no_certificates() -> Failure {
    Failure::new(
        Code::EngineAddress,
        "an engine at tcp:// requires TLS, and `certificates` is not set",
    )
    .hint("set `certificates` in [docker] to the directory with key.pem, cert.pem and ca.pem; or use ssh://")
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
