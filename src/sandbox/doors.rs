//! Opens ports of the host's loopback to sandboxes, through one socket file each. Makes sockets in the given
//! directory, and connects to 127.0.0.1 only.
//!
//! ```text
//!  host                                             sandbox
//!  127.0.0.1:N ◀── task ◀── <dir>/port-N.sock ═══ /run/kiln/port-N.sock ◀── agent ◀── 127.0.0.1:N
//! ```
//!
//! A sandbox has its own loopback and no way to the host's. Services that it needs there all the same, such as the
//! embedded S3 service, are opened by name, and nothing else is.

use std::{
    os::{
        fd::AsRawFd,
        unix::{fs::PermissionsExt, net::UnixListener as StdUnixListener},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kiln_records::{Code, Failure};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tokio_util::io::InspectReader;

/// The most connections through the doors of one job at a time. Further ones wait, and so do those beyond the limit of
/// all jobs together: a recipe that opens many must not use up the server's descriptors.
const MOST_CONNECTIONS: usize = 128;

/// How long a connection may be silent. A tool that is not heard for that long has forgotten it.
const LONGEST_SILENCE: Duration = Duration::from_mins(10);

/// Pause before the next attempt when the process has no descriptors left.
const RETRY: Duration = Duration::from_millis(100);

/// The file name of the server's own socket, which speaks the agents' protocol.
pub const AGENT_SOCKET: &str = "agent.sock";

/// Doors that stay open until this is dropped.
#[derive(Debug)]
pub struct Doors {
    sockets: Vec<PathBuf>,
    // Dropping this ends the tasks, and with them every connection.
    tasks: JoinSet<()>,
}

impl Doors {
    /// Opens `ports` of 127.0.0.1 through sockets in `dir`, for the sandbox of one job. Each connection takes one permit
    /// of `all`. Every user may write to the sockets: access is controlled by the directories above. Must be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// `no_door` when a socket cannot be created.
    pub fn open(dir: &Path, ports: &[u16], all: &Arc<Semaphore>) -> Result<Self, Failure> {
        let mut doors = Self {
            sockets: Vec::new(),
            tasks: JoinSet::new(),
        };
        let own = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        for port in ports {
            let failed =
                |error: std::io::Error| Failure::new(Code::NoDoor, format!("cannot relay port {port}: {error}"));
            let name = socket_name(*port);
            let listener = listen(dir, &name).and_then(UnixListener::from_std).map_err(failed)?;
            doors.sockets.push(dir.join(name));
            let room = Room {
                own: Arc::clone(&own),
                all: Arc::clone(all),
            };
            doors.tasks.spawn(serve(listener, *port, room));
        }
        Ok(doors)
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        for socket in &self.sockets {
            // The file is only a name by now; the next server replaces it.
            let _ = fs_err::remove_file(socket);
        }
    }
}

/// The socket's file name for a port.
pub(crate) fn socket_name(port: u16) -> String {
    format!("port-{port}.sock")
}

/// Listens on a socket in `dir` that every user may connect to, replacing one that a killed server left.
///
/// The path given to the kernel is short however long `dir` is: a socket's path may have at most 107 bytes.
///
/// # Errors
///
/// The directory cannot be written to.
pub fn listen(dir: &Path, name: &str) -> std::io::Result<StdUnixListener> {
    let handle = fs_err::File::open(dir)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", handle.as_raw_fd()));
    match fs_err::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = StdUnixListener::bind(&path)?;
    fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The connections that there may still be: for the job, and for all jobs.
struct Room {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

impl Room {
    /// Waits for room for one connection. The job's own limit comes first: a job that waits at its own holds nothing of
    /// the common one.
    async fn for_one(&self) -> Option<[OwnedSemaphorePermit; 2]> {
        let own = Arc::clone(&self.own).acquire_owned().await.ok()?;
        let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some([own, all])
    }
}

/// Forwards every connection to the port.
async fn serve(listener: UnixListener, port: u16, room: Room) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((inside, _)) = listener.accept().await else {
            // Out of descriptors for the moment.
            tokio::time::sleep(RETRY).await;
            continue;
        };
        // A connection that nobody makes holds no room.
        let Some(permits) = room.for_one().await else { return };
        connections.spawn(async move {
            relay(inside, port).await;
            drop(permits);
        });
    }
}

async fn relay(inside: UnixStream, port: u16) {
    // If the port is closed, the other side sees its connection closed, as with any closed port.
    if let Ok(outside) = TcpStream::connect(("127.0.0.1", port)).await {
        copy_while_it_moves(inside, outside, LONGEST_SILENCE).await;
    }
}

/// Copies in both directions until both sides have closed, one fails, or nothing has moved for `silence` or twice that.
async fn copy_while_it_moves<A, B>(one: A, other: B, silence: Duration)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let moved = AtomicU64::new(0);
    let count = |bytes: &[u8]| {
        moved.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    };
    let (mut one, mut other) = (InspectReader::new(one, count), InspectReader::new(other, count));
    let stands_still = async {
        let mut before = None;
        while before.replace(moved.load(Ordering::Relaxed)) != Some(moved.load(Ordering::Relaxed)) {
            tokio::time::sleep(silence).await;
        }
    };
    tokio::select! {
        // An error means that one side closed, which the other side sees.
        _ = tokio::io::copy_bidirectional(&mut one, &mut other) => {}
        () = stands_still => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// A port that answers each connection with its input in upper case.
    async fn shouting() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut text = String::new();
                    socket.read_to_string(&mut text).await.unwrap();
                    socket.write_all(text.to_uppercase().as_bytes()).await.unwrap();
                });
            }
        });
        port
    }

    async fn ask(path: &Path) -> std::io::Result<String> {
        let mut socket = UnixStream::connect(path).await?;
        socket.write_all(b"hello").await?;
        socket.shutdown().await?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn a_door_leads_to_its_port_even_after_a_server_that_was_killed() {
        let dir = tempfile::tempdir().unwrap();
        let port = shouting().await;
        let path = dir.path().join(socket_name(port));
        // A killed server leaves a socket without a listener.
        drop(StdUnixListener::bind(&path).unwrap());

        let doors = Doors::open(dir.path(), &[port], &Arc::new(Semaphore::new(9))).unwrap();
        assert_eq!(ask(&path).await.unwrap(), "HELLO");
        let mode = fs_err::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o666);
        drop(doors);
        assert!(ask(&path).await.is_err(), "it stays open");
    }

    #[tokio::test]
    async fn sockets_in_deep_directories_can_be_listened_on() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(200));
        fs_err::create_dir(&deep).unwrap();
        let port = shouting().await;
        let _doors = Doors::open(&deep, &[port], &Arc::new(Semaphore::new(9))).unwrap();
        let link = dir.path().join("short");
        fs_err::os::unix::fs::symlink(&deep, &link).unwrap();
        assert_eq!(ask(&link.join(socket_name(port))).await.unwrap(), "HELLO");
    }

    #[tokio::test]
    async fn a_job_that_holds_all_its_connections_does_not_keep_others_out() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let port = shouting().await;
        let all = Arc::new(Semaphore::new(2 * MOST_CONNECTIONS));
        let _greedy = Doors::open(one.path(), &[port], &all).unwrap();
        let _other = Doors::open(two.path(), &[port], &all).unwrap();
        let mut held = Vec::new();
        for _ in 0..MOST_CONNECTIONS + 8 {
            held.push(UnixStream::connect(one.path().join(socket_name(port))).await.unwrap());
        }
        let answered = ask(&two.path().join(socket_name(port))).await;
        assert_eq!(answered.unwrap(), "HELLO");
        assert!(all.available_permits() >= MOST_CONNECTIONS - 1);
    }

    #[tokio::test]
    async fn a_silent_connection_is_closed_and_a_moving_one_is_not() {
        let silence = Duration::from_secs(1);
        let (mut user, inside) = tokio::io::duplex(64);
        let (mut service, outside) = tokio::io::duplex(64);
        let copying = tokio::spawn(copy_while_it_moves(inside, outside, silence));
        // Only one direction moves, as in a long download.
        for _ in 0..8 {
            service.write_all(b"x").await.unwrap();
            assert_eq!(user.read_u8().await.unwrap(), b'x');
            tokio::time::sleep(silence / 4).await;
        }
        assert!(!copying.is_finished());
        copying.await.unwrap();
        assert!(user.read_u8().await.is_err());
    }
}
