//! Lines to the server, each of which becomes one user's connection.

use std::{
    convert::Infallible,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::UnixStream,
    task::JoinSet,
    time::timeout,
};

use super::sshd::{Sshd, tell};
use crate::{
    agent::{channel::Channel, events::Events},
    records::protocol::shell::GO,
};

/// A line that nobody used is replaced after this time: what is between here and the server may forget it.
const RENEWED: Duration = Duration::from_mins(5);

/// The pause after a line that could not be opened.
const PAUSE: Duration = Duration::from_secs(1);

/// Lines of sshd's own that are logged for each connection; a flood of logins is not to be one of log lines.
const SAID: usize = 8;

/// What sshd says when it starts a shell in a terminal, whose name follows.
const SHELL_ON: &str = "Starting session: shell on ";

/// Beginnings of what it says all the time, which is not worth a line of the log.
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

/// When the shell was last used.
#[derive(Debug)]
pub struct Use(Mutex<Instant>);

impl Use {
    /// From now on.
    pub fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// When something last came or went.
    pub fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// Serves all who come, until it is dropped; their connections end with it. Whoever logs in to a terminal is shown the
/// `greeting`.
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
                let (used, events) = (Arc::clone(used), events.clone());
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
    used: Arc<Use>,
    events: Events,
    greeting: String,
) {
    let said = child.stderr.take();
    let log = async {
        let Some(said) = said else { return };
        let mut lines = BufReader::new(said).lines();
        let mut count = 0;
        // Read to its end all the same: sshd must not wait for a reader.
        while let Ok(Some(text)) = lines.next_line().await {
            // Only who has a terminal and gave no command is a person, who wants to know.
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
            // sshd ends when its user does, and the other way round.
            _ = pass_on(&mut from_user, &mut to_sshd, &used) => {}
            _ = pass_on(&mut from_sshd, &mut to_user, &used) => {}
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
