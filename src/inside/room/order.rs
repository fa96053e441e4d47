//! The messages between a driver and the first process of a container: JSON lines on standard input and output. They
//! are never arguments, environment or labels, which other users of the host can read. Pure: no I/O.

use std::{net::IpAddr, path::PathBuf};

use ipnet::IpNet;
use kiln_records::{
    Failure,
    protocol::{AgentFacts, ToolboxName},
};
use serde::{Deserialize, Serialize};

use super::{IdMap, Usage};

/// The agent's subcommand for the first process of a container.
pub const COMMAND: &str = "container";

/// The volume with the driver's files in a container. It outlives the container when disk space is kept.
pub const VOLUME: &str = "/kiln/volume";

/// The agent and its companions, below [`VOLUME`]. The sandbox's ids can run but not read them.
pub const PROGRAMS: &str = "programs";

/// In [`PROGRAMS`]: the agent as the container's first process.
pub const ENTRANCE: &str = "entrance";

/// In [`PROGRAMS`]: the agent of the sandbox.
pub const AGENT: &str = "agent";

/// [`PROGRAMS`] in an image that has them, such as those for clusters.
pub const PROGRAMS_OF_IMAGE: &str = "/kiln/programs";

/// After [`COMMAND`]: the order is in the file that is named next, and the last line goes to [`END`], too.
pub const FROM: &str = "from";

/// Where a cluster mounts the order.
pub const ORDER_DIR: &str = "/kiln/order";

/// The order's file in [`ORDER_DIR`].
pub const ORDER: &str = "order";

/// The file from which a cluster reads how a container ended: the default of `terminationMessagePath`, at most 4096 bytes.
pub const END: &str = "/dev/termination-log";

/// The sandbox's disk space, below [`VOLUME`].
pub const DISK: &str = "disk";

/// An empty directory below [`VOLUME`], used in place of [`DOORS`] where there are none.
pub const NO_DOORS: &str = "no-doors";

/// The server's sockets, where a container can have them.
pub const DOORS: &str = "/kiln/doors";

/// The toolbox in the image: a directory below the root, so that the engine mounts nothing inside it. A user namespace
/// cannot make an overlay of a directory with mounts that it may not remove.
pub const TOOLBOX: &str = "/tree";

/// The agent in an image without a toolbox, such as that of the server.
pub const FETCHER: &str = "/usr/bin/kiln-agent";

/// After [`COMMAND`]: the toolbox that the order names is fetched into [`FETCHED`]. The next argument is the order's file.
pub const FETCH: &str = "fetch";

/// The volume for a fetched toolbox, while it is fetched.
pub const FETCHED: &str = "/kiln/fetched";

/// The line on standard input.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// The agent's facts.
    pub facts: AgentFacts,
    /// The host ids of the sandbox; `None` in a virtual machine, whose root has rights over that machine only.
    pub ids: Option<IdMap>,
    /// The only networks that may be reached, unless empty.
    pub allow: Vec<IpNet>,
    /// Networks that may not be reached.
    pub deny: Vec<IpNet>,
    /// The name servers of the sandbox; none: the engine's own, which only a container on its host's kernel can reach.
    pub resolvers: Vec<IpAddr>,
    /// Bytes and inodes of disk space, if the container itself makes a file system of that size.
    pub disk: Option<(u64, u64)>,
    /// Where the container has [`PROGRAMS`].
    pub programs: PathBuf,
    /// Whether the container itself filters system calls, since its engine does not.
    pub filters_calls: bool,
    /// The toolbox that is fetched before the sandbox is made, where the image has none.
    #[serde(default)]
    pub toolbox: Option<ToolboxName>,
    /// The boots (`/proc/sys/kernel/random/boot_id`) of the hosts on which it may run. In a virtual machine it has another
    /// kernel than all of them, or does nothing.
    pub hosts: Vec<String>,
}

/// A line on standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// The current usage, reported regularly.
    Usage(Usage),
    /// The end of the sandbox; the last line.
    End(End),
}

/// How a sandbox in a container ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// The agent's exit code, or 128 plus the signal's number.
    pub exit_code: i32,
    /// Set when the sandbox could not be made.
    pub failure: Option<Failure>,
    /// Its total usage.
    pub usage: Usage,
}

/// After [`COMMAND`]: the container makes its disk space safe against a crash of the machine. The next argument is the
/// start time of the sandbox that wrote it, in seconds since 1970.
pub const SYNC: &str = "sync";

/// After [`COMMAND`]: the container reports its surroundings, as a [`Probe`].
pub const PROBE: &str = "probe";

/// What a container finds in its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Release of its kernel.
    pub kernel: String,
    /// The CPU's own name; empty where CPUs have none.
    pub cpu: String,
    /// Why no sandbox can be made on this kernel, if so.
    pub refused: Option<Failure>,
    /// The name servers that the engine gives to containers outside its own networks: those of its host.
    pub resolvers: Vec<IpAddr>,
    /// Free bytes on the disk that holds containers.
    pub disk_free: u64,
    /// Total bytes of that disk.
    pub disk_total: u64,
    /// Free inodes; 0 where they are not counted.
    pub inodes_free: u64,
    /// Total inodes.
    pub inodes_total: u64,
}
