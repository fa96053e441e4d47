//! The protocol between the agent and its server. Pure: no I/O.
//!
//! The agent opens every exchange; it is an HTTP request with the job's token. Each [`Call`] is one route:
//!
//! ```text
//!  GET  /agent/v1/jobs/{job}?protocol=N                 GetJob           JobDescription
//!  POST /agent/v1/jobs/{job}/events                     PostEvents       EventsKept
//!  POST /agent/v1/jobs/{job}/uploads                    CreateUpload     OpenUpload
//!  POST /agent/v1/jobs/{job}/uploads/{upload}/parts     GetPartUrls      PartUrls
//!  POST /agent/v1/jobs/{job}/uploads/{upload}/complete  CompleteUpload   204
//!  POST /agent/v1/jobs/{job}/packages                   FindPackages     PackageUrls
//!  GET  /agent/v1/jobs/{job}/toolboxes/{toolbox}/{tag}  FindToolbox      ToolboxSource
//!  POST /agent/v1/jobs/{job}/installed                  KeepInstalled    204
//!  POST /agent/v1/jobs/{job}/layers/find                FindLayer        FoundLayer
//!  POST /agent/v1/jobs/{job}/layers                     SettleLayer      LayerUrl
//!  POST /agent/v1/jobs/{job}/programs                   KeepAccount      204
//!  POST /agent/v1/jobs/{job}/reading                    KeepReading      204
//!  GET  /agent/v1/jobs/{job}/shell                      OpenLine         101, then a line (see [`shell`])
//!  GET  /agent/v1/jobs/{job}/proxy                      OpenProxy        101, then HTTP as a proxy speaks it
//!  GET  /agent/v1/jobs/{job}/registry                   OpenRegistry     101, then HTTP as a registry speaks it
//!  POST /agent/v1/jobs/{job}/finish                     Finish           204
//! ```
//!
//! Bodies are JSON. A refusal is a [`Failure`](super::Failure) as JSON, and its status tells the agent how to react: on
//! 401 and 410 the agent has no business here (any more) and exits; on 5xx it retries; on all others the job fails with
//! that cause.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::JobId;

pub use call::{
    Answer, Call, EventBatch, EventsKept, FoundLayer, JobQuery, LARGEST_PACKAGE, LONGEST_FAILED_SCRIPT, LayerInputs,
    LayerUrl, MOST_FAILED_SCRIPTS, MOST_PACKAGES, NewUpload, OpenUpload, Outcome, PackageFile, PackageUrl, PackageUrls,
    Packages, PartNumbers, PartReceipt, PartUrls, SentParts, SettledLayer, StoredPart, ToolboxName, ToolboxSource,
};
pub use event::{Event, SandboxFacts, ShellNews, Stream, What};
pub use job::{
    BinfmtEntry, BootFiles, BuildSecret, ChangeSource, Compressor, Emulator, ImageWork, JobDescription, ObjectSource,
    Purpose, RecipeSource, RecipeType, RecipeWork, ShellPlan, SigningKey, SquashfsOptions, TemplateMode, Work,
};
pub use reading::{
    CheckRead, ManagerRead, PackagesRead, ProfileRead, Reading, RepositoryReach, RepositoryRead, SchemaRead,
    ScriptRead, TypeRead, ValueRead,
};

mod call;
mod event;
mod job;
mod reading;
pub mod registry;
pub mod shell;
pub mod words;

/// Identifies this version of the protocol: a digest (FNV-1a) of the files that define it. Kiln and its agent are built
/// together. A mismatched pair must be detected at once, not by the first unreadable message.
pub const PROTOCOL: u64 = {
    let hash = fnv1a(FNV_BASIS, include_bytes!("protocol.rs"));
    let hash = fnv1a(hash, include_bytes!("protocol/call.rs"));
    let hash = fnv1a(hash, include_bytes!("protocol/event.rs"));
    let hash = fnv1a(hash, include_bytes!("protocol/reading.rs"));
    let hash = fnv1a(hash, include_bytes!("twins.rs"));
    let hash = fnv1a(hash, include_bytes!("account.rs"));
    let hash = fnv1a(hash, include_bytes!("epoch.rs"));
    let hash = fnv1a(hash, include_bytes!("layer.rs"));
    let hash = fnv1a(hash, include_bytes!("installed.rs"));
    let hash = fnv1a(hash, include_bytes!("root_check.rs"));
    let hash = fnv1a(hash, include_bytes!("additions.rs"));
    let hash = fnv1a(hash, include_bytes!("warning.rs"));
    let hash = fnv1a(hash, include_bytes!("shell.rs"));
    let hash = fnv1a(hash, include_bytes!("protocol/shell.rs"));
    fnv1a(hash, include_bytes!("protocol/job.rs"))
};

/// What FNV-1a hashes begin with.
pub const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// The FNV-1a hash of `bytes`, continued from `hash`.
pub const fn fnv1a(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// The facts that an agent needs to find its job. They arrive as one JSON line on the agent's standard input, never as
/// an argument or in the environment, which a recipe's programs could read.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentFacts {
    /// The server's address: `unix:` and the path of a socket, or an `http` or `https` address.
    pub server: String,
    /// The job.
    pub job: JobId,
    /// Proves that the agent belongs to this job; it allows nothing else.
    pub token: String,
    /// Ports of the server's loopback that the sandbox may reach, each with the same number at 127.0.0.1.
    pub doors: Vec<u16>,
    /// The certificate authorities to trust when `server` is an `https` address, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<String>,
    /// The address that has these ports, where a sandbox cannot have the server's sockets: in a virtual machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The way to the site's HTTP proxy, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<Box<ProxyFacts>>,
}

/// The way of a sandbox's programs to the site's HTTP proxy. It leads through the server, which alone has the login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyFacts {
    /// The variables by which programs find it, such as `http_proxy`.
    pub variables: Vec<(String, String)>,
    /// The port of the sandbox's own loopback on which the agent passes connections on to its server. None: whoever made
    /// the sandbox listens.
    pub port: Option<u16>,
}

impl fmt::Debug for AgentFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentFacts")
            .field("server", &self.server)
            .field("job", &self.job)
            .field("doors", &self.doors)
            .finish_non_exhaustive()
    }
}
