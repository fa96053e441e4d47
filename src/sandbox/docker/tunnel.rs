//! The way to an engine on another host: one SSH connection that carries the engine's socket here and our doors there.
//!
//! Host keys are always checked against what is known, and logging in is that of remote build nodes. OpenSSH's own client
//! holds the connection; it is ended when this is dropped.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use openssh::{ForwardType, KnownHosts, Session, SessionBuilder, Socket};
use tempfile::TempDir;

use super::fault::gone;
use crate::{records::Failure, remote_nodes::RemoteNodeSettings};

/// How long a connection may be silent before the client asks whether the host is there.
const ALIVE: Duration = Duration::from_secs(15);

/// The connection.
#[derive(Debug)]
pub(super) struct Tunnel {
    session: Session,
    // Sockets in a directory that only this user may enter.
    dir: TempDir,
}

impl Tunnel {
    /// Connects to `host` and brings the socket of its engine here.
    ///
    /// # Errors
    ///
    /// `engine_gone` with what the SSH client said.
    pub(super) async fn open(host: &str, engine: &Path, login: &RemoteNodeSettings) -> Result<Self, Failure> {
        let failed = |why: String| gone(format!("cannot reach the container engine on {host}: {why}"));
        let mut builder = SessionBuilder::default();
        builder
            .user(login.user.clone())
            .known_hosts_check(KnownHosts::Strict)
            .connect_timeout(login.connect_timeout)
            .server_alive_interval(ALIVE);
        if let Some(file) = &login.identity_file {
            builder.keyfile(file);
        }
        if let Some(file) = &login.known_hosts {
            builder.user_known_hosts_file(file);
        }
        if let Some(file) = &login.ssh_config {
            builder.config_file(file);
        }
        let dir = tempfile::Builder::new().prefix("kiln-ssh-").tempdir();
        let dir = dir.map_err(|error| Failure::io("cannot make a directory for sockets", &error))?;
        let session = builder.connect(host).await.map_err(|error| failed(describe(&error)))?;
        let tunnel = Self { session, dir };
        let here = tunnel.socket();
        tunnel
            .session
            .request_port_forward(ForwardType::Local, unix(&here), unix(engine))
            .await
            .map_err(|error| failed(describe(&error)))?;
        Ok(tunnel)
    }

    /// The engine's socket, here.
    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("engine.sock")
    }

    /// Whether the connection is there.
    pub(super) async fn is_open(&self) -> bool {
        self.session.check().await.is_ok()
    }

    /// Makes the sockets of `doors` those of a directory on the other host, which it returns: its engine can mount that.
    /// What an earlier connection left there is replaced.
    ///
    /// # Errors
    ///
    /// `no_door` when the host or its SSH server forbids it.
    pub(super) async fn carry_doors(&self, doors: &Path, name: &str) -> Result<PathBuf, Failure> {
        let failed = |why: String| {
            Failure::new(
                "no_door",
                format!("cannot open the server's doors on the build node: {why}"),
            )
            .hint("its SSH server must allow forwarding: AllowStreamLocalForwarding, AllowTcpForwarding")
        };
        let there = PathBuf::from("/run").join(format!("kiln-doors-{name}"));
        let script = "umask 022; mkdir -p \"$1\" && rm -f \"$1\"/*.sock";
        let made = self
            .session
            .command("sh")
            .args(["-c", script, "sh"])
            .arg(there.to_string_lossy())
            .output()
            .await
            .map_err(|error| failed(describe(&error)))?;
        if !made.status.success() {
            return Err(failed(String::from_utf8_lossy(&made.stderr).trim().to_owned()));
        }
        for entry in fs_err::read_dir(doors).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "sock") {
                let remote = there.join(entry.file_name());
                self.session
                    .request_port_forward(ForwardType::Remote, unix(&remote), unix(&entry.path()))
                    .await
                    .map_err(|error| failed(describe(&error)))?;
            }
        }
        // Who gets to them at all is decided by what is mounted where; the sandbox's ids are others than the login's.
        let opened = self
            .session
            .command("sh")
            .args(["-c", "chmod 666 \"$1\"/*.sock", "sh"])
            .arg(there.to_string_lossy())
            .output()
            .await
            .map_err(|error| failed(describe(&error)))?;
        if opened.status.success() {
            Ok(there)
        } else {
            Err(failed(String::from_utf8_lossy(&opened.stderr).trim().to_owned()))
        }
    }
}

fn unix(path: &Path) -> Socket<'static> {
    Socket::UnixSocket {
        path: path.to_owned().into(),
    }
}

fn describe(error: &openssh::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text.trim().replace(['\n', '\r'], " ")
}
