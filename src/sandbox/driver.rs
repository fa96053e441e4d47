//! What every kind of sandbox can do for its server: start, be looked at, be measured, be destroyed.
//!
//! A sandbox belongs to a job and is found by it. Nothing about it is kept in memory: a server that was restarted sees
//! what the one before it started.

use std::{fmt, path::PathBuf};

use async_trait::async_trait;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use super::room::Usage;
use super::toolbox::Toolbox;
use crate::{
    arch::Arch,
    records::{
        Failure, JobId,
        protocol::AgentFacts,
        run::{DriverKind, Kernel},
    },
};

/// Makes sandboxes in one place, and ends them.
#[async_trait]
pub trait Driver: fmt::Debug + Send + Sync {
    /// Starts a sandbox with the agent in it. It lives on when this process ends.
    ///
    /// Comes back before the agent runs: what goes wrong from then on is in the [`Evidence`].
    ///
    /// # Errors
    ///
    /// `sandbox_exists` when the job's sandbox runs already; `no_scratch` when the disk space to go on with is gone.
    async fn start(&self, sandbox: &SandboxSpec) -> Result<(), Failure>;

    /// How it is, whoever started it.
    async fn look(&self, job: JobId) -> Result<SandboxState, Failure>;

    /// What it uses now and used at most. After its end, what it used in all, until it is destroyed.
    async fn usage(&self, job: JobId) -> Result<Usage, Failure>;

    /// Ends every process of it and removes all of it; with [`Scratch::Keep`] its disk space stays for
    /// [`SandboxSpec::scratch_from`]. May be repeated, and after a crash at any line.
    ///
    /// # Errors
    ///
    /// `sandbox_stuck` when processes of it resist; to be tried again.
    async fn destroy(&self, job: JobId, scratch: Scratch) -> Result<(), Failure>;

    /// Jobs of which there is anything, and whether that is only disk space that was kept.
    async fn list(&self) -> Result<Vec<(JobId, bool)>, Failure>;

    /// What it is called, making sandboxes with this kernel.
    fn kind(&self, kernel: Kernel) -> DriverKind;

    /// Bytes of memory that a sandbox with this kernel takes from the place beside what its job may use, at most.
    fn memory_beside(&self, kernel: Kernel) -> u64 {
        let _ = kernel;
        0
    }

    /// What the place has.
    async fn capacity(&self) -> Result<Capacity, Failure>;

    /// The CPU of the place.
    ///
    /// # Errors
    ///
    /// When the place does not answer.
    async fn arch(&self) -> Result<Arch, Failure>;

    /// Whether it makes sandboxes on the place's own kernel.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    async fn shared_kernel(&self) -> Result<(), Failure>;

    /// What virtual machines it makes, tried out and not guessed: that may take seconds. The answer is good for minutes.
    ///
    /// # Errors
    ///
    /// Why it makes none.
    async fn own_kernel(&self) -> Result<Machine, Failure>;
}

/// What virtual machines a driver can make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// A word on it, such as `QEMU 7.2 with KVM`.
    pub what: String,
    /// Whether the CPU runs it; else it is emulated too, and tens of times as slow.
    pub accelerated: bool,
}

/// What a sandbox is made from.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// The job; it names the sandbox.
    pub job: JobId,
    /// What it has for a root.
    pub toolbox: Toolbox,
    /// The static agent.
    pub agent: PathBuf,
    /// What it may use.
    pub limits: Limits,
    /// Whose kernel it runs on.
    pub kernel: Kernel,
    /// What it can reach.
    pub network: Network,
    /// Holds the sockets of the server (see [`Doors`](super::doors::Doors)); `/run/kiln` inside.
    pub doors_dir: PathBuf,
    /// What the agent hears on its standard input. Drivers whose sandboxes cannot have the server's sockets put another
    /// `server`, `gateway` and `ca_bundle` in their place.
    pub facts: AgentFacts,
    /// Where a sandbox on another host, or in a virtual machine of the engine's, finds the server; none if nobody said.
    pub server_url: Option<String>,
    /// Go on with the disk space that this job's sandbox left, which moves over.
    pub scratch_from: Option<JobId>,
}

/// What a sandbox may use at most.
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

/// How much disk space a sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskLimit {
    /// Bytes.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
}

/// What a sandbox can reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// A network of its own, with a way out that does not lead to the host's loopback.
    Isolated(Reach),
    /// The host's network, loopback and all.
    Host,
}

/// Where the way out of a network leads. Names can be asked for in any case.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// Only to these, if it names any.
    pub allow: Vec<IpNet>,
    /// Never to these, whatever else is said.
    pub deny: Vec<IpNet>,
}

/// How a sandbox is.
#[derive(Debug, Clone, PartialEq)]
pub enum SandboxState {
    /// There is none.
    Absent,
    /// It runs.
    Running,
    /// Its processes have ended; it is to be destroyed.
    Ended(Evidence),
}

/// What is left to say of a sandbox that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    /// The agent's exit code, or 128 plus the signal's number.
    pub exit_code: i32,
    /// How often the kernel killed a process inside for want of memory.
    pub oom_kills: u64,
    /// Set when the sandbox could not be made, or was lost.
    pub failure: Option<Failure>,
    /// Set when something was asked for that this place cannot give, such as limits.
    pub warning: Option<String>,
    /// The last lines that the agent and the driver's own processes said on standard error.
    pub last_words: Vec<String>,
}

/// What becomes of a sandbox's disk space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scratch {
    /// It goes with the rest.
    Remove,
    /// It stays, for another attempt to go on with.
    Keep,
}

/// What the place has for all sandboxes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// CPUs.
    pub cpus: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of disk that are free for us.
    pub disk_free: u64,
    /// Bytes of disk in all.
    pub disk_total: u64,
    /// Inodes that are free; as [`Capacity::inodes_total`], 0 where the file system does not count them.
    pub inodes_free: u64,
    /// Inodes in all.
    pub inodes_total: u64,
}
