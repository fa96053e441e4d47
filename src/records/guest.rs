//! What the host and a virtual machine say to each other, one JSON line each, through the machine's control port.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Failure, protocol::AgentFacts};

/// The port on which the errand comes in and news goes out.
pub const CONTROL_PORT: &str = "kiln.control";

/// The port that takes what the agent says on standard error.
pub const WORDS_PORT: &str = "kiln.words";

/// The serial number of the disk with the toolbox.
pub const TOOLBOX_DISK: &str = "toolbox";

/// The serial number of the disk that is the job's own.
pub const SCRATCH_DISK: &str = "scratch";

/// How often a machine tells how full its disk is.
pub const NEWS_EVERY: Duration = Duration::from_secs(1);

/// What a machine is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Errand {
    /// To show that it boots.
    Boot,
    /// To run the agent.
    Agent(GuestJob),
}

/// An agent in a machine of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestJob {
    /// What the agent hears on its standard input.
    pub facts: AgentFacts,
    /// The machine's name.
    pub hostname: String,
    /// Content of `/etc/resolv.conf`.
    pub resolv_conf: String,
    /// Processes and threads at most.
    pub pids: u32,
}

/// What a machine says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// What is used of its own disk.
    Disk {
        /// Bytes.
        bytes: u64,
        /// Files, directories and links.
        inodes: u64,
    },
    /// Its errand is over, and it powers off.
    Ended(GuestReport),
}

/// How an errand went.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestReport {
    /// The agent's exit code, or 128 plus the signal's number.
    pub exit_code: i32,
    /// How often the guest's kernel killed a process for want of memory.
    pub oom_kills: u64,
    /// Set when the agent could not be started.
    pub failure: Option<Failure>,
}
