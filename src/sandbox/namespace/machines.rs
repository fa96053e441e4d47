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

use super::{
    NamespaceDriver,
    files::{self, Files},
    machine::KVM,
    plan::{Plan, Task},
    trial::{Trial, sweep_trials},
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
    ///
    /// # Errors
    ///
    /// `not_looked_at` while there is no toolbox to try it with, else what is missing.
    pub(super) async fn machines_here(&self) -> Result<Machine, Failure> {
        let qemu = qemu::find()?;
        let parts = self.parts()?;
        let toolbox = Toolbox::find(&parts.toolboxes, Arch::host()).ok_or_else(|| {
            Failure::new(
                Code::NotLookedAt,
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

    /// Whether a machine with Kiln's own kernel boots on the CPU itself. Without a toolbox, which has that kernel, this
    /// is not shown, and so not the case.
    pub(super) async fn is_kvm_usable(&self) -> bool {
        let tried = async {
            let Some(toolbox) = Toolbox::find(&self.parts()?.toolboxes, Arch::host()) else {
                return Ok(false);
            };
            let (qemu, boot_files) = (qemu::find()?, self.boot_files(&toolbox).await?);
            let mut tried = TRIED.lock().await;
            if let Some((_, Ok(accelerator))) = &*tried {
                return Ok(*accelerator == Accelerator::Kvm);
            }
            let (accelerator, patience) = PATIENCE[0];
            self.try_machine(bare_machine(qemu, accelerator, boot_files), patience)
                .await?;
            *tried = Some((Instant::now(), Ok(accelerator)));
            Ok::<_, Failure>(true)
        };
        Path::new(KVM).exists()
            && tried.await.unwrap_or_else(|failure| {
                tracing::info!(%failure, "virtual machines do not boot with KVM");
                false
            })
    }

    /// Boots a machine in a sandbox like a job's.
    async fn try_machine(&self, machine: VmSpec, patience: Duration) -> Result<(), Failure> {
        let mut trial = Trial::new(&self.sandboxes)?;
        if machine.accelerator == Accelerator::Kvm {
            self.lend_kvm(&trial.files)?;
        }
        let plan = Plan {
            ids: self.ids()?,
            dir: trial.files.dir().to_owned(),
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
    pub(super) fn lend_kvm(&self, files: &Files) -> Result<(), Failure> {
        let ids = self.ids()?;
        if ids.rootless {
            return Ok(());
        }
        let failed = |errno: nix::errno::Errno| Failure::io("cannot lend /dev/kvm to a sandbox", &errno.into());
        files::remove_file(&files.kvm())?;
        let device = stat(KVM).map_err(failed)?.st_rdev;
        mknod(&files.kvm(), SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, device).map_err(failed)?;
        let (user, group) = (Uid::from_raw(ids.uid_base), Gid::from_raw(ids.gid_base));
        chown(&files.kvm(), Some(user), Some(group)).map_err(failed)
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
