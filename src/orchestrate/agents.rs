//! What agents may ask of whoever runs their jobs.

use std::fmt;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::records::{
    Failure, JobId,
    protocol::{Answer, Call},
};

/// The server's side of the agents' protocol. [`api::agent`](crate::api::agent) carries it over HTTP.
#[async_trait]
pub trait AgentCalls: fmt::Debug + Send + Sync {
    /// Answers one call of the agent of `job` that showed `token`.
    ///
    /// # Errors
    ///
    /// Why there is no answer, and with that what the agent is to do.
    async fn answer(&self, job: JobId, token: &str, call: Call) -> Result<Answer, Refusal>;

    /// Takes a line into the sandbox of a job, after [`Answer::Line`]. It is closed by being dropped.
    fn take_line(&self, job: JobId, line: Line);
}

/// A line into a sandbox, for one who logs in to its shell (see [`shell`](crate::records::protocol::shell)).
pub type Line = Box<dyn Stream>;

/// Both directions of a connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Why an agent gets no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such job, or that is not its token. The agent exits.
    Unknown,
    /// The job is over. The agent kills its tools and exits.
    Over,
    /// The events begin after this number, which is the one to come next. The agent cannot mend that; the job fails.
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
