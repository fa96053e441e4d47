//! What an agent reports.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::records::{Execs, Step};

/// One thing that happened in the sandbox. Its number follows from the [batch](super::EventBatch) that it came in.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// The agent's clock.
    pub time: Timestamp,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A step began.
    StepStarted(Step),
    /// A step ended well.
    StepFinished {
        /// Which.
        step: Step,
        /// Wall-clock time it took, in milliseconds.
        wall_ms: u64,
        /// CPU time that the step's processes used, in milliseconds.
        cpu_ms: u64,
    },
    /// A line that a tool or the agent itself said.
    Log {
        /// Who said it.
        stream: Stream,
        /// The line, without its end. Bytes that are no UTF-8 were replaced.
        text: String,
    },
    /// How far the current step is.
    Progress {
        /// Units done.
        done: u64,
        /// Units in all.
        total: u64,
    },
    /// What the sandbox is; once, before anything of the recipe runs.
    Sandbox(SandboxFacts),
    /// What ran how while a foreign root was built or changed; once, when its step ends.
    Execs(Execs),
    /// What became of the shell.
    Shell(ShellNews),
}

/// What became of a shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShellNews {
    /// It can be logged in to.
    Opened {
        /// The public half of its host key: type and key.
        host_key: String,
        /// When it ends by itself.
        until: Timestamp,
    },
    /// It was used, and ends later.
    Extended {
        /// When it ends by itself now.
        until: Timestamp,
    },
    /// It is over.
    Closed,
}

/// What an agent found its sandbox to be. Before anything of the recipe runs there, nobody inside has a reason to lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct SandboxFacts {
    /// The kernel's release, as of `uname -r`.
    pub kernel: String,
    /// The kernel's id of this boot, from `/proc/sys/kernel/random/boot_id`: two sandboxes with the same share a kernel.
    pub boot_id: String,
    /// The virtual machine that the kernel runs in, if it runs in one, as its firmware or CPU names it.
    pub hypervisor: Option<String>,
    /// What runs the image's programs, name and version, if the CPU does not.
    pub emulator: Option<String>,
}

/// Who said a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// The agent.
    Agent,
    /// A tool's standard output.
    Stdout,
    /// A tool's standard error.
    Stderr,
}
