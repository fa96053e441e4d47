//! The events that an agent reports. Pure: no I/O.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Execs, LogStream, Step, Warning};

/// One event in the sandbox. Its number follows from the [batch](super::EventBatch) that it came in.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// The time by the agent's clock.
    pub time: Timestamp,
    /// The event itself.
    pub what: What,
}

/// The kinds of events.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A step began.
    StepStarted(Step),
    /// A step succeeded.
    StepFinished {
        /// The step.
        step: Step,
        /// Wall-clock time it took, in milliseconds.
        wall_ms: u64,
        /// CPU time that the step's processes used, in milliseconds.
        cpu_ms: u64,
    },
    /// A line of output from a tool or from the agent itself.
    Log {
        /// The origin of the line.
        stream: Stream,
        /// The line, without its end. Bytes that are not UTF-8 were replaced.
        text: String,
    },
    /// The progress of the current step.
    Progress {
        /// Units done.
        done: u64,
        /// Units in total.
        total: u64,
    },
    /// Facts about the sandbox; once, before anything of the recipe runs.
    Sandbox(SandboxFacts),
    /// Counts of native and emulated programs while a foreign root was built or changed; once, when its step ends.
    Execs(Execs),
    /// Something for the job's record that the job went on without. The log has it as a line of its own.
    Warning(Warning),
    /// News of the shell.
    Shell(ShellNews),
}

/// A change of a shell's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShellNews {
    /// The shell accepts logins.
    Opened {
        /// The public half of its host key: type and key.
        host_key: String,
        /// The time at which it ends by itself.
        until: Timestamp,
    },
    /// The shell was used, and so ends later.
    Extended {
        /// The new time at which it ends by itself.
        until: Timestamp,
    },
    /// The shell is over.
    Closed,
}

/// Facts about a sandbox, which its agent determined before the recipe ran anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SandboxFacts {
    /// The release of the kernel, as printed by `uname -r`.
    pub kernel: String,
    /// The kernel's id of this boot, from `/proc/sys/kernel/random/boot_id`. Sandboxes with the same id share a kernel.
    pub boot_id: String,
    /// The virtual machine that the kernel runs in, as named by its firmware or CPU; null without one.
    pub hypervisor: Option<String>,
    /// The name and version of the emulator that runs the image's programs; null if they run natively.
    pub emulator: Option<String>,
}

/// The origin of a line.
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

impl From<Stream> for LogStream {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Agent => LogStream::Agent,
            Stream::Stdout => LogStream::Stdout,
            Stream::Stderr => LogStream::Stderr,
        }
    }
}
