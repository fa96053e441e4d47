//! What the runtime asks the agent before an instruction runs, and tells it afterwards. Listens on a socket of the sandbox, or
//! connects to it.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

/// The socket. It is in no root, so that programs there do not find it.
const SOCKET: &str = "/run/kiln-runs";

/// The longest question, in bytes.
const LONGEST: u64 = 64 << 10;

/// What a runtime says, one JSON line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// A command is about to run in this root.
    Begins(PathBuf),
    /// It has ended.
    Ended(PathBuf),
}

/// The answer, one JSON line.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Answer {
    /// Variables that the command has besides its own.
    pub(super) environment: Vec<(String, String)>,
    /// The path by which the agent knows the root, if there may be native twins of its programs.
    pub(super) twins_of: Option<PathBuf>,
    /// Why it must not run.
    pub(super) refusal: Option<String>,
}

/// The agent's end.
#[derive(Debug)]
pub(super) struct Runs(tokio::net::UnixListener);

/// A question that waits for its answer.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) said: Said,
    stream: tokio::net::UnixStream,
}

impl Runs {
    pub(super) fn listen() -> io::Result<Self> {
        // One of an earlier build in this sandbox.
        let _ = fs_err::remove_file(SOCKET);
        Ok(Self(tokio::net::UnixListener::bind(SOCKET)?))
    }

    /// The next question. What cannot be understood is passed over: whoever sent it sees the end of the connection.
    pub(super) async fn next(&self) -> io::Result<Question> {
        loop {
            let (mut stream, _) = self.0.accept().await?;
            let mut line = String::new();
            let mut limited = tokio::io::BufReader::new((&mut stream).take(LONGEST));
            if limited.read_line(&mut line).await.is_ok()
                && let Ok(said) = serde_json::from_str(&line)
            {
                return Ok(Question { said, stream });
            }
        }
    }
}

impl Question {
    /// Answers. A runtime that has gone needs no answer.
    pub(super) async fn answer(mut self, answer: &Answer) {
        if let Ok(mut line) = serde_json::to_vec(answer) {
            line.push(b'\n');
            let _ = self.stream.write_all(&line).await;
        }
    }
}

/// Asks whether a command may run in `root`.
pub(super) fn begin(root: &Path) -> io::Result<Answer> {
    ask(&Said::Begins(root.to_owned()))
}

/// Says that the command in `root` has ended.
pub(super) fn end(root: &Path) -> io::Result<()> {
    ask(&Said::Ended(root.to_owned())).map(drop)
}

fn ask(said: &Said) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(SOCKET)?;
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let answer: Answer = serde_json::from_str(&line)?;
    match answer.refusal {
        Some(refusal) => Err(io::Error::other(refusal)),
        None => Ok(answer),
    }
}
