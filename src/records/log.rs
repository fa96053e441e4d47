//! The log of a job, line by line. Pure: no I/O.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Moment, Step};

/// Longer texts are cut, in bytes: users do not read them, and they would take memory everywhere on their way.
pub const LONGEST_LINE: usize = 16 * 1024;

/// The end of a line that was cut.
const CUT: &str = " … (line cut)";

/// What a stored line takes beside its text, in bytes, so that a log of many empty lines has a size too.
const ROW: u64 = 100;

/// The size of a line in a log, in bytes.
pub const fn size_of(text: &str) -> u64 {
    text.len() as u64 + ROW
}

/// Cuts a text to [`LONGEST_LINE`].
pub fn cut(mut text: String) -> String {
    if text.len() > LONGEST_LINE {
        text.truncate(text.floor_char_boundary(LONGEST_LINE - CUT.len()));
        text.push_str(CUT);
    }
    text
}

/// The size in bytes to which one attempt may fill the log of a job that may have `limit`, of which attempts `before`
/// have used some: half of what they left, and always a little, so that the cause of the last failure can be read.
/// All attempts together stay below twice the limit.
pub fn share(limit: u64, before: u64) -> u64 {
    (limit.saturating_sub(before) / 2).max(limit / 16)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_once_and_between_letters() {
        let worst = "é".repeat(LONGEST_LINE);
        let once = cut(worst);
        assert!(once.len() <= LONGEST_LINE && once.ends_with("é … (line cut)"));
        assert_eq!(cut(once.clone()), once);
        let longest = "x".repeat(LONGEST_LINE);
        assert_eq!(cut(longest.clone()), longest);
    }

    #[test]
    fn attempts_share_a_log_and_none_is_without_words() {
        const LIMIT: u64 = 64 << 20;
        let mut used = 0;
        for attempt in 0..16 {
            let share = share(LIMIT, used);
            assert!(share >= LIMIT / 16, "attempt {attempt}");
            used += share;
        }
        assert!(used < 2 * LIMIT);
        assert_eq!(share(LIMIT, 0), LIMIT / 2);
        assert_eq!(share(0, u64::MAX), 0);
    }
}
