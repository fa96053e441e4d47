//! The namespace driver for `kiln build`: sandboxes that end with the process that started them. Starts supervisors,
//! and touches files of sandboxes.

use std::{path::Path, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
    process::{Child, ChildStderr},
};

use super::{
    NamespaceDriver,
    detached::resolv_conf,
    files::Files,
    make_shared_dir,
    plan::{AgentTask, Life, Plan, Report, Task},
    remove_groups,
};
use crate::{
    records::{Code, Failure, JobId, protocol::AgentFacts},
    sandbox::{Limits, Network},
};

/// The mark of [`NamespaceDriver::mark_kept`].
const KEEP_MARK: &str = "keep";

/// The parts of a sandbox for one job.
#[derive(Debug)]
pub struct JobSandbox<'a> {
    /// The job, which names the sandbox.
    pub job: JobId,
    /// The unpacked toolbox.
    pub toolbox: &'a Path,
    /// The static agent.
    pub agent: &'a Path,
    /// The directory with the server's sockets; [`DOORS`](super::DOORS) inside.
    pub doors_dir: &'a Path,
    /// The line that the agent reads on its standard input.
    pub facts: AgentFacts,
    /// The most that it may use.
    pub limits: Limits,
    /// The networks that it can reach.
    pub network: Network,
    /// Whether to leave the job's files on disk at the end.
    pub keep: bool,
}

/// A started sandbox. Dropping it kills the sandbox.
#[derive(Debug)]
pub struct Running {
    /// Standard error of the agent and the supervisor: evidence when the agent dies.
    pub stderr: ChildStderr,
    handle: Handle,
}

/// The connection to the supervisor of an attached sandbox.
#[derive(Debug)]
pub struct Handle {
    pub(super) child: Child,
    pub(super) reports: BufReader<OwnedReadHalf>,
    pub(super) lifeline: Option<OwnedWriteHalf>,
}

impl Running {
    /// Splits off standard error for another reader.
    pub fn split(self) -> (ChildStderr, Handle) {
        (self.stderr, self.handle)
    }
}

impl Handle {
    /// Asks the supervisor to kill the sandbox. [`Handle::wait`] returns when it is gone.
    pub async fn kill(&mut self) {
        if let Some(mut lifeline) = self.lifeline.take() {
            // An error means that the supervisor has already ended.
            let _ = lifeline.shutdown().await;
        }
    }

    /// Waits until the sandbox is gone and all of it is cleaned up.
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

impl NamespaceDriver {
    /// Starts a sandbox with the agent in it, which ends when the returned value is dropped.
    pub async fn start_attached(&self, request: JobSandbox<'_>) -> Result<Running, Failure> {
        let dir = self.dir_of(request.job);
        make_shared_dir(&dir)?;
        let plan = Plan {
            ids: self.ids,
            dir,
            task: Task::RunAgent(Box::new(AgentTask {
                name: request.job.to_string(),
                toolbox: request.toolbox.to_owned(),
                agent: request.agent.to_owned(),
                doors: request.doors_dir.to_owned(),
                facts: request.facts,
                resolv_conf: resolv_conf(&request.network),
                limits: request.limits,
                network: request.network,
                machine: None,
                life: Life::Attached { keep: request.keep },
            })),
        };
        let mut handle = self.supervise(&plan, Stdio::null()).await?;
        let stderr = handle
            .child
            .stderr
            .take()
            .ok_or_else(|| Failure::new(Code::SandboxStart, "no standard error"))?;
        Ok(Running { stderr, handle })
    }

    /// Removes the remains of a job's sandbox, however it ended.
    pub async fn destroy_attached(&self, job: JobId) -> Result<(), Failure> {
        // The lock is free only when every process of the sandbox is gone.
        let files = self.files(job);
        let gone = tokio::task::spawn_blocking(move || files.lock().map(drop)).await;
        gone.map_err(|error| Failure::new(Code::SandboxLost, error))??;
        // The directory is removed last, since leftovers are found by it.
        remove_groups(job).await?;
        self.remove_dir(&self.dir_of(job)).await
    }

    /// Removes the remains of sandboxes that died together with their supervisor. Returns their jobs.
    ///
    /// Detached sandboxes are skipped. `is_live` tells whether a job is being run; its sandbox may be about to start,
    /// or to be marked as kept.
    ///
    /// # Errors
    ///
    /// The directory cannot be read. A leftover that cannot be removed waits for the next sweep.
    pub async fn sweep(&self, is_live: impl Fn(JobId) -> bool) -> Result<Vec<JobId>, Failure> {
        let mut swept = Vec::new();
        let entries = fs_err::read_dir(&self.sandboxes).map_err(|error| Failure::io("cannot sweep", &error))?;
        for entry in entries.flatten() {
            let path = entry.path();
            let Some(job) = path.file_name().and_then(|name| name.to_str()?.parse::<JobId>().ok()) else {
                continue;
            };
            let files = Files::of(&path);
            let dead = path.is_dir()
                && !is_live(job)
                && !files.is_detached()
                && !files.is_alive()
                && !path.join(KEEP_MARK).exists();
            if dead && self.destroy_attached(job).await.is_ok() {
                swept.push(job);
            }
        }
        Ok(swept)
    }

    /// The jobs whose sandboxes were kept.
    pub fn kept(&self) -> Result<Vec<JobId>, Failure> {
        let entries =
            fs_err::read_dir(&self.sandboxes).map_err(|error| Failure::io("cannot list sandboxes", &error))?;
        let kept = entries.flatten().filter(|entry| entry.path().join(KEEP_MARK).exists());
        Ok(kept
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect())
    }

    /// Marks a job's directory as kept for the user; sweeps skip it.
    pub fn mark_kept(&self, job: JobId) -> Result<(), Failure> {
        fs_err::write(self.dir_of(job).join(KEEP_MARK), "")
            .map_err(|error| Failure::io("cannot keep the sandbox", &error))
    }
}

fn lost(detail: String) -> Failure {
    Failure::new(Code::SandboxLost, detail).hint("something killed it; the kernel log may say what")
}
