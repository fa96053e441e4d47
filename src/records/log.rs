//! The log of a job, line by line. Pure: no I/O.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Moment, Step, protocol::Stream};

/// A line to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// The time of the line, by the clock of its origin. Stored to the microsecond.
    pub time: Timestamp,
    /// The step of the job at that time, if any.
    pub step: Option<Step>,
    /// The origin of the line.
    pub stream: LogStream,
    /// The line, without its end.
    pub text: String,
}

impl LogLine {
    /// A line of the server's own, with the current time.
    pub fn of_server(text: impl Into<String>) -> Self {
        Self {
            time: Timestamp::now(),
            step: None,
            stream: LogStream::Server,
            text: text.into(),
        }
    }
}

/// A stored line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRow {
    /// Its number in the job's log: from 0 without gaps, over all attempts.
    pub seq: u64,
    /// The time of its storage, by the server's clock.
    pub kept: Moment,
    /// The line itself.
    pub line: LogLine,
}

/// The origin of a log line. An agent cannot report the server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogStream {
    /// The server: why a job waits, that it is tried again, how it ended.
    Server,
    /// The agent.
    Agent,
    /// A tool's standard output.
    Stdout,
    /// A tool's standard error.
    Stderr,
}

impl LogStream {
    /// Every stream.
    pub const ALL: [LogStream; 4] = [
        LogStream::Server,
        LogStream::Agent,
        LogStream::Stdout,
        LogStream::Stderr,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            LogStream::Server => "server",
            LogStream::Agent => "agent",
            LogStream::Stdout => "stdout",
            LogStream::Stderr => "stderr",
        }
    }
}

impl From<Stream> for LogStream {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Agent => LogStream::Agent,
            Stream::Stdout => LogStream::Stdout,
            Stream::Stderr => LogStream::Stderr,
        }
    }
}
