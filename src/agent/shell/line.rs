//! Opens lines to the server, each of which becomes one user's connection. Starts an sshd per connection.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kiln_records::protocol::shell::GO;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::oneshot,
    task::JoinSet,
    time::timeout,
};

use super::sshd::{Sshd, tell};
use crate::{channel::Channel, events::Events};

/// An unused line is replaced after this time: network devices on the way may forget it.
const RENEWED: Duration = Duration::from_mins(5);

/// The pause after a failure to open a line.
const PAUSE: Duration = Duration::from_secs(1);

/// The most connections that have not logged in. One more ends the oldest of them: who has no key takes no room from who has one.
const MOST_STRANGERS: usize = 24;

/// How many of sshd's own lines are logged per connection, so that a flood of logins does not flood the log.
const SAID: usize = 8;

/// The same for all connections that have not logged in.
const SAID_OF_STRANGERS: usize = 200;

/// sshd's message when a key is accepted.
const LOGGED_IN: &str = "Accepted publickey for ";

/// sshd's message when it starts a shell in a terminal; the terminal's name follows.
const SHELL_ON: &str = "Starting session: shell on ";

/// The beginnings of frequent messages that are not worth logging.
const CHATTER: [&str; 11] = [
    "Accepted key",
    "Changed root",
    "Close session",
    "Closing connection",
    "Connection from",
    "Disconnected from",
    "Postponed publickey",
    "Received disconnect",
    "Starting session",
    "Transferred",
    "User child",
];

/// Who uses the shell, and when it was last used.
#[derive(Debug)]
pub struct Use(Mutex<Used>);

#[derive(Debug)]
struct Used {
    last: Instant,
    /// By their numbers, the oldest first.
    connections: BTreeMap<u64, Open>,
    /// How many there were.
    count: u64,
    /// How many lines were logged of connections that had not logged in.
    said: usize,
}

#[derive(Debug)]
struct Open {
    /// The number of its sshd.
    process: i32,
    has_logged_in: bool,
    /// The connection ends with it.
    _end: oneshot::Sender<()>,
}

/// A connection, until it is dropped.
#[derive(Debug)]
struct Connected {
    used: Arc<Use>,
    number: u64,
    /// Returns when it has to end.
    end: oneshot::Receiver<()>,
}

impl Use {
    /// Counts from now.
    pub fn new() -> Self {
        Self(Mutex::new(Used {
            last: Instant::now(),
            connections: BTreeMap::new(),
            count: 0,
            said: 0,
        }))
    }

    /// The time of the last traffic of users who had logged in, of their login or logout.
    pub fn last(&self) -> Instant {
        self.used().last
    }

    /// Whether somebody is logged in, or about to be.
    pub fn is_connected(&self) -> bool {
        !self.used().connections.is_empty()
    }

    /// The processes that serve the connections.
    pub fn processes(&self) -> Vec<i32> {
        self.used().connections.values().map(|open| open.process).collect()
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(self: &Arc<Self>, process: i32) -> Connected {
        let (sender, end) = oneshot::channel();
        let mut used = self.used();
        let number = used.count;
        used.count += 1;
        let mut strangers = used.connections.iter().filter(|(_, open)| !open.has_logged_in);
        if let Some((oldest, _)) = strangers.next().filter(|_| strangers.count() + 1 >= MOST_STRANGERS) {
            let oldest = *oldest;
            used.connections.remove(&oldest);
        }
        let open = Open {
            process,
            has_logged_in: false,
            _end: sender,
        };
        used.connections.insert(number, open);
        Connected {
            used: Arc::clone(self),
            number,
            end,
        }
    }
}

impl Connected {
    fn logs_in(&self) {
        if let Some(open) = self.used.used().connections.get_mut(&self.number) {
            open.has_logged_in = true;
        }
        self.note();
    }

    /// Notes traffic.
    fn note(&self) {
        let mut used = self.used.used();
        if used
            .connections
            .get(&self.number)
            .is_some_and(|open| open.has_logged_in)
        {
            used.last = Instant::now();
        }
    }

    /// Whether one more line of it may be logged.
    fn may_say(&self) -> bool {
        let mut used = self.used.used();
        if used
            .connections
            .get(&self.number)
            .is_some_and(|open| open.has_logged_in)
        {
            return true;
        }
        used.said += 1;
        used.said <= SAID_OF_STRANGERS
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.note();
        self.used.used().connections.remove(&self.number);
    }
}

/// Serves all connections until it is dropped. They end with `connections`. Logins on a terminal get the `greeting`.
pub async fn serve(
    sshd: &Sshd,
    channel: &Channel,
    used: &Arc<Use>,
    connections: &mut JoinSet<()>,
    events: &Events,
    greeting: &impl Fn() -> String,
) -> Infallible {
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(mut line) = channel.open_line().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let mut first = [0];
        match timeout(RENEWED, line.read_exact(&mut first)).await {
            Ok(Ok(_)) if first == [GO] => {}
            // The server is being restarted.
            Ok(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(_) => continue,
        }
        match start(sshd) {
            Ok((child, ours)) => {
                let number = child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or_default();
                let (connected, events) = (used.connect(number), events.clone());
                connections.spawn(connect(child, ours, line, connected, events, greeting()));
            }
            Err(error) => events.say(format!("sshd cannot be started: {error}")).await,
        }
    }
}

fn start(sshd: &Sshd) -> std::io::Result<(tokio::process::Child, UnixStream)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((sshd.serve(theirs.into())?, UnixStream::from_std(ours)?))
}

async fn connect(
    child: tokio::process::Child,
    ours: UnixStream,
    line: impl AsyncRead + AsyncWrite + Unpin,
    mut connected: Connected,
    events: Events,
    greeting: String,
) {
    let (_, end) = oneshot::channel();
    let end = std::mem::replace(&mut connected.end, end);
    tokio::select! {
        () = serve_one(child, ours, line, &connected, &events, &greeting) => {}
        _ = end => {}
    }
}

/// Serves a connection to its end. sshd ends when this is dropped.
async fn serve_one(
    mut child: tokio::process::Child,
    ours: UnixStream,
    line: impl AsyncRead + AsyncWrite + Unpin,
    connected: &Connected,
    events: &Events,
    greeting: &str,
) {
    let said = child.stderr.take();
    let log = async {
        let Some(said) = said else { return };
        let mut lines = BufReader::new(said).lines();
        let mut count = 0;
        // Read to the end in any case: sshd must not wait for a reader.
        while let Ok(Some(text)) = lines.next_line().await {
            if text.starts_with(LOGGED_IN) {
                connected.logs_in();
            }
            // Only a login with a terminal and without a command is a person, who reads the greeting.
            if let Some(name) = text.strip_prefix(SHELL_ON).and_then(|rest| rest.split(' ').next()) {
                tell(&Path::new("/dev").join(name), greeting);
            }
            if !CHATTER.iter().any(|words| text.starts_with(words)) && count < SAID && connected.may_say() {
                count += 1;
                events.say(format!("sshd: {}", text.trim_end())).await;
            }
        }
    };
    let (mut from_user, mut to_user) = tokio::io::split(line);
    let (mut from_sshd, mut to_sshd) = ours.into_split();
    let pass = async {
        tokio::select! {
            // sshd ends when its user disconnects, and the connection ends with sshd.
            _ = pass_on(&mut from_user, &mut to_sshd, connected) => {}
            _ = pass_on(&mut from_sshd, &mut to_user, connected) => {}
        }
        let _ = to_user.shutdown().await;
        drop((to_sshd, from_sshd));
    };
    tokio::join!(pass, log);
    let _ = child.wait().await;
}

async fn pass_on(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    connected: &Connected,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        connected.note();
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_take_the_room_of_strangers_only() {
        let used = Arc::new(Use::new());
        let owner = used.connect(1);
        owner.logs_in();
        let mut strangers: Vec<_> = (0..MOST_STRANGERS).map(|_| used.connect(2)).collect();
        let ended = |connected: &mut Connected| connected.end.try_recv() == Err(oneshot::error::TryRecvError::Closed);
        assert!(strangers.iter_mut().all(|stranger| !ended(stranger)));
        let before = used.last();
        let mut next = used.connect(3);
        let all: Vec<bool> = strangers.iter_mut().map(ended).collect();
        assert_eq!(all.iter().filter(|ended| **ended).count(), 1);
        assert!(all[0] && !ended(&mut next));
        // Nor do they keep the shell open.
        drop((strangers, next));
        assert_eq!(used.last(), before);
        assert_eq!(used.processes(), [1]);
        drop(owner);
        assert!(used.last() > before && !used.is_connected());
    }
}
