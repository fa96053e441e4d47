//! What a driver tells the first process of a container on its standard input, and what that answers on its standard
//! output: JSON lines. Neither is ever an argument, an environment or a label, which others on the host can read.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{IdMap, Usage};
use crate::records::{Failure, protocol::AgentFacts};

/// The subcommand of the agent that makes it the first process of a container.
pub const COMMAND: &str = "container";

/// Where the driver puts its things in a container: a volume, which outlives the container when disk space is kept.
pub const VOLUME: &str = "/kiln/volume";

/// The agent and what lies beside it, below [`VOLUME`]. The sandbox's ids can run it and not read it.
pub const PROGRAMS: &str = "programs";

/// Among [`PROGRAMS`]: the agent as the container's first process.
pub const ENTRANCE: &str = "entrance";

/// Among [`PROGRAMS`]: the agent of the sandbox.
pub const AGENT: &str = "agent";

/// The sandbox's disk space, below [`VOLUME`].
pub const DISK: &str = "disk";

/// An empty directory below [`VOLUME`], which stands for [`DOORS`] where there are none.
pub const NO_DOORS: &str = "no-doors";

/// The server's sockets, where a container can have them.
pub const DOORS: &str = "/kiln/doors";

/// The toolbox in the image: a directory below the root, so that nothing of the engine's is mounted inside it. A user
/// namespace cannot make an overlay of a directory with mounts that it may not take away.
pub const TOOLBOX: &str = "/tree";

/// One line on standard input.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// What the agent is to hear.
    pub facts: AgentFacts,
    /// The ids behind the ids inside; none in a virtual machine, whose root is nobody's but its own.
    pub ids: Option<IdMap>,
    /// The only networks that may be reached, if any are named.
    pub allow: Vec<IpNet>,
    /// Networks that may not be reached.
    pub deny: Vec<IpNet>,
    /// Bytes and inodes of disk space, where the container itself makes a file system of that size.
    pub disk: Option<(u64, u64)>,
}

/// One line on standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// What the sandbox uses; said now and then.
    Usage(Usage),
    /// How it ended; the last line.
    End(End),
}

/// How a sandbox in a container ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// The agent's exit code, or 128 plus the signal's number.
    pub exit_code: i32,
    /// Set when the sandbox could not be made.
    pub failure: Option<Failure>,
    /// What it used in all.
    pub usage: Usage,
}

/// After [`COMMAND`]: the container is there to make its disk space stand a crash of the machine. The time when the
/// sandbox that wrote it started follows, in seconds since 1970.
pub const SYNC: &str = "sync";

/// After [`COMMAND`]: the container says what it finds, a [`Probe`].
pub const PROBE: &str = "probe";

/// What a container finds where it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Release of the kernel that it runs on.
    pub kernel: String,
    /// What the CPU calls itself; empty where CPUs do not say.
    pub cpu: String,
    /// Why no sandbox can be made on this kernel, if none can.
    pub refused: Option<Failure>,
    /// Bytes that are free where containers are kept.
    pub disk_free: u64,
    /// Bytes there in all.
    pub disk_total: u64,
    /// Inodes that are free; 0 where they are not counted.
    pub inodes_free: u64,
    /// Inodes in all.
    pub inodes_total: u64,
}
