//! The namespace driver: sandboxes made of Linux namespaces, without root and without a daemon. Starts supervisors,
//! and touches the directory of sandboxes.
//!
//! User, mount, pid, ipc, uts and cgroup namespaces are the sandbox's own, and the network may be (`network`). Ids
//! inside are mapped to host ids without an owner ([`IdMap`]). The file systems are described in
//! [`room::mounts`](kiln_inside::room::mounts), the files beside them in `files`.
//!
//! The sandbox of a job lives on without the process that started it, or ends with it ([`NamespaceDriver::attached`]).

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    process::Command,
};

pub use super::microvm::image::memory_of_host;
use files::Files;
pub use handle::Handle;
pub use image_boot::{Boot, Bootable, End, ROOT_DEVICE, Said};
use kiln_records::{Code, Failure, JobId, protocol::BinfmtEntry};
use machines::MachineParts;
pub use plan::Report;
use plan::{Plan, Task};

pub use kiln_inside::room::{
    IdMap,
    mounts::{DOORS, SCRATCH},
};

mod cgroup;
mod child;
mod disk;
mod driver;
mod entrance;
mod files;
mod guest;
mod handle;
mod image;
mod image_boot;
mod init;
mod machine;
mod machines;
mod network;
mod plan;
mod relays;
mod rights;
pub mod supervisor;
mod trial;
mod watch;
mod words;

/// The directory of a host command, as [`NamespaceDriver::run_host_command`] presents it.
pub const HOST_COMMAND_DIR: &str = "/tmp/kiln";

/// The hidden subcommand that turns this program into the supervisor of one sandbox.
pub const SUPERVISOR_COMMAND: &str = "sandbox-supervisor";

/// Makes sandboxes below one directory.
#[derive(Debug, Clone)]
pub struct NamespaceDriver {
    sandboxes: PathBuf,
    program: PathBuf,
    /// A driver that makes no sandboxes may have none.
    ids: Result<IdMap, Failure>,
    machines: Option<MachineParts>,
    /// The sockets whose end ends the sandboxes of this process; `None` if sandboxes outlive it.
    lifelines: Option<Arc<Mutex<Vec<UnixStream>>>>,
}

async fn remove_groups(group: String) -> Result<(), Failure> {
    let removed = tokio::task::spawn_blocking(move || cgroup::remove_by_name(&group)).await;
    removed.map_err(|error| Failure::new(Code::SandboxLost, error))?
}

impl NamespaceDriver {
    /// A driver that keeps sandboxes in `sandboxes` and starts supervisors with `program`, which is `kiln` itself.
    ///
    /// # Errors
    ///
    /// The directory cannot be made, or this user has no ids for a sandbox.
    pub fn new(sandboxes: &Path, program: &Path) -> Result<Self, Failure> {
        let driver = Self::perhaps_without_ids(sandboxes, program)?;
        driver.ids()?;
        Ok(driver)
    }

    /// The same for a user who may have no ids for sandboxes: all that needs them fails, then.
    ///
    /// # Errors
    ///
    /// The directory cannot be made.
    pub fn perhaps_without_ids(sandboxes: &Path, program: &Path) -> Result<Self, Failure> {
        make_private_dir(sandboxes)?;
        trial::sweep_trials(sandboxes);
        Ok(Self {
            sandboxes: sandboxes.to_owned(),
            program: program.to_owned(),
            ids: IdMap::of_this_user(),
            machines: None,
            lifelines: None,
        })
    }

    fn ids(&self) -> Result<IdMap, Failure> {
        self.ids.clone()
    }

    /// The driver for a process whose sandboxes end with it, however it ends.
    #[must_use]
    pub fn attached(self) -> Self {
        Self {
            lifelines: Some(Arc::default()),
            ..self
        }
    }

    /// The jobs whose files are on disk although their sandboxes are gone.
    pub fn kept(&self) -> Result<Vec<JobId>, Failure> {
        let entries =
            fs_err::read_dir(&self.sandboxes).map_err(|error| Failure::io("cannot list sandboxes", &error))?;
        let kept = entries.flatten().map(|entry| entry.path());
        let kept = kept.filter(|path| path.extension().is_some_and(|extension| extension == "keep"));
        Ok(kept.filter_map(|path| Files::job_of(&path)).collect())
    }

    /// The directory of a job's sandbox. Its `scratch` has the files that the job leaves under [`SCRATCH`].
    pub fn dir_of(&self, job: JobId) -> PathBuf {
        self.sandboxes.join(job.to_string())
    }

    /// The files that a job's sandbox left: a directory, or one file with a file system.
    ///
    /// # Errors
    ///
    /// When the directory of sandboxes cannot be looked at.
    pub fn kept_at(&self, job: JobId) -> Result<PathBuf, Failure> {
        let dir = self.dir_of(job);
        let disk = Files::of(&dir).some_disk()?;
        Ok(disk.unwrap_or_else(|| dir.join("scratch")))
    }

    /// Runs a host program as root of its own user namespace, with `dir` at [`HOST_COMMAND_DIR`]. Every line of its
    /// output goes to `say`. With an `emulator` below that directory, programs of another architecture run there, and
    /// nowhere else on the host.
    ///
    /// # Errors
    ///
    /// The program cannot be started; its exit code is in the report.
    pub async fn run_host_command(
        &self,
        dir: &Path,
        argv: &[&str],
        env: &[(&str, &str)],
        emulator: Option<BinfmtEntry>,
        mut say: impl FnMut(&str),
    ) -> Result<Report, Failure> {
        let plan = self.host_command(dir, argv, env, emulator)?;
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

    /// Like [`NamespaceDriver::run_host_command`], for a program whose output is read by the caller. Its standard
    /// error is discarded.
    pub(in crate::sandbox) async fn start_host_command(
        &self,
        dir: &Path,
        argv: &[&str],
        env: &[(&str, &str)],
        output: Stdio,
    ) -> Result<Handle, Failure> {
        let plan = self.host_command(dir, argv, env, None)?;
        self.supervise_with_stderr(&plan, output, Stdio::null()).await
    }

    fn host_command(
        &self,
        dir: &Path,
        argv: &[&str],
        env: &[(&str, &str)],
        emulator: Option<BinfmtEntry>,
    ) -> Result<Plan, Failure> {
        Ok(Plan {
            ids: self.ids()?,
            dir: dir.to_owned(),
            task: Task::RunHostCommand {
                argv: argv.iter().map(ToString::to_string).collect(),
                env: env
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect(),
                emulator,
            },
        })
    }

    /// Removes a directory whose files belong to ids of a sandbox.
    pub async fn remove_dir(&self, dir: &Path) -> Result<(), Failure> {
        if files::is_there(dir)? {
            let plan = Plan {
                ids: self.ids()?,
                dir: dir.to_owned(),
                task: Task::Empty,
            };
            let report = self.supervise(&plan, Stdio::null()).await?.wait().await?;
            if let Some(failure) = report.failure {
                return Err(failure);
            }
            match fs_err::remove_dir(dir) {
                // Another process was removing it too.
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Failure::io("cannot remove a directory", &error));
                }
                _ => {}
            }
        }
        let files = Files::of(dir);
        files::remove_file(&files.agent())?;
        files::remove_file(&files.lock_path())
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
        let mut line = serde_json::to_string(plan).map_err(|error| Failure::new(Code::SandboxStart, error))?;
        line.push('\n');
        lifeline.write_all(line.as_bytes()).await.map_err(failed)?;
        Ok(Handle {
            child,
            reports: BufReader::new(reports),
            lifeline: Some(lifeline),
        })
    }
}

fn socket_pair() -> Result<(UnixStream, OwnedFd), Failure> {
    let failed = |error: std::io::Error| Failure::io("cannot make a socket", &error);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    Ok((UnixStream::from_std(ours).map_err(failed)?, OwnedFd::from(theirs)))
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

/// Makes a directory that the ids of sandboxes may write to. Its parent, which only this user may enter, controls
/// access.
pub(crate) fn make_shared_dir(dir: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt;
    fs_err::create_dir_all(dir)
        .and_then(|()| fs_err::set_permissions(dir, std::fs::Permissions::from_mode(0o777)))
        .map_err(|error| Failure::io("cannot make a sandbox's directory", &error))
}
