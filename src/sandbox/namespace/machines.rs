//! Offers virtual machines in the namespace driver: finds their parts, and tests whether they boot here. Starts test
//! sandboxes.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use kiln_records::{Code, Failure, arch::Arch, protocol::AgentFacts};
use nix::{
    sys::stat::{Mode, SFlag, mknod, stat},
    unistd::{Gid, Uid, chown},
};
use tokio::{io::AsyncReadExt, sync::Mutex, time::timeout};
use uuid::Uuid;

use super::{
    NamespaceDriver,
    files::{self, Files},
    handle::Handle,
    machine::KVM,
    make_shared_dir,
    plan::{Plan, Task},
};
use crate::sandbox::{
    Machine, Network, SandboxSpec,
    microvm::{self, Accelerator, VmSpec, boot_files::BootFiles, qemu, relays},
    toolbox::Toolbox,
};

/// Where the driver finds the parts of machines.
#[derive(Debug, Clone)]
pub(super) struct MachineParts {
    toolboxes: PathBuf,
    /// The program of their process 1: the agent under another name.
    init: PathBuf,
}

/// How long a machine may take to boot. A CPU that runs guests needs less than a second, emulation three on an
/// otherwise idle host.
const PATIENCE: [(Accelerator, Duration); 2] = [
    (Accelerator::Kvm, Duration::from_secs(10)),
    (Accelerator::Tcg, Duration::from_secs(90)),
];

/// The prefix of the names of trials, which belong to no job.
const TRIAL: &str = "trial-";

/// No trial takes that long to lock itself.
const UNLOCKED_TRIAL: Duration = Duration::from_mins(10);

/// How long the end of a killed trial may take.
const DYING: Duration = Duration::from_secs(1);

/// How long a negative result is valid.
const DISBELIEF: Duration = Duration::from_mins(5);

/// The result of the test in this process. A positive one does not change while the host runs, and the test takes
/// seconds.
static TRIED: Mutex<Option<(Instant, Result<Accelerator, Failure>)>> = Mutex::const_new(None);

impl NamespaceDriver {
    /// Adds virtual machines to the driver. They boot with the kernel of the toolbox in `toolboxes`, and `agent` is
    /// the program of their process 1.
    #[must_use]
    pub fn with_machines(self, toolboxes: &Path, agent: &Path) -> Self {
        let parts = MachineParts {
            toolboxes: toolboxes.to_owned(),
            init: agent.to_owned(),
        };
        Self {
            machines: Some(parts),
            ..self
        }
    }

    /// The machines available here, found by trial.
    pub(super) async fn machines_here(&self) -> Result<Machine, Failure> {
        let qemu = qemu::find()?;
        let parts = self.parts()?;
        let toolbox = Toolbox::find(&parts.toolboxes, Arch::host()).ok_or_else(|| {
            Failure::new(
                Code::NoVm,
                "the kernel of virtual machines is part of the toolbox, which is not built yet",
            )
            .hint("run `kiln toolbox build`")
        })?;
        let boot_files = self.boot_files(&toolbox).await?;
        let accelerator = self.accelerator(&qemu, &boot_files).await?;
        let version = qemu::version(&qemu).await?;
        let accelerated = accelerator == Accelerator::Kvm;
        let how = if accelerated { "KVM" } else { "an emulated CPU (TCG)" };
        Ok(Machine {
            what: format!("{version} with {how}"),
            accelerated,
        })
    }

    /// The machine of a sandbox, and its agent's facts.
    ///
    /// # Errors
    ///
    /// `no_vm` when none are available, `vm_network` when the host's network is asked for, which no machine can have.
    pub(super) async fn machine_of(&self, sandbox: &SandboxSpec) -> Result<(VmSpec, AgentFacts), Failure> {
        if sandbox.network == Network::Host {
            return Err(Failure::new(
                Code::VmNetwork,
                "a virtual machine cannot have the host's own network",
            ));
        }
        let qemu = qemu::find()?;
        let boot_files = self.boot_files(&sandbox.toolbox).await?;
        let accelerator = self.accelerator(&qemu, &boot_files).await?;
        let cpus = std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1));
        let (relays, facts) = relays(&sandbox.facts);
        let machine = VmSpec {
            memory: VmSpec::memory_for(sandbox.limits.memory, boot_files.init_size),
            cpus: sandbox.limits.cpus.unwrap_or(cpus),
            toolbox: Some(sandbox.toolbox.squashfs.clone()),
            relays,
            ..bare_machine(qemu, accelerator, boot_files)
        };
        if accelerator == Accelerator::Kvm {
            self.lend_kvm(&self.files(sandbox.job))?;
        }
        Ok((machine, facts))
    }

    /// The most host memory in bytes that a machine takes in addition to its job's.
    pub(super) fn memory_beside_machines(&self) -> u64 {
        let init = self.machines.as_ref().map(|parts| fs_err::metadata(&parts.init));
        // A program that cannot be read makes no machine.
        let init_size = init.and_then(Result::ok).map_or(0, |program| program.len());
        microvm::memory_beside(init_size)
    }

    fn parts(&self) -> Result<&MachineParts, Failure> {
        let parts = self.machines.as_ref();
        parts.ok_or_else(|| Failure::new(Code::NoVm, "virtual machines are not set up"))
    }

    async fn boot_files(&self, toolbox: &Toolbox) -> Result<BootFiles, Failure> {
        let (toolbox, init) = (toolbox.clone(), self.parts()?.init.clone());
        let made = tokio::task::spawn_blocking(move || BootFiles::of(&toolbox, &init)).await;
        made.map_err(|error| Failure::new(Code::VmKernel, error))?
    }

    /// The best accelerator with which a machine boots here. Concurrent calls wait for the one that tests it.
    async fn accelerator(&self, qemu: &Path, boot_files: &BootFiles) -> Result<Accelerator, Failure> {
        let mut tried = TRIED.lock().await;
        match &*tried {
            Some((_, Ok(accelerator))) => return Ok(*accelerator),
            Some((when, Err(failure))) if when.elapsed() < DISBELIEF => return Err(failure.clone()),
            _ => {}
        }
        let found = self.try_accelerators(qemu, boot_files).await;
        *tried = Some((Instant::now(), found.clone()));
        found
    }

    async fn try_accelerators(&self, qemu: &Path, boot_files: &BootFiles) -> Result<Accelerator, Failure> {
        sweep_trials(&self.sandboxes);
        let mut refused = None;
        for (accelerator, patience) in PATIENCE {
            if accelerator == Accelerator::Kvm && !Path::new(KVM).exists() {
                continue;
            }
            let machine = bare_machine(qemu.to_owned(), accelerator, boot_files.clone());
            match self.try_machine(machine, patience).await {
                Ok(()) => return Ok(accelerator),
                Err(failure) => {
                    tracing::info!(?accelerator, %failure, "virtual machines do not boot with this accelerator");
                    refused = Some(failure);
                }
            }
        }
        Err(refused.unwrap_or_else(|| Failure::new(Code::NoVm, "no accelerator was tried")))
    }

    /// Boots a machine in a sandbox like a job's.
    async fn try_machine(&self, machine: VmSpec, patience: Duration) -> Result<(), Failure> {
        let dir = self.sandboxes.join(format!("{TRIAL}{}", Uuid::new_v4()));
        let mut trial = Trial {
            files: Files::of(&dir),
            handle: None,
        };
        make_shared_dir(&dir)?;
        if machine.accelerator == Accelerator::Kvm {
            self.lend_kvm(&trial.files)?;
        }
        let plan = Plan {
            ids: self.ids,
            dir,
            task: Task::TryMachine(Box::new(machine)),
        };
        let handle = trial.handle.insert(self.supervise(&plan, Stdio::null()).await?);
        let mut stderr = handle.child.stderr.take();
        let ended = timeout(patience, handle.wait()).await;
        handle.kill().await;
        let outcome = match ended {
            Ok(Ok(report)) => report.failure.map_or(Ok(()), Err),
            Ok(Err(failure)) => Err(failure),
            Err(_) => {
                // The end of the machine matters, not its report.
                let _ = handle.wait().await;
                let detail = format!("a virtual machine did not boot within {} s", patience.as_secs());
                Err(Failure::new(Code::VmBoot, detail))
            }
        };
        let mut said = String::new();
        if let Some(stderr) = &mut stderr {
            let _ = stderr.take(64 * 1024).read_to_string(&mut said).await;
        }
        outcome.map_err(|mut failure| {
            if let Some(last) = said.lines().rfind(|line| !line.trim().is_empty()) {
                failure.detail = format!("{}: {last}", failure.detail);
            }
            failure
        })
    }

    /// Makes a `/dev/kvm` that belongs to the sandbox's root. An ordinary user cannot, and needs one that is open to
    /// all users.
    fn lend_kvm(&self, files: &Files) -> Result<(), Failure> {
        if self.ids.rootless {
            return Ok(());
        }
        let failed = |errno: nix::errno::Errno| Failure::io("cannot lend /dev/kvm to a sandbox", &errno.into());
        files::remove_file(&files.kvm())?;
        let device = stat(KVM).map_err(failed)?.st_rdev;
        mknod(&files.kvm(), SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, device).map_err(failed)?;
        let (user, group) = (Uid::from_raw(self.ids.uid_base), Gid::from_raw(self.ids.gid_base));
        chown(&files.kvm(), Some(user), Some(group)).map_err(failed)
    }
}

/// The sandbox of a trial. Whatever becomes of the trial, nothing of it is left when this is dropped: a process may end
/// while one of its trials is under way.
struct Trial {
    /// The directory of a trial stays empty.
    files: Files,
    handle: Option<Handle>,
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let Some(handle) = &mut self.handle {
            // Where the trial has ended, these do nothing. Otherwise all of its processes die with the supervisor, which
            // would make its lock anew if it came to that later.
            let _ = handle.child.start_kill();
            let until = Instant::now() + DYING;
            while matches!(handle.child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let removed = match fs_err::remove_dir(self.files.dir()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::io("the directory", &error)),
            _ => Ok(()),
        };
        let removed = removed
            .and_then(|()| files::remove_file(&self.files.kvm()))
            .and_then(|()| files::remove_file(&self.files.lock_path()));
        if let Err(failure) = removed {
            tracing::warn!("the trial of a virtual machine is not cleared away: {failure}");
        }
    }
}

/// Removes what trials left whose process was killed: their locks are free. A failure is met again, and reported, by the
/// next trial.
pub(super) fn sweep_trials(sandboxes: &Path) {
    for entry in fs_err::read_dir(sandboxes).into_iter().flatten().flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_dir || !entry.file_name().to_string_lossy().starts_with(TRIAL) {
            continue;
        }
        let files = Files::of(&entry.path());
        let made = entry.metadata().and_then(|meta| meta.modified());
        let is_old = || made.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > UNLOCKED_TRIAL));
        let was_killed = match (files::is_there(&files.lock_path()), files.is_alive()) {
            (Ok(true), Ok(false)) => true,
            // It may be about to lock itself.
            (Ok(false), Ok(false)) => is_old(),
            _ => false,
        };
        if was_killed {
            drop(Trial { files, handle: None });
        }
    }
}

/// A machine that can only boot.
fn bare_machine(qemu: PathBuf, accelerator: Accelerator, boot_files: BootFiles) -> VmSpec {
    VmSpec {
        qemu,
        accelerator,
        kernel: boot_files.kernel,
        initrd: boot_files.initrd,
        toolbox: None,
        memory: VmSpec::memory_for(Some(0), boot_files.init_size),
        cpus: 1,
        relays: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::io::BufReader;

    use super::*;

    fn trial(sandboxes: &Path, name: &str) -> Files {
        let files = Files::of(&sandboxes.join(name));
        fs_err::create_dir(files.dir()).unwrap();
        for file in [files.kvm(), files.lock_path()] {
            fs_err::write(file, "").unwrap();
        }
        files
    }

    fn left(sandboxes: &Path) -> Vec<String> {
        let entries = fs_err::read_dir(sandboxes).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    #[tokio::test]
    async fn a_trial_that_is_given_up_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut supervisor = tokio::process::Command::new("sleep");
        let child = supervisor.arg("600").spawn().unwrap();
        let pid = child.id().unwrap();
        let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
        let (reports, lifeline) = ours.into_split();
        let handle = Some(Handle {
            child,
            reports: BufReader::new(reports),
            lifeline: Some(lifeline),
        });
        drop(Trial {
            files: trial(dir.path(), "trial-1"),
            handle,
        });
        assert_eq!(left(dir.path()), [""; 0]);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn only_trials_without_a_process_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name| trial(dir.path(), name);
        make("trial-killed");
        make("another");
        let _lock = make("trial-alive").lock().unwrap();
        for (name, age) in [("trial-new", 1), ("trial-old", 2 * UNLOCKED_TRIAL.as_secs())] {
            let files = make(name);
            fs_err::remove_file(files.lock_path()).unwrap();
            let opened = fs_err::File::open(files.dir()).unwrap();
            let then = SystemTime::now() - Duration::from_secs(age);
            opened.file().set_modified(then).unwrap();
        }
        sweep_trials(dir.path());
        let expected = [
            "another",
            "another.kvm",
            "another.lock",
            "trial-alive",
            "trial-alive.kvm",
            "trial-alive.lock",
            "trial-new",
            "trial-new.kvm",
        ];
        assert_eq!(left(dir.path()), expected);
    }
}
