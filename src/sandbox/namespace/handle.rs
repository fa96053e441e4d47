//! The connection to a supervisor that runs a short task for this process: a host command, a test of a machine, the
//! removal of a directory. Talks to the supervisor only.

use kiln_records::{Code, Failure};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
    process::Child,
};

use super::plan::Report;

/// The connection to the supervisor of a task. Dropping it ends the task.
#[derive(Debug)]
pub struct Handle {
    pub(super) child: Child,
    pub(super) reports: BufReader<OwnedReadHalf>,
    pub(super) lifeline: Option<OwnedWriteHalf>,
}

impl Handle {
    /// Asks the supervisor to end the task. [`Handle::wait`] returns when it has ended.
    pub async fn kill(&mut self) {
        if let Some(mut lifeline) = self.lifeline.take() {
            // An error means that the supervisor has already ended.
            let _ = lifeline.shutdown().await;
        }
    }

    /// Waits until the task has ended.
    ///
    /// # Errors
    ///
    /// `sandbox_lost` when the supervisor ended without a report.
    pub async fn wait(&mut self) -> Result<Report, Failure> {
        let mut line = String::new();
        let read = self.reports.read_line(&mut line).await;
        let status = self
            .child
            .wait()
            .await
            .map_err(|error| Failure::io("lost the sandbox", &error))?;
        if read.is_err() || line.is_empty() {
            return Err(lost(format!("the sandbox's supervisor ended with {status}")));
        }
        serde_json::from_str(&line).map_err(|error| {
            lost(format!(
                "the report of the sandbox's supervisor cannot be read: {error}"
            ))
        })
    }
}

fn lost(detail: String) -> Failure {
    Failure::new(Code::SandboxLost, detail).hint("something killed it; the kernel log may say what")
}
