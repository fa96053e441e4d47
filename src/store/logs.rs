//! The trait for logs of jobs and the last signs of life of their agents. Pure: no I/O here.

use std::time::Duration;

use async_trait::async_trait;
use kiln_records::{JobId, LogLine, LogRow, Moment};

use super::Result;

/// Logs of jobs. No method checks that the job exists: an agent may speak a moment longer than its job does.
///
/// In the text of a line, null characters and line breaks are stored as their pictures (`␀`, `␊`, `␍`): PostgreSQL
/// rejects null characters, and a line break would make two lines of one. All other characters are kept, including
/// control characters of terminals.
#[async_trait]
pub trait JobLogs: Send + Sync {
    /// Adds the log lines in the events of the agent of a job's attempt, and records that the agent was heard. `first` is the agent's own
    /// number of the first event, counted from 0 in each attempt; events that are stored already are skipped. An event
    /// without a log line is only counted. An empty batch is a sign of life. `progressed` says that the job made
    /// progress.
    ///
    /// `limit` is the size that the job's log may have, in bytes; an attempt gets its [share](kiln_records::log::share).
    /// The first line beyond it is replaced by one that says so, and all later ones of the attempt are only counted.
    ///
    /// Lines, numbers and times change together, and are durable once the call returns.
    async fn append(
        &self,
        of: (JobId, u32),
        first: u64,
        said: &[Option<LogLine>],
        progressed: bool,
        limit: u64,
        now: Moment,
    ) -> Result<Appended>;

    /// Adds lines of the server itself.
    async fn say(&self, job: JobId, lines: &[LogLine], now: Moment) -> Result<()>;

    /// Up to `limit` lines of a log in order, after the line `after` or from the first. Long lines make a page shorter:
    /// it takes no more memory than some megabytes.
    async fn log_page(&self, job: JobId, after: Option<u64>, limit: u32) -> Result<LogRows>;

    /// The number of lines in a log.
    async fn log_length(&self, job: JobId) -> Result<u64>;

    /// The last signs of life of a job's agent; `None` if no agent of any attempt was heard.
    async fn pulse(&self, job: JobId) -> Result<Option<Pulse>>;

    /// Removes up to `limit` of the first lines of a log. Returns whether more are left; everything else about the
    /// agent goes with the last line.
    async fn drop_log(&self, job: JobId, limit: u32) -> Result<bool>;

    /// Up to `limit` logs whose jobs are gone.
    async fn logs_left_behind(&self, limit: u32) -> Result<Vec<JobId>>;
}

/// The result of adding an agent's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// The events are stored; this is the number of the agent's next event.
    Next(u64),
    /// Events before these are missing. Nothing was stored.
    Hole {
        /// The number of the first missing event.
        expected: u64,
    },
    /// A later attempt at the job has begun, and this agent is no longer heard. Nothing was stored.
    OldAttempt,
}

/// The last signs of life of a job's agent, by the database's clock, whichever server heard them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// The agent's attempt.
    pub attempt: u32,
    /// The time since the agent was last heard.
    pub unheard: Duration,
    /// The time since the job last made progress; initially, since the agent was first heard.
    pub silent: Duration,
    /// The size of the log of all attempts, in bytes.
    pub log_bytes: u64,
    /// The size of the log of the attempts before this one, in bytes.
    pub log_bytes_before: u64,
}

/// A page of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRows {
    /// Its lines, in order.
    pub rows: Vec<LogRow>,
    /// Whether later lines exist.
    pub more: bool,
}
