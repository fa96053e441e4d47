//! Opens lines to the server, each of which becomes one user's connection. Starts an sshd per connection.

use std::{
    convert::Infallible,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use kiln_records::protocol::shell::GO;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::UnixStream,
    task::JoinSet,
    time::timeout,
};

use super::sshd::{Sshd, tell};
use crate::{channel::Channel, events::Events};

/// An unused line is replaced after this time: network devices on the way may forget it.
const RENEWED: Duration = Duration::from_mins(5);

/// The pause after a failure to open a line.
const PAUSE: Duration = Duration::from_secs(1);

/// How many of sshd's own lines are logged per connection, so that a flood of logins does not flood the log.
const SAID: usize = 8;

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
pub struct Use {
    last: Mutex<Instant>,
    connections: AtomicUsize,
}

/// A connection, until it is dropped.
#[derive(Debug)]
struct Connected(Arc<Use>);

impl Use {
    /// Counts from now.
    pub fn new() -> Self {
        Self {
            last: Mutex::new(Instant::now()),
            connections: AtomicUsize::new(0),
        }
    }

    /// The time of the last traffic, login or logout.
    pub fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody is logged in, or about to be.
    pub fn is_connected(&self) -> bool {
        self.connections.load(Ordering::Relaxed) > 0
    }

    fn connect(self: &Arc<Self>) -> Connected {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.note();
        Connected(Arc::clone(self))
    }

    fn note(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.note();
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves all connections until it is dropped, which also ends them. Logins on a terminal get the `greeting`.
pub async fn serve(
    sshd: &Sshd,
    channel: &Channel,
    used: &Arc<Use>,
    events: &Events,
    greeting: &impl Fn() -> String,
) -> Infallible {
    let mut connections = JoinSet::new();
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
                let (used, events) = (used.connect(), events.clone());
                connections.spawn(connect(child, ours, line, used, events, greeting()));
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
    mut child: tokio::process::Child,
    ours: UnixStream,
    line: impl AsyncRead + AsyncWrite + Unpin,
    connected: Connected,
    events: Events,
    greeting: String,
) {
    let used = &connected.0;
    let said = child.stderr.take();
    let log = async {
        let Some(said) = said else { return };
        let mut lines = BufReader::new(said).lines();
        let mut count = 0;
        // Read to the end in any case: sshd must not wait for a reader.
        while let Ok(Some(text)) = lines.next_line().await {
            // Only a login with a terminal and without a command is a person, who reads the greeting.
            if let Some(name) = text.strip_prefix(SHELL_ON).and_then(|rest| rest.split(' ').next()) {
                tell(&Path::new("/dev").join(name), &greeting);
            }
            if !CHATTER.iter().any(|words| text.starts_with(words)) && count < SAID {
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
            _ = pass_on(&mut from_user, &mut to_sshd, used) => {}
            _ = pass_on(&mut from_sshd, &mut to_user, used) => {}
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
    used: &Use,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        used.note();
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
    }
}
