//! Defines what every driver does for the server: start a sandbox, inspect it, measure it, destroy it. Pure: no I/O
//! here.
//!
//! A sandbox belongs to a job and is found by it. Drivers keep no state in memory: a restarted server sees the
//! sandboxes that the previous one started.

use std::{fmt, path::PathBuf, time::Duration};

use async_trait::async_trait;
use ipnet::IpNet;
use kiln_records::{
    Failure, JobId,
    arch::Arch,
    protocol::AgentFacts,
    run::{DriverKind, Kernel},
    shell::Address,
};
use serde::{Deserialize, Serialize};

use super::{lease::Lease, toolbox::Toolbox};
pub use kiln_inside::room::Usage;

/// Makes and ends sandboxes in one place.
#[async_trait]
pub trait Driver: fmt::Debug + Send + Sync {
    /// Starts a sandbox with the agent in it. It survives the end of this process.
    ///
    /// Returns before the agent runs: later failures are in the [`Evidence`].
    ///
    /// # Errors
    ///
    /// `sandbox_exists` when the job's sandbox is already running; `no_scratch` when the disk space to continue with
    /// is gone.
    async fn start(&self, sandbox: &SandboxSpec) -> Result<(), Failure>;

    /// The state of the job's sandbox, even if an earlier process started it.
    async fn look(&self, job: JobId) -> Result<SandboxState, Failure>;

    /// The last lines of its agent on standard error, while it runs too.
    async fn last_words(&self, job: JobId) -> Result<Vec<String>, Failure>;

    /// What the place knows of why the agent of a sandbox is not heard, though the sandbox has not ended.
    async fn why_silent(&self, job: JobId) -> Result<Option<Failure>, Failure> {
        let _ = job;
        Ok(None)
    }

    /// Its current and peak usage. After its end, its total usage, until it is destroyed.
    async fn usage(&self, job: JobId) -> Result<Usage, Failure>;

    /// Ends all its processes and removes all of it; with [`Scratch::Keep`] its disk space stays for
    /// [`SandboxSpec::scratch_from`]. May be repeated, and after a crash at any point.
    ///
    /// # Errors
    ///
    /// `sandbox_stuck` when processes cannot be ended; try again later.
    async fn destroy(&self, job: JobId, scratch: Scratch) -> Result<(), Failure>;

    /// Jobs that have a sandbox or remains of one, and whether only kept disk space remains. A sandbox that ends with
    /// the living process that started it is left out: it is that one's business.
    async fn list(&self) -> Result<Vec<(JobId, bool)>, Failure>;

    /// Whether servers on other hosts reach the same sandboxes.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether the place exists, as far as is known: a cluster has places of those architectures only of which it has nodes.
    fn is_there(&self) -> bool {
        true
    }

    /// Makes the way to a job's shell, for which this server listens on `port`. May be repeated: another server may have
    /// taken the job over, and an address may be known later.
    ///
    /// # Errors
    ///
    /// The place does not make it; try again later.
    async fn shell_way(&self, job: JobId, port: u16) -> Result<ShellWay, Failure> {
        let _ = (job, port);
        Ok(ShellWay::Server)
    }

    /// The driver's name when it makes sandboxes with this kernel.
    fn kind(&self, kernel: Kernel) -> DriverKind;

    /// Whether the site has configured it to make sandboxes with this kernel, so that it is missed when it cannot.
    fn is_meant_for(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Shared
    }

    /// The most memory in bytes that a sandbox with this kernel takes in addition to its job's limit.
    fn memory_beside(&self, kernel: Kernel) -> u64 {
        let _ = kernel;
        0
    }

    /// The resources of the place.
    async fn capacity(&self) -> Result<Capacity, Failure>;

    /// The CPU of the place.
    ///
    /// # Errors
    ///
    /// The place does not answer.
    async fn arch(&self) -> Result<Arch, Failure>;

    /// Succeeds if the driver can make sandboxes on the place's own kernel.
    ///
    /// # Errors
    ///
    /// The reason why it cannot.
    async fn shared_kernel(&self) -> Result<(), Failure>;

    /// The virtual machines that the driver can make, found by trial, which may take seconds. The result is valid for
    /// minutes.
    ///
    /// # Errors
    ///
    /// The reason why it can make none.
    async fn own_kernel(&self) -> Result<Machine, Failure>;

    /// Removes what this process alone knows of, before it ends: a trial that is under way. Sandboxes stay.
    ///
    /// # Errors
    ///
    /// What is left, and why.
    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// The address at which users reach the shell of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShellWay {
    /// That of the server.
    Server,
    /// One that the place has made, and that leads to the server.
    Elsewhere {
        /// From anywhere; `None` as long as the place has not given one.
        outside: Option<Address>,
        /// From within the place.
        inside: Address,
    },
}

/// The virtual machines that a driver can make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// A short description, such as `QEMU 7.2 with KVM`.
    pub what: String,
    /// Whether the CPU runs the guest; otherwise the CPU is emulated too, tens of times as slow.
    pub accelerated: bool,
}

/// The parts of a sandbox.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// The job, which names the sandbox.
    pub job: JobId,
    /// The root file system.
    pub toolbox: Toolbox,
    /// The static agent.
    pub agent: PathBuf,
    /// The most that it may use.
    pub limits: Limits,
    /// The kernel that it runs on.
    pub kernel: Kernel,
    /// The networks that it can reach.
    pub network: Network,
    /// The directory with the server's sockets (see [`Doors`](super::doors::Doors)); `/run/kiln` inside.
    pub doors_dir: PathBuf,
    /// The line that the agent reads on its standard input. Drivers whose sandboxes cannot have the server's sockets
    /// change `server`, `gateway` and `ca_bundle`.
    pub facts: AgentFacts,
    /// The server's URL for sandboxes on another host, or in a virtual machine of the engine; `None` if not
    /// configured.
    pub server_url: Option<String>,
    /// The authorities that the agent trusts there, PEM.
    pub server_ca_bundle: Option<String>,
    /// Keep its files in a directory that can be read afterwards, rather than in one file with a size, where there is
    /// the choice.
    pub in_directory: bool,
    /// Without this lease a sandbox on this host stands still; `None` if no other server can take its job. The sandboxes
    /// of an engine have none.
    pub lease: Option<Lease>,
    /// Continue with the disk space that this job's sandbox left; it is taken over.
    pub scratch_from: Option<JobId>,
}

/// The most that a sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// CPUs.
    pub cpus: Option<u32>,
    /// Processes and threads.
    pub pids: u32,
    /// Disk space.
    pub disk: Option<DiskLimit>,
}

/// The most disk space that a sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskLimit {
    /// Bytes.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
}

/// The networks that a sandbox can reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Its own network, with a way out that does not lead to the host's loopback.
    Isolated(Reach),
    /// The host's network, including its loopback.
    Host,
}

/// The destinations of a network's way out. Name resolution always works.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// If not empty, only these networks.
    pub allow: Vec<IpNet>,
    /// Never these networks; takes precedence.
    pub deny: Vec<IpNet>,
}

/// The state of a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub enum SandboxState {
    /// The sandbox does not exist.
    Absent,
    /// The sandbox exists, and has not started yet: a cluster has no room for it, or lacks something.
    Waiting {
        /// Why, and how the job fails if that does not change.
        why: Failure,
        /// How long it may wait.
        longest: Duration,
    },
    /// The sandbox is running.
    Running,
    /// Its processes have ended; the sandbox has yet to be destroyed.
    Ended(Evidence),
}

/// What a sandbox leaves behind when it has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    /// The agent's exit code, or 128 plus the signal's number.
    pub exit_code: i32,
    /// How often the kernel killed a process inside because memory ran out.
    pub oom_kills: u64,
    /// Set when the sandbox could not be made, or was lost.
    pub failure: Option<Failure>,
    /// Set when this place could not give something that was asked for, such as limits.
    pub warning: Option<String>,
    /// The last lines of the agent and of the driver's own processes on standard error.
    pub last_words: Vec<String>,
}

/// What happens to a sandbox's disk space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scratch {
    /// It is removed with the sandbox.
    Remove,
    /// It is kept for another attempt to continue with.
    Keep,
}

/// The resources of a place for all sandboxes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// CPUs.
    pub cpus: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of disk that Kiln may still use.
    pub disk_free: u64,
    /// Bytes of disk in all.
    pub disk_total: u64,
    /// Free inodes; like [`Capacity::inodes_total`], 0 where the file system does not count them.
    pub inodes_free: u64,
    /// Inodes in all.
    pub inodes_total: u64,
}
