//! Serves the ports that lead to the shells of jobs, each with the lines that its agent keeps open. It accepts TCP
//! connections and passes bytes on; it touches neither the store nor S3.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kiln_records::{
    Job, JobId, Run,
    job::{Connection, WITHIN_CLUSTER},
    protocol::shell::GO,
};
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

/// The pause before a place is asked again for the way to a shell.
const ASK_EVERY: Duration = Duration::from_secs(5);

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
    /// When the place of the job is asked for the way to it; `None` when that is known.
    ask: Option<Instant>,
}

impl Default for Open {
    fn default() -> Self {
        let (lines, spare) = mpsc::channel(SPARE_LINES);
        let spare = Arc::new(tokio::sync::Mutex::new(spare));
        Self {
            lines,
            spare,
            port: None,
            ask: Some(Instant::now()),
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

    pub(super) fn has_port(&self, port: u16) -> bool {
        let has = |open: &Open| open.port.as_ref().is_some_and(|(own, _)| *own == port);
        self.open().values().any(has)
    }

    /// Whether it is time to ask the job's place for the way to its port. The next time is some seconds later.
    pub(super) fn asks_for_way(&self, job: JobId) -> bool {
        let now = Instant::now();
        let mut all = self.open();
        let Some(ask) = all.get_mut(&job).and_then(|open| open.ask.as_mut()) else {
            return false;
        };
        let asks = *ask <= now;
        if asks {
            *ask = now + ASK_EVERY;
        }
        asks
    }

    /// Notes that the way to a job's port is known, so that its place is not asked again.
    pub(super) fn note_way(&self, job: JobId) {
        if let Some(open) = self.open().get_mut(&job) {
            open.ask = None;
        }
    }

    /// Lets the place of a job be asked at once.
    #[cfg(test)]
    pub(super) fn forget_when_asked(&self, job: JobId) {
        self.open().get_mut(&job).unwrap().ask = Some(Instant::now());
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
        for (from, connection) in &mut container.connection_info {
            let inside = shell.inside.as_ref().filter(|_| from == WITHIN_CLUSTER);
            let at = inside.unwrap_or(at);
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
