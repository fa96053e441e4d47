//! The messages between the host and a virtual machine: one JSON line each, through the machine's control port. Pure:
//! no I/O.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Failure, protocol::AgentFacts};

/// The port for the errand, inwards, and for news, outwards.
pub const CONTROL_PORT: &str = "kiln.control";

/// The port for the agent's standard error.
pub const WORDS_PORT: &str = "kiln.words";

/// The serial number of the disk with the toolbox.
pub const TOOLBOX_DISK: &str = "toolbox";

/// The serial number of the job's own disk.
pub const SCRATCH_DISK: &str = "scratch";

/// The interval between a machine's reports of its disk usage.
pub const NEWS_EVERY: Duration = Duration::from_secs(1);

/// The purpose of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Errand {
    /// Boot, as a test.
    Boot,
    /// Run the agent.
    Agent(GuestJob),
}

/// An agent in a virtual machine of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestJob {
    /// The agent's standard input.
    pub facts: AgentFacts,
    /// The machine's name.
    pub hostname: String,
    /// Content of `/etc/resolv.conf`.
    pub resolv_conf: String,
    /// The limit of processes and threads.
    pub pids: u32,
}

/// A message from a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// The usage of its own disk.
    Disk {
        /// Bytes.
        bytes: u64,
        /// Files, directories and links.
        inodes: u64,
    },
    /// Its errand is over, and it powers off.
    Ended(GuestReport),
}

/// The result of an errand.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestReport {
    /// The agent's exit code, or 128 plus the signal's number.
    pub exit_code: i32,
    /// The number of processes that the guest's kernel killed for lack of memory.
    pub oom_kills: u64,
    /// Set when the agent could not be started.
    pub failure: Option<Failure>,
}
