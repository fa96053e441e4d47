//! Defines the calls that agents may make to the server or build that runs their jobs. Pure: no I/O here.

use std::fmt;

use async_trait::async_trait;
use kiln_records::{
    Failure, JobId,
    protocol::{Answer, Call},
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::store::StoreError;

/// The server's side of the agents' protocol. [`api::agent`](crate::api::agent) carries it over HTTP.
#[async_trait]
pub trait AgentCalls: fmt::Debug + Send + Sync {
    /// Whether `token` is that of the agent of `job`, as [`answer`](Self::answer) would find before all else. This comes
    /// before anything else of a call is read.
    ///
    /// # Errors
    ///
    /// Why there would be no answer.
    async fn admit(&self, job: JobId, token: &str) -> Result<(), Refusal>;

    /// Answers one call of the agent of `job`, which presented `token`.
    ///
    /// # Errors
    ///
    /// Why there is no answer, which also tells the agent what to do.
    async fn answer(&self, job: JobId, token: &str, call: Call) -> Result<Answer, Refusal>;

    /// Takes over a line into the sandbox of a job, after [`Answer::Line`] to a call with `token`. Dropping the line closes
    /// it. One that another server has `passed_on` is not passed on again.
    async fn take_line(&self, job: JobId, token: &str, line: Line, passed_on: bool);

    /// Answers on a connection as the site's proxy, after [`Answer::Line`] to [`Call::OpenProxy`].
    async fn take_proxied(&self, job: JobId, line: Line);

    /// Answers on a connection as the registries of the site, after [`Answer::Line`] to [`Call::OpenRegistry`] with `token`.
    async fn take_registry(&self, job: JobId, token: &str, line: Line);
}

/// The header of a line that another server passes on.
pub const PASSED_ON: &str = "kiln-passed-on";

/// A line into a sandbox, for a user who logs in to its shell (see [`shell`](kiln_records::protocol::shell)).
pub type Line = Box<dyn Stream>;

/// Both directions of a connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Why an agent gets no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The job does not exist, or the token is not its own. The agent exits.
    Unknown,
    /// The job is over. The agent kills its tools and exits.
    Over,
    /// The events begin after this number, which is the next one expected. The agent cannot repair that; the job fails.
    Hole(u64),
    /// The server cannot answer now, for this reason. The agent tries again.
    Later(Failure),
    /// A failure that ends the job. The agent finishes with it.
    Failed(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        if failure.code.is_passing() {
            Self::Later(failure)
        } else {
            Self::Failed(failure)
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) | StoreError::Stale => Self::Later(error.into()),
            _ => Self::Failed(error.into()),
        }
    }
}
