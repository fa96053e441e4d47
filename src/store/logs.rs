//! Logs of jobs, and what is known of the agents that write them.

use async_trait::async_trait;

use super::Result;
use crate::records::{JobId, LogLine, LogRow, Moment};

/// Logs of jobs. Nothing here asks whether the job exists: an agent may speak a moment longer than its job is there.
///
/// Of a line's text, null characters and line breaks are kept as their pictures (`␀`, `␊`, `␍`); PostgreSQL takes no null
/// character, and a line with a break in it would be read as two. All other characters stay, also those that a terminal
/// would obey.
#[async_trait]
pub trait JobLogs: Send + Sync {
    /// Adds what the events of an agent said, and notes that it was heard. `first` is the agent's own number of the first
    /// event, counted from 0 in each attempt; events that came before are passed over. One that said nothing for the log
    /// is only counted. No events at all are a sign of life. `progressed` says that the job got on.
    ///
    /// Lines, numbers and times change together; what was answered is durable.
    async fn append(
        &self,
        job: JobId,
        attempt: u32,
        first: u64,
        said: &[Option<LogLine>],
        progressed: bool,
        now: Moment,
    ) -> Result<Appended>;

    /// Adds lines of the server's own.
    async fn say(&self, job: JobId, lines: &[LogLine], now: Moment) -> Result<()>;

    /// At most so many lines of a log, in their order; those behind the number `after`, or from the first on.
    async fn log_page(&self, job: JobId, after: Option<u64>, limit: u32) -> Result<Vec<LogRow>>;

    /// How many lines a log has.
    async fn log_length(&self, job: JobId) -> Result<u64>;

    /// What is known of a job's agent; none if no agent of any attempt was heard.
    async fn pulse(&self, job: JobId) -> Result<Option<Pulse>>;

    /// Removes at most so many lines of a log, the first ones. Answers whether there are more; with the last line
    /// everything else goes that is known of the agent.
    async fn drop_log(&self, job: JobId, limit: u32) -> Result<bool>;

    /// At most so many logs whose jobs are gone.
    async fn logs_left_behind(&self, limit: u32) -> Result<Vec<JobId>>;
}

/// What became of an agent's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// They are kept, and this is the number of the agent's next event.
    Next(u64),
    /// Events are missing before them. Nothing was kept.
    Hole {
        /// The number of the first event that is missing.
        expected: u64,
    },
    /// The job is tried anew already, and nobody listens to this agent any more. Nothing was kept.
    OldAttempt,
}

/// What is known of a job's agent, by the server's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// The attempt that the agent belongs to.
    pub attempt: u32,
    /// When it was last heard.
    pub heard: Moment,
    /// When the job last got on; at first, when the agent was first heard.
    pub progressed: Moment,
}
