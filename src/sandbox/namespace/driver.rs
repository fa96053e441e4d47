//! The namespace driver's sandboxes of jobs. Starts and kills supervisors, and touches files of sandboxes.

use std::{os::unix::fs::MetadataExt, path::Path, process::Stdio, sync::PoisonError, time::Duration};

use async_trait::async_trait;
use kiln_records::{Code, Failure, JobId, arch::Arch};
use nix::sys::statvfs::statvfs;
use tokio::{io::AsyncWriteExt, process::Command, time::Instant};

use super::{
    NamespaceDriver, SUPERVISOR_COMMAND, cgroup, disk,
    files::{self, Files},
    make_shared_dir, network,
    plan::{AgentTask, Plan, Report, Task},
    remove_groups, socket_pair,
};
use crate::{
    host,
    sandbox::{
        Capacity, Driver, DriverKind, Evidence, Kernel, Machine, Network, SandboxSpec, SandboxState, Scratch, Usage,
    },
};

/// How long a supervisor may take to end its sandbox before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// How long killed processes may take to end: they wait for the kernel first, which writes to a busy disk.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// Pause between checks whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[async_trait]
impl Driver for NamespaceDriver {
    async fn start(&self, sandbox: &SandboxSpec) -> Result<(), Failure> {
        let files = self.files(sandbox.job);
        let plan = self.plan(sandbox).await?;
        if let Some(from) = sandbox.scratch_from {
            self.move_scratch(from, &files)?;
            let own = files.disk(sandbox.kernel);
            match (files.some_disk()?, sandbox.kernel) {
                (Some(disk), Kernel::Own) if disk == own => disk::is_unmounted(&disk)?,
                (Some(disk), Kernel::Shared) if disk == own => {}
                (Some(_), Kernel::Own) => {
                    return Err(no_scratch(from, "it belongs to a sandbox without a virtual machine"));
                }
                (Some(_), Kernel::Shared) => return Err(no_scratch(from, "it belongs to a virtual machine")),
                (None, Kernel::Own) => {
                    return Err(no_scratch(from, "a virtual machine cannot resume with a directory"));
                }
                (None, Kernel::Shared) => {}
            }
        } else if files.is_anything()? {
            return Err(exists(sandbox.job));
        }
        let lock = files.try_lock()?.ok_or_else(|| exists(sandbox.job))?;
        let failed = |error: std::io::Error| Failure::io("cannot start the sandbox's supervisor", &error);
        let stderr = fs_err::File::options()
            .create(true)
            .append(true)
            .open(files.stderr())
            .map_err(failed)?;
        make_shared_dir(files.dir())?;
        // From here on the disk space belongs to this sandbox and is removed with it.
        files::remove_file(&files.keep())?;

        let mut line = serde_json::to_string(&plan).map_err(|error| Failure::new(Code::SandboxStart, error))?;
        line.push('\n');
        let (mut control, theirs) = socket_pair()?;
        Command::new(&self.program)
            .arg(SUPERVISOR_COMMAND)
            // The supervisor must not keep any directory of the host busy.
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::from(lock.into_file()))
            .stderr(Stdio::from(stderr.into_file()))
            .spawn()
            .map_err(failed)?;
        control.write_all(line.as_bytes()).await.map_err(failed)?;
        if let Some(lifelines) = &self.lifelines {
            lifelines.lock().unwrap_or_else(PoisonError::into_inner).push(control);
        }
        Ok(())
    }

    async fn look(&self, job: JobId) -> Result<SandboxState, Failure> {
        let files = self.files(job);
        // The order matters: the report is written before the lock is released.
        if files.is_alive()? {
            return Ok(SandboxState::Running);
        }
        if !files::is_there(&files.stderr())? {
            return Ok(SandboxState::Absent);
        }
        let report = files.report()?.unwrap_or_else(|| {
            let detail = "the sandbox ended without a report";
            Report::of_failure(Failure::new(Code::SandboxLost, detail).hint("it was killed; see the kernel log"))
        });
        Ok(SandboxState::Ended(Evidence {
            exit_code: report.exit_code,
            oom_kills: report.oom_kills,
            failure: report.failure,
            warning: report.warning,
            last_words: files.last_words(),
        }))
    }

    async fn last_words(&self, job: JobId) -> Result<Vec<String>, Failure> {
        Ok(self.files(job).last_words())
    }

    async fn usage(&self, job: JobId) -> Result<Usage, Failure> {
        let files = self.files(job);
        if let Some(report) = files.report()? {
            return Ok(report.usage);
        }
        let mut usage = files.usage()?.unwrap_or_default();
        // The note is up to a second old, and a build that lost a process may fail at once.
        let kills = cgroup::counters_by_name(&self.group_of(job)?)?
            .oom_kills()
            .map_err(|error| Failure::io("cannot see whether a process was killed for lack of memory", &error))?;
        usage.oom_kills = usage.oom_kills.max(kills);
        Ok(usage)
    }

    async fn destroy(&self, job: JobId, scratch: Scratch) -> Result<(), Failure> {
        let files = self.files(job);
        let group = self.group_of(job)?;
        end(&group, &files).await?;
        let keep = scratch == Scratch::Keep && (files.is_kept()? || keep_scratch(&files)?);
        if !keep {
            for kernel in [Kernel::Shared, Kernel::Own] {
                files::remove_file(&files.disk(kernel))?;
            }
            self.empty(files.dir()).await?;
        }
        remove_groups(group).await?;
        if !keep {
            files::remove_file(&files.keep())?;
        }
        files.remove_notes()?;
        files::remove_file(&files.lock_path())
    }

    async fn list(&self) -> Result<Vec<(JobId, bool)>, Failure> {
        let entries =
            fs_err::read_dir(&self.sandboxes).map_err(|error| Failure::io("cannot list sandboxes", &error))?;
        let mut jobs: Vec<_> = entries
            .flatten()
            .filter_map(|entry| Files::job_of(&entry.path()))
            .collect();
        jobs.sort_unstable();
        jobs.dedup();
        let mut listed = Vec::with_capacity(jobs.len());
        for job in jobs {
            let files = self.files(job);
            // Without its other notes, a free lock is the last trace of a sandbox; a held one is that of a task.
            let is_trace = files.is_of_job()? || (files::is_there(&files.lock_path())? && !files.is_alive()?);
            if is_trace && !files.is_in_use()? {
                let only_scratch = files.is_kept()? && !files::is_there(&files.stderr())?;
                listed.push((job, only_scratch));
            }
        }
        Ok(listed)
    }

    async fn capacity(&self) -> Result<Capacity, Failure> {
        let disk = statvfs(&self.sandboxes).map_err(|errno| Failure::io("cannot measure the disk", &errno.into()))?;
        Ok(Capacity {
            cpus: std::thread::available_parallelism()
                .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
            memory: host::memory().map_err(|error| Failure::io("cannot see how much memory this host has", &error))?,
            disk_free: disk.blocks_available() * disk.fragment_size(),
            disk_total: disk.blocks() * disk.fragment_size(),
            inodes_free: disk.files_available(),
            inodes_total: disk.files(),
        })
    }

    fn kind(&self, kernel: Kernel) -> DriverKind {
        match kernel {
            Kernel::Shared => DriverKind::Namespace,
            Kernel::Own => DriverKind::Microvm,
        }
    }

    fn memory_beside(&self, kernel: Kernel) -> u64 {
        match kernel {
            Kernel::Shared => 0,
            Kernel::Own => self.memory_beside_machines(),
        }
    }

    async fn arch(&self) -> Result<Arch, Failure> {
        Ok(Arch::host())
    }

    async fn shared_kernel(&self) -> Result<(), Failure> {
        self.ids().map(drop)
    }

    async fn own_kernel(&self) -> Result<Machine, Failure> {
        self.ids()?;
        self.machines_here().await
    }
}

impl NamespaceDriver {
    pub(super) fn files(&self, job: JobId) -> Files {
        Files::of(&self.dir_of(job))
    }

    async fn plan(&self, sandbox: &SandboxSpec) -> Result<Plan, Failure> {
        let (machine, facts) = match sandbox.kernel {
            Kernel::Shared => (None, sandbox.facts.clone()),
            Kernel::Own => {
                let (machine, facts) = self.machine_of(sandbox).await?;
                (Some(machine), facts)
            }
        };
        Ok(Plan {
            ids: self.ids()?,
            dir: self.dir_of(sandbox.job),
            task: Task::RunAgent(Box::new(AgentTask {
                name: sandbox.job.to_string(),
                group: self.group_of(sandbox.job)?,
                toolbox: sandbox.toolbox.tree.clone(),
                agent: sandbox.agent.clone(),
                doors: sandbox.doors_dir.clone(),
                facts,
                resolv_conf: resolv_conf(&sandbox.network),
                limits: sandbox.limits,
                network: sandbox.network.clone(),
                machine,
                attached: self.lifelines.is_some(),
                in_directory: sandbox.in_directory,
                lease: sandbox.lease.clone(),
            })),
        })
    }

    /// The name of a sandbox's control groups. Another data directory on this host may have a sandbox of the same job, if two
    /// servers share their records: the directory's number tells them apart.
    fn group_of(&self, job: JobId) -> Result<String, Failure> {
        let of_dir = fs_err::metadata(&self.sandboxes);
        let of_dir = of_dir.map_err(|error| Failure::io("cannot look at the directory of sandboxes", &error))?;
        Ok(format!("{job}-{}", of_dir.ino()))
    }

    /// Removes a directory and its content.
    async fn empty(&self, dir: &Path) -> Result<(), Failure> {
        if files::is_there(dir)? {
            self.remove_dir(dir).await?;
        }
        Ok(())
    }

    /// Passes the disk space of the sandbox of `from` on to that of `to`. Also completes an interrupted move.
    fn move_scratch(&self, from: JobId, to: &Files) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot resume with a sandbox's disk space", &error);
        let from_files = self.files(from);
        if from_files.dir() != to.dir() {
            if from_files.is_alive()? {
                return Err(exists(from));
            }
            // The mark moves last: it means that there is something to move.
            for (old, new) in [
                (from_files.dir().to_owned(), to.dir().to_owned()),
                (from_files.disk(Kernel::Shared), to.disk(Kernel::Shared)),
                (from_files.disk(Kernel::Own), to.disk(Kernel::Own)),
                (from_files.keep(), to.keep()),
            ] {
                if from_files.is_kept()? && files::is_there(&old)? {
                    fs_err::rename(old, new).map_err(failed)?;
                }
            }
        }
        if to.is_kept()? && files::is_there(to.dir())? && !files::is_there(&to.stderr())? {
            return Ok(());
        }
        Err(no_scratch(from, "it is gone"))
    }
}

/// The content of `/etc/resolv.conf` in a sandbox with this network.
pub(super) fn resolv_conf(network: &Network) -> String {
    let of_host = fs_err::read_to_string("/etc/resolv.conf").unwrap_or_default();
    match network {
        Network::Isolated(_) => network::resolv_conf(&of_host),
        Network::Host => of_host,
    }
}

/// Marks the disk space as kept, if it exists and was written during this boot; the last writes of an earlier boot may
/// be lost. Returns whether it is kept.
fn keep_scratch(files: &Files) -> Result<bool, Failure> {
    let disk = files.some_disk()?;
    let there = disk.is_some() || files::is_there(&files.dir().join("scratch"))?;
    if !there || !files.is_of_this_boot()? {
        return Ok(false);
    }
    // A sandbox's writes are not synced. From now on they must survive a crash of the machine.
    let failed = |error: std::io::Error| Failure::io("cannot keep a sandbox's disk space", &error);
    let synced = disk.unwrap_or_else(|| files.dir().to_owned());
    let handle = fs_err::File::open(synced).map_err(failed)?;
    nix::unistd::syncfs(&handle).map_err(|errno| failed(errno.into()))?;
    fs_err::write(files.keep(), "").map_err(failed)?;
    Ok(true)
}

/// Ends every process of a sandbox.
async fn end(group: &str, files: &Files) -> Result<(), Failure> {
    if has_ended(files, Duration::ZERO).await? {
        return Ok(());
    }
    // If there is no room for the file, the supervisor is killed below.
    let asked = fs_err::write(files.stop(), "");
    if asked.is_ok() && has_ended(files, STOP_PATIENCE).await? {
        return Ok(());
    }
    files.kill_supervisor()?;
    cgroup::kill_by_name(group)?;
    if has_ended(files, KILL_PATIENCE).await? {
        return Ok(());
    }
    let detail = format!("the sandbox in {} does not end", files.dir().display());
    Err(Failure::new(Code::SandboxStuck, detail).hint("a process of it waits for the kernel, perhaps for a disk"))
}

/// Waits until no process holds the sandbox's lock. Returns whether it was released in time.
async fn has_ended(files: &Files, patience: Duration) -> Result<bool, Failure> {
    let until = Instant::now() + patience;
    while files.is_alive()? {
        if Instant::now() >= until {
            return Ok(false);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(true)
}

fn no_scratch(from: JobId, why: &str) -> Failure {
    Failure::new(
        Code::NoScratch,
        format!("cannot resume with the disk space of job {from}: {why}"),
    )
}

fn exists(job: JobId) -> Failure {
    Failure::new(Code::SandboxExists, format!("there is a sandbox of job {job} already"))
}
