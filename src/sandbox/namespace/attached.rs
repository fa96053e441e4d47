//! The namespace driver as `kiln build` uses it: sandboxes that end with the process that started them.

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

/// What a sandbox for one job is made from.
#[derive(Debug)]
pub struct JobSandbox<'a> {
    /// The job; it names the sandbox.
    pub job: JobId,
    /// The unpacked toolbox.
    pub toolbox: &'a Path,
    /// The static agent.
    pub agent: &'a Path,
    /// Holds the sockets of the server; [`DOORS`](super::DOORS) inside.
    pub doors_dir: &'a Path,
    /// What the agent hears on its standard input.
    pub facts: AgentFacts,
    /// What it may use.
    pub limits: Limits,
    /// What it can reach.
    pub network: Network,
    /// Leave the job's files on disk at the end.
    pub keep: bool,
}

/// A sandbox that was started. Dropping it kills the sandbox.
#[derive(Debug)]
pub struct Running {
    /// What the agent and the supervisor say on standard error: evidence when the agent dies.
    pub stderr: ChildStderr,
    handle: Handle,
}

/// Our hold on the supervisor of an attached sandbox.
#[derive(Debug)]
pub struct Handle {
    pub(super) child: Child,
    pub(super) reports: BufReader<OwnedReadHalf>,
    pub(super) lifeline: Option<OwnedWriteHalf>,
}

impl Running {
    /// Splits off standard error, which is read by somebody else.
    pub fn split(self) -> (ChildStderr, Handle) {
        (self.stderr, self.handle)
    }
}

impl Handle {
    /// Asks the supervisor to kill the sandbox. [`Handle::wait`] tells when it is gone.
    pub async fn kill(&mut self) {
        if let Some(mut lifeline) = self.lifeline.take() {
            // An error means that the supervisor has ended already.
            let _ = lifeline.shutdown().await;
        }
    }

    /// Waits until the sandbox is gone and everything of it cleaned up.
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
        serde_json::from_str(&line).map_err(|error| lost(format!("the sandbox's supervisor said nonsense: {error}")))
    }
}

impl NamespaceDriver {
    /// Starts a sandbox with the agent in it, which ends when what is returned is dropped.
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

    /// Removes what is left of a job's sandbox, whoever of it died.
    pub async fn destroy_attached(&self, job: JobId) -> Result<(), Failure> {
        // The lock is free only when every process of the sandbox is gone.
        let files = self.files(job);
        let gone = tokio::task::spawn_blocking(move || files.lock().map(drop)).await;
        gone.map_err(|error| Failure::new(Code::SandboxLost, error))??;
        // The directory goes last, since leftovers are found by it.
        remove_groups(job).await?;
        self.remove_dir(&self.dir_of(job)).await
    }

    /// Removes what sandboxes left that died together with their supervisor. Returns the jobs they belonged to.
    ///
    /// Sandboxes that somebody will ask about are passed by. `is_live` says of a job whether somebody runs it; its sandbox
    /// may be about to start, or to be marked as kept.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read; a leftover that resists is left for the next sweep.
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

    /// Marks a job's directory as one that the user wants to look at; sweeps pass it by.
    pub fn mark_kept(&self, job: JobId) -> Result<(), Failure> {
        fs_err::write(self.dir_of(job).join(KEEP_MARK), "")
            .map_err(|error| Failure::io("cannot keep the sandbox", &error))
    }
}

fn lost(detail: String) -> Failure {
    Failure::new(Code::SandboxLost, detail).hint("something killed it; the kernel log may say what")
}
