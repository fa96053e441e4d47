//! The tunnel to an engine on another host: one SSH connection that carries the engine's socket here and the server's
//! doors there. Runs OpenSSH's client, and shell commands on the other host.
//!
//! Host keys are always checked against the known ones, and the login is that of remote build nodes. The connection
//! ends when this is dropped.

use std::{
    collections::BTreeSet,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use kiln_records::{Code, Failure};
use openssh::{ControlPersist, ForwardType, Session, Socket};
use tokio::sync::Mutex;

use super::fault::gone;
use crate::{
    host::OwnDir,
    remote_nodes::{RemoteNodeSettings, describe},
};

/// How long a connection may be silent before the client checks that the host is alive.
const ALIVE: Duration = Duration::from_secs(15);

/// How many seconds a connection lasts that nothing goes through. A living server looks at its places each minute; one that
/// was killed leaves its client behind.
const IDLE: NonZeroUsize = NonZeroUsize::new(600).unwrap();

/// An SSH connection.
#[derive(Debug)]
pub(super) struct Tunnel {
    session: Session,
    // Sockets in a directory that only this user may enter.
    dir: OwnDir,
    used: AtomicBool,
    carried: Mutex<BTreeSet<PathBuf>>,
}

impl Tunnel {
    /// Connects to `host` and forwards the socket of its engine to this host.
    ///
    /// # Errors
    ///
    /// `engine_gone` with the SSH client's message.
    pub(super) async fn open(host: &str, engine: &Path, login: &RemoteNodeSettings) -> Result<Self, Failure> {
        let failed = |why: String| gone(format!("cannot reach the container engine on {host}: {why}"));
        let mut builder = login.session();
        builder.server_alive_interval(ALIVE);
        builder.control_persist(ControlPersist::IdleFor(IDLE));
        let dir = OwnDir::new_in(&std::env::temp_dir(), "kiln-ssh-");
        let dir = dir.map_err(|error| Failure::io("cannot make a directory for sockets", &error))?;
        let session = builder.connect(host).await.map_err(|error| failed(describe(&error)))?;
        let tunnel = Self {
            session,
            dir,
            used: AtomicBool::new(false),
            carried: Mutex::default(),
        };
        let here = tunnel.socket();
        tunnel
            .session
            .request_port_forward(ForwardType::Local, unix(&here), unix(engine))
            .await
            .map_err(|error| failed(describe(&error)))?;
        Ok(tunnel)
    }

    /// The engine's socket on this host.
    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("engine.sock")
    }

    /// Whether the connection is alive.
    pub(super) async fn is_open(&self) -> bool {
        self.session.check().await.is_ok()
    }

    /// Whether this is the first call: nothing has been carried through this connection yet.
    pub(super) fn is_fresh(&self) -> bool {
        !self.used.swap(true, Ordering::Relaxed)
    }

    /// Forwards the sockets in `doors` to the directory `there` on the other host, where the engine can mount them.
    /// Each is forwarded once; leftovers of an earlier connection are replaced.
    ///
    /// # Errors
    ///
    /// `no_door` when the host or its SSH server forbids it.
    pub(super) async fn carry_doors(&self, doors: &Path, there: &Path) -> Result<(), Failure> {
        let mut carried = self.carried.lock().await;
        for entry in fs_err::read_dir(doors).into_iter().flatten().flatten() {
            let door = entry.path();
            if carried.contains(&door) || door.extension().is_none_or(|extension| extension != "sock") {
                continue;
            }
            let remote = there.join(entry.file_name());
            let (dir, socket) = (there.to_string_lossy(), remote.to_string_lossy());
            self.run("umask 022; mkdir -p \"$1\" && rm -f \"$2\"", &[&dir, &socket])
                .await?;
            self.session
                .request_port_forward(ForwardType::Remote, unix(&remote), unix(&door))
                .await
                .map_err(|error| no_door(&describe(&error)))?;
            // Access is controlled by what is mounted where; the sandbox's ids differ from the login's.
            self.run("chmod 666 \"$1\"", &[&socket]).await?;
            carried.insert(door);
        }
        Ok(())
    }

    /// Ends what [`Tunnel::carry_doors`] began, and removes the directory on the other host.
    ///
    /// # Errors
    ///
    /// `no_door` when the directory cannot be removed.
    pub(super) async fn leave_doors(&self, doors: &Path, there: &Path) -> Result<(), Failure> {
        let mut carried = self.carried.lock().await;
        let left: Vec<_> = carried
            .iter()
            .filter(|door| door.parent() == Some(doors))
            .cloned()
            .collect();
        for door in left {
            let remote = unix(&there.join(door.file_name().unwrap_or_default()));
            // A forward that has ended is what is wanted.
            let _ = (self
                .session
                .close_port_forward(ForwardType::Remote, remote, unix(&door)))
            .await;
            carried.remove(&door);
        }
        self.run("rm -rf \"$1\"", &[&there.to_string_lossy()]).await
    }

    /// Runs a shell script on the other host.
    async fn run(&self, script: &str, arguments: &[&str]) -> Result<(), Failure> {
        let mut command = self.session.command("sh");
        command.args(["-c", script, "sh"]).args(arguments);
        let done = command.output().await.map_err(|error| no_door(&describe(&error)))?;
        if done.status.success() {
            return Ok(());
        }
        Err(no_door(String::from_utf8_lossy(&done.stderr).trim()))
    }
}

fn no_door(why: &str) -> Failure {
    Failure::new(
        Code::NoDoor,
        format!("cannot open the server's sockets on the build node: {why}"),
    )
    .hint("its SSH server must allow forwarding: AllowStreamLocalForwarding, AllowTcpForwarding")
}

fn unix(path: &Path) -> Socket<'static> {
    Socket::UnixSocket {
        path: path.to_owned().into(),
    }
}
