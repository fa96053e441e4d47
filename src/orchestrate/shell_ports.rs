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
    sync::mpsc,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use super::agents::Line;
use crate::settings::Ports;

/// The most connections to one shell at a time. More are closed at once: a flood costs the users of its own job their
/// logins, and does not affect other jobs.
const MOST_CONNECTIONS: usize = 64;

/// The most of them from one address, so that others find room.
const MOST_FROM_ONE: usize = MOST_CONNECTIONS / 2;

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

/// The connections to one shell, by the addresses that they came from.
#[derive(Debug, Default)]
struct Room(Mutex<HashMap<IpAddr, usize>>);

/// The place of a connection, until it is dropped.
#[derive(Debug)]
struct Place {
    room: Arc<Room>,
    from: IpAddr,
}

impl Room {
    fn enter(self: &Arc<Self>, from: IpAddr) -> Option<Place> {
        let mut all = self.all();
        if all.values().sum::<usize>() >= MOST_CONNECTIONS || all.get(&from).is_some_and(|own| *own >= MOST_FROM_ONE) {
            return None;
        }
        *all.entry(from).or_default() += 1;
        Some(Place {
            room: Arc::clone(self),
            from,
        })
    }

    fn all(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.room.all();
        if let Some(own) = all.get_mut(&self.from) {
            *own -= 1;
            if *own == 0 {
                all.remove(&self.from);
            }
        }
    }
}

async fn serve(listener: TcpListener, spare: Arc<tokio::sync::Mutex<mpsc::Receiver<Line>>>) {
    let room = Arc::<Room>::default();
    loop {
        let Ok((user, from)) = listener.accept().await else {
            // The process is out of descriptors, for the moment.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(place) = room.enter(from.ip().to_canonical()) else {
            continue;
        };
        let spare = Arc::clone(&spare);
        tokio::spawn(async move {
            connect(user, &spare).await;
            drop(place);
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
    let line = tokio::select! {
        line = line => line,
        // Who has gone away needs none.
        () = is_closed(&user) => return,
    };
    if let Ok(Some(mut line)) = line {
        let _ = tokio::io::copy_bidirectional(&mut user, &mut line).await;
    }
}

/// Returns when a user who has said nothing closes the connection. Who has said something waits for an answer.
async fn is_closed(user: &TcpStream) {
    if !matches!(user.peek(&mut [0]).await, Ok(0) | Err(_)) {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_take_the_room_of_others() {
        let room = Arc::<Room>::default();
        let [one, two, three] = ["192.0.2.1", "192.0.2.2", "::1"].map(|text| text.parse::<IpAddr>().unwrap());
        let mut places: Vec<_> = (0..MOST_CONNECTIONS).filter_map(|_| room.enter(one)).collect();
        assert_eq!(places.len(), MOST_FROM_ONE);
        let others: Vec<_> = (0..MOST_CONNECTIONS).filter_map(|_| room.enter(two)).collect();
        assert!(others.len() == MOST_CONNECTIONS - MOST_FROM_ONE && room.enter(three).is_none());
        places.pop();
        assert!(room.enter(three).is_some());
        drop((places, others));
        assert!(room.all().is_empty());
    }
}
