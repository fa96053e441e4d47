//! Serves the ports that lead to the shells of jobs, each with the lines that its agent keeps open. It accepts TCP
//! connections and passes bytes on; it touches neither the store nor S3.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kiln_records::{Job, JobId, Run, job::Connection, protocol::shell::GO};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use super::agents::Line;
use crate::settings::Ports;

/// The most connections to one shell at a time. More are closed at once: a flood costs the users of its own job their
/// logins, and does not affect other jobs.
const MOST_CONNECTIONS: usize = 64;

/// How long a connected user waits for a line.
const LINE_WAIT: Duration = Duration::from_secs(15);

/// The number of lines kept ready for use.
const SPARE_LINES: usize = 2;

/// The addresses, ports and time limits of this server's shells.
#[derive(Debug, Clone)]
pub struct ShellPlace {
    /// The address to listen on.
    pub listen: IpAddr,
    /// The host name by which users reach it.
    pub host: String,
    /// The ports that may be used.
    pub ports: Ports,
    /// How long an unused shell stays open.
    pub idle: Duration,
    /// How long a shell stays open in any case.
    pub longest: Duration,
}

/// The open shells of this server.
#[derive(Debug, Default)]
pub(super) struct Shells(Mutex<HashMap<JobId, Open>>);

#[derive(Debug)]
struct Open {
    /// The end at which agents leave their lines.
    lines: mpsc::Sender<Line>,
    /// The end from which new connections take them.
    spare: Arc<tokio::sync::Mutex<mpsc::Receiver<Line>>>,
    /// The port that is listened on.
    port: Option<(u16, AbortOnDropHandle<()>)>,
}

impl Default for Open {
    fn default() -> Self {
        let (lines, spare) = mpsc::channel(SPARE_LINES);
        let spare = Arc::new(tokio::sync::Mutex::new(spare));
        Self {
            lines,
            spare,
            port: None,
        }
    }
}

impl Shells {
    /// Keeps a line for the next connection. A surplus line is dropped, which closes it.
    pub(super) fn offer(&self, job: JobId, line: Line) {
        // The line may exist before the port does: both are opened at once.
        let _ = self.open().entry(job).or_default().lines.try_send(line);
    }

    fn open(&self) -> MutexGuard<'_, HashMap<JobId, Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn port_of(&self, job: JobId) -> Option<u16> {
        self.open().get(&job)?.port.as_ref().map(|(port, _)| *port)
    }

    /// Serves the connections to `listener`.
    pub(super) fn serve(&self, job: JobId, port: u16, listener: TcpListener) {
        let mut all = self.open();
        let open = all.entry(job).or_default();
        let serving = tokio::spawn(serve(listener, Arc::clone(&open.spare)));
        open.port = Some((port, AbortOnDropHandle::new(serving)));
    }

    /// Closes the ports of all other jobs. Users who are logged in stay logged in: the sandbox decides about them.
    pub(super) fn keep_only(&self, jobs: &HashSet<JobId>) {
        self.open().retain(|job, _| jobs.contains(job));
    }
}

/// Updates IMS's view of a job's shell to match its actual state.
pub(super) fn show_shell(job: &mut Job, run: &Run) {
    let (Some(shell), Some(containers)) = (&run.shell, &mut job.ssh_containers) else {
        return;
    };
    for container in containers {
        shell.status.name().clone_into(&mut container.status);
        let Some(at) = &shell.at else { continue };
        for connection in container.connection_info.values_mut() {
            *connection = Connection {
                host: at.host.clone(),
                port: at.port,
            };
        }
    }
}

async fn serve(listener: TcpListener, spare: Arc<tokio::sync::Mutex<mpsc::Receiver<Line>>>) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok((user, _)) = listener.accept().await else {
            // The process is out of descriptors, for the moment.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            continue;
        };
        let spare = Arc::clone(&spare);
        tokio::spawn(async move {
            connect(user, &spare).await;
            drop(permit);
        });
    }
}

/// Connects a user with a line, and passes data on until one side has nothing more to send.
async fn connect(mut user: TcpStream, spare: &tokio::sync::Mutex<mpsc::Receiver<Line>>) {
    // Keys are pressed one by one; and a connection whose machine vanished silently must not be held open forever.
    let _ = user.set_nodelay(true);
    let _ = setsockopt(&user, sockopt::KeepAlive, &true);
    let line = timeout(LINE_WAIT, async {
        loop {
            let mut line = spare.lock().await.recv().await?;
            // A line whose agent is gone is of no use.
            if line.write_all(&[GO]).await.is_ok() && line.flush().await.is_ok() {
                return Some(line);
            }
        }
    });
    if let Ok(Some(mut line)) = line.await {
        let _ = tokio::io::copy_bidirectional(&mut user, &mut line).await;
    }
}
