//! The loop that opens ports: one for each job whose shell is open, for as long as it is.
//!
//! Nobody can connect to a sandbox. Its agent keeps a [line](crate::records::protocol::shell) open, and whoever comes to the
//! job's port gets it. So a shell is reached in the same way wherever the sandbox is, and what is said in it is between the
//! user's ssh and the sandbox's sshd.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use super::{agents::Line, orchestrator::Orchestrator};
use crate::{
    records::{
        Code, Failure, Job, JobId, Run, ShellStatus, job::Connection, protocol::shell::GO, run::Refused, shell::Address,
    },
    settings::Ports,
    store::StoredRun,
};

/// Connections to one shell at a time. More are closed at once: a flood costs its own job's users their logins, and nobody
/// else anything.
const MOST_CONNECTIONS: usize = 64;

/// How long somebody who connected waits for a line.
const LINE_WAIT: Duration = Duration::from_secs(15);

/// Lines that wait to be used.
const SPARE_LINES: usize = 2;

/// Where this server's shells are.
#[derive(Debug, Clone)]
pub struct ShellPlace {
    /// The address that they are listened for on.
    pub listen: IpAddr,
    /// The host as users reach it.
    pub host: String,
    /// The ports that may be used.
    pub ports: Ports,
    /// How long a shell that nobody uses stays open.
    pub idle: Duration,
    /// How long it stays open in any case.
    pub longest: Duration,
}

/// The open shells of this server.
#[derive(Debug, Default)]
pub(super) struct Shells(Mutex<HashMap<JobId, Open>>);

#[derive(Debug)]
struct Open {
    /// Where agents leave their lines.
    lines: mpsc::Sender<Line>,
    /// Whence those who come take them.
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
    /// Keeps a line for the next who comes. One too many is dropped, which closes it.
    pub(super) fn offer(&self, job: JobId, line: Line) {
        // The line may be there before the port is: both are opened at once.
        let _ = self.open().entry(job).or_default().lines.try_send(line);
    }

    fn open(&self) -> MutexGuard<'_, HashMap<JobId, Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn port_of(&self, job: JobId) -> Option<u16> {
        self.open().get(&job)?.port.as_ref().map(|(port, _)| *port)
    }

    /// Lets those in who come to `listener`.
    fn serve(&self, job: JobId, port: u16, listener: TcpListener) {
        let mut all = self.open();
        let open = all.entry(job).or_default();
        let serving = tokio::spawn(serve(listener, Arc::clone(&open.spare)));
        open.port = Some((port, AbortOnDropHandle::new(serving)));
    }

    /// Closes the ports of all other jobs. Who is logged in stays so: the sandbox decides on that.
    fn keep_only(&self, jobs: &HashSet<JobId>) {
        self.open().retain(|job, _| jobs.contains(job));
    }
}

impl Orchestrator {
    /// One look at whose shells are open.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or no port can be listened on; the next look begins anew.
    pub async fn shells_once(&self) -> Result<(), Failure> {
        let open = self.store.open_runs().await?;
        let mut wanted = HashSet::new();
        let mut outcome = Ok(());
        for stored in open.iter().filter(|stored| stored.run.owner == Some(self.id)) {
            let Some(shell) = &stored.run.shell else { continue };
            // One that is about to be ready has its port already.
            if shell.status != ShellStatus::Closed {
                wanted.insert(stored.job.id);
            }
            if shell.is_ready() {
                outcome = outcome.and(self.open_port(stored).await);
            }
        }
        self.shells.keep_only(&wanted);
        outcome
    }

    /// Listens for those who log in to a job whose shell is about to be ready.
    pub(super) async fn open_port(&self, stored: &StoredRun) -> Result<(), Failure> {
        if self.shells.port_of(stored.job.id).is_some() {
            return Ok(());
        }
        let open = self.store.open_runs().await?;
        let said = stored.run.shell.as_ref().and_then(|shell| shell.at.as_ref());
        let taken = ports_of(open.iter().map(|stored| &stored.run));
        self.listen(stored.job.id, said, &taken).await
    }

    /// Listens for those who log in to a job: on the port that its record says if that is to be had, else on another one,
    /// which the record says then.
    async fn listen(&self, job: JobId, said: Option<&Address>, taken: &HashSet<u16>) -> Result<(), Failure> {
        let Ports { first, last } = self.shell_place.ports;
        let said = said.filter(|at| at.host == self.shell_place.host).map(|at| at.port);
        let others = (first..=last).filter(|port| !taken.contains(port));
        for port in said.into_iter().chain(others) {
            let Ok(listener) = TcpListener::bind((self.shell_place.listen, port)).await else {
                continue;
            };
            self.shells.serve(job, port, listener);
            if said != Some(port) {
                let at = self.address(port);
                self.change(job, |run, _| move_shell(run, at.clone())).await?;
            }
            return Ok(());
        }
        let detail = format!("none of the ports {first} to {last} can be listened on for a job's shell");
        Err(Failure::new(Code::NoShellPort, detail).hint("`ports` in [shell] can name others"))
    }

    /// Where the shell of a new job will be, if a port is left.
    pub(super) fn shell_address<'a>(&self, runs: impl Iterator<Item = &'a Run>) -> Option<Address> {
        let Ports { first, last } = self.shell_place.ports;
        let taken = ports_of(runs);
        let port = (first..=last).find(|port| !taken.contains(port))?;
        Some(self.address(port))
    }

    fn address(&self, port: u16) -> Address {
        let host = self.shell_place.host.clone();
        Address { host, port }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it is an arrow")]
fn move_shell(run: &mut Run, at: Address) -> Result<(), Refused> {
    if let Some(shell) = &mut run.shell {
        shell.at = Some(at);
    }
    Ok(())
}

/// The ports that jobs have.
fn ports_of<'a>(runs: impl Iterator<Item = &'a Run>) -> HashSet<u16> {
    runs.filter_map(|run| Some(run.shell.as_ref()?.at.as_ref()?.port))
        .collect()
}

/// Brings IMS's view of a job's shell in line with what it is.
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
            // Out of descriptors, for the moment.
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

/// Connects somebody with a line, and passes on what is said until one side has nothing more to say.
async fn connect(mut user: TcpStream, spare: &tokio::sync::Mutex<mpsc::Receiver<Line>>) {
    // Keys are pressed one by one; and a user whose machine is gone without a word must not be waited for.
    let _ = user.set_nodelay(true);
    let _ = setsockopt(&user, sockopt::KeepAlive, &true);
    let line = timeout(LINE_WAIT, async {
        loop {
            let mut line = spare.lock().await.recv().await?;
            // One whose agent has gone is of no use.
            if line.write_all(&[GO]).await.is_ok() && line.flush().await.is_ok() {
                return Some(line);
            }
        }
    });
    if let Ok(Some(mut line)) = line.await {
        let _ = tokio::io::copy_bidirectional(&mut user, &mut line).await;
    }
}
