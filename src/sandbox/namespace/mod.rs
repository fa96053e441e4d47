//! The namespace driver: a sandbox made of Linux namespaces, without root and without a daemon.
//!
//! User, mount, pid, ipc, uts and cgroup namespaces are the sandbox's own; the network is the host's. Ids inside are
//! mapped to ids that are nobody outside (`idmap`). What the file systems look like is in `mounts`.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixStream, unix::OwnedReadHalf, unix::OwnedWriteHalf},
    process::{Child, ChildStderr, Command},
};

pub use idmap::IdMap;
pub use mounts::{DOORS, SCRATCH};
pub use plan::Report;
use plan::{Plan, Task};

use crate::{
    records::{Failure, JobId, protocol::AgentFacts},
    sandbox::Limits,
};

mod cgroup;
mod idmap;
mod init;
mod kernel;
mod mounts;
mod plan;
pub mod supervisor;

/// Where a host command of [`NamespaceDriver::run_host_command`] finds its directory.
pub const HOST_COMMAND_DIR: &str = "/tmp/kiln";

/// The hidden subcommand that makes this program the supervisor of one sandbox.
pub const SUPERVISOR_COMMAND: &str = "sandbox-supervisor";

/// Makes sandboxes below one directory.
#[derive(Debug, Clone)]
pub struct NamespaceDriver {
    sandboxes: PathBuf,
    program: PathBuf,
    ids: IdMap,
}

/// What a sandbox for one job is made from.
#[derive(Debug)]
pub struct JobSandbox<'a> {
    /// The job; it names the sandbox.
    pub job: JobId,
    /// The unpacked toolbox.
    pub toolbox: &'a Path,
    /// The static agent.
    pub agent: &'a Path,
    /// Holds the sockets of the agent's server; [`DOORS`] inside.
    pub doors: &'a Path,
    /// What the agent hears on its standard input.
    pub facts: AgentFacts,
    /// What it may use.
    pub limits: Limits,
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

/// Our hold on a supervisor.
#[derive(Debug)]
pub struct Handle {
    child: Child,
    reports: BufReader<OwnedReadHalf>,
    lifeline: Option<OwnedWriteHalf>,
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

async fn remove_groups(job: JobId) -> Result<(), Failure> {
    let removed = tokio::task::spawn_blocking(move || cgroup::remove_by_name(&job.to_string())).await;
    removed.map_err(|error| Failure::new("sandbox_lost", error))
}

fn lost(detail: String) -> Failure {
    Failure::new("sandbox_lost", detail).hint("something killed it; the kernel log may say what")
}

impl NamespaceDriver {
    /// A driver that keeps sandboxes in `sandboxes` and starts supervisors with `program`, which is `kiln` itself.
    ///
    /// # Errors
    ///
    /// When the directory cannot be made or this user has no ids for a sandbox.
    pub fn new(sandboxes: &Path, program: &Path) -> Result<Self, Failure> {
        make_private_dir(sandboxes)?;
        Ok(Self {
            sandboxes: sandboxes.to_owned(),
            program: program.to_owned(),
            ids: IdMap::of_this_user()?,
        })
    }

    /// The directory of a job's sandbox. What the job leaves under [`SCRATCH`] is in `scratch` below it.
    pub fn dir_of(&self, job: JobId) -> PathBuf {
        self.sandboxes.join(job.to_string())
    }

    /// Starts a sandbox with the agent in it.
    pub async fn start(&self, request: JobSandbox<'_>) -> Result<Running, Failure> {
        let dir = self.dir_of(request.job);
        make_shared_dir(&dir)?;
        let resolv_conf = fs_err::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let plan = Plan {
            ids: self.ids,
            dir,
            task: Task::RunAgent {
                name: request.job.to_string(),
                toolbox: request.toolbox.to_owned(),
                agent: request.agent.to_owned(),
                doors: request.doors.to_owned(),
                resolv_conf,
                limits: request.limits,
                keep: request.keep,
            },
        };
        let failed = |error: std::io::Error| Failure::io("cannot tell the agent its job", &error);
        let (mut facts, theirs) = socket_pair()?;
        let mut handle = self.supervise(&plan, Stdio::from(theirs)).await?;
        let mut line = serde_json::to_string(&request.facts).map_err(|error| Failure::new("sandbox_start", error))?;
        line.push('\n');
        // It fits into the socket's buffer; the agent reads it when it runs.
        facts.write_all(line.as_bytes()).await.map_err(failed)?;
        let stderr = handle
            .child
            .stderr
            .take()
            .ok_or_else(|| Failure::new("sandbox_start", "no standard error"))?;
        Ok(Running { stderr, handle })
    }

    /// Runs a program of the host as root of a user namespace of its own, with `dir` at [`HOST_COMMAND_DIR`]. Every
    /// line of its output goes to `say`.
    ///
    /// # Errors
    ///
    /// When it cannot be started; how it ended is in the report.
    pub async fn run_host_command(
        &self,
        dir: &Path,
        argv: &[&str],
        env: &[(&str, &str)],
        mut say: impl FnMut(&str),
    ) -> Result<Report, Failure> {
        let plan = Plan {
            ids: self.ids,
            dir: dir.to_owned(),
            task: Task::RunHostCommand {
                argv: argv.iter().map(ToString::to_string).collect(),
                env: env
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect(),
            },
        };
        let (output, theirs) = socket_pair()?;
        let theirs_too = theirs
            .try_clone()
            .map_err(|error| Failure::io("cannot start a command", &error))?;
        let mut handle = self
            .supervise_with_stderr(&plan, Stdio::from(theirs), Stdio::from(theirs_too))
            .await?;
        let mut lines = BufReader::new(output).split(b'\n');
        while let Ok(Some(line)) = lines.next_segment().await {
            say(&String::from_utf8_lossy(&line));
        }
        let report = handle.wait().await?;
        match report.failure {
            Some(failure) => Err(failure),
            None => Ok(report),
        }
    }

    /// Removes what is left of a job's sandbox, whoever of it died.
    pub async fn destroy(&self, job: JobId) -> Result<(), Failure> {
        // The directory first: its lock is free only when every process of the sandbox is gone.
        self.remove_dir(&self.dir_of(job)).await?;
        remove_groups(job).await
    }

    /// Removes a directory whose files belong to ids of a sandbox.
    pub async fn remove_dir(&self, dir: &Path) -> Result<(), Failure> {
        if dir.exists() {
            let plan = Plan {
                ids: self.ids,
                dir: dir.to_owned(),
                task: Task::Empty,
            };
            let report = self.supervise(&plan, Stdio::null()).await?.wait().await?;
            if let Some(failure) = report.failure {
                return Err(failure);
            }
            fs_err::remove_dir(dir).map_err(|error| Failure::io("cannot remove a directory", &error))?;
        }
        match fs_err::remove_file(supervisor::lock_path(dir)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::io("cannot remove a lock", &error))
            }
            _ => Ok(()),
        }
    }

    /// Removes what sandboxes left that died together with their supervisor. Returns the jobs they belonged to.
    ///
    /// `is_live` says of a job whether somebody runs it; its sandbox may be about to start, or to be marked as kept.
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
            let dead = path.is_dir() && !is_live(job) && !is_alive(&path) && !path.join(KEEP_MARK).exists();
            if dead && self.destroy(job).await.is_ok() {
                swept.push(job);
            }
        }
        for job in cgroup::names().iter().filter_map(|name| name.parse::<JobId>().ok()) {
            if !is_live(job) && !is_alive(&self.dir_of(job)) {
                remove_groups(job).await?;
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

    async fn supervise(&self, plan: &Plan, stdout: Stdio) -> Result<Handle, Failure> {
        self.supervise_with_stderr(plan, stdout, Stdio::piped()).await
    }

    async fn supervise_with_stderr(&self, plan: &Plan, stdout: Stdio, stderr: Stdio) -> Result<Handle, Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot start the sandbox's supervisor", &error);
        let (control, theirs) = socket_pair()?;
        let child = Command::new(&self.program)
            .arg(SUPERVISOR_COMMAND)
            .stdin(Stdio::from(theirs))
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .map_err(failed)?;
        let (reports, mut lifeline) = control.into_split();
        let mut line = serde_json::to_string(plan).map_err(|error| Failure::new("sandbox_start", error))?;
        line.push('\n');
        lifeline.write_all(line.as_bytes()).await.map_err(failed)?;
        Ok(Handle {
            child,
            reports: BufReader::new(reports),
            lifeline: Some(lifeline),
        })
    }
}

/// The mark of [`NamespaceDriver::mark_kept`].
const KEEP_MARK: &str = "keep";

fn socket_pair() -> Result<(UnixStream, OwnedFd), Failure> {
    let failed = |error: std::io::Error| Failure::io("cannot make a socket", &error);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    Ok((UnixStream::from_std(ours).map_err(failed)?, OwnedFd::from(theirs)))
}

/// Whether a supervisor holds the lock of the sandbox in `dir`.
fn is_alive(dir: &Path) -> bool {
    let Ok(lock) = fs_err::File::open(supervisor::lock_path(dir)) else {
        return false;
    };
    lock.file().try_lock().is_err()
}

/// Makes a directory that only this user may enter.
pub(crate) fn make_private_dir(dir: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| Failure::io(format!("cannot make {}", dir.display()), &error))
}

/// Makes a directory that the ids of sandboxes may write to. Who may reach it at all is decided by its parent, which
/// only this user may enter.
pub(crate) fn make_shared_dir(dir: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    fs_err::create_dir_all(dir)
        .and_then(|()| fs_err::set_permissions(dir, std::fs::Permissions::from_mode(0o777)))
        .map_err(|error| Failure::io("cannot make a sandbox's directory", &error))
}
