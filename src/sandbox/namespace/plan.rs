//! The messages between Kiln and the supervisor of a sandbox: one JSON line each way. Pure: no I/O.

use std::path::PathBuf;

use kiln_inside::room::IdMap;
use kiln_records::{
    Failure,
    guest::{Errand, GuestJob},
    protocol::{AgentFacts, BinfmtEntry},
};
use serde::{Deserialize, Serialize};

use crate::sandbox::{
    Limits, Network, Reach, Usage,
    lease::Lease,
    microvm::{VmSpec, image::ImageMachine},
};

/// The task of one supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// The host ids behind the ids inside.
    pub(super) ids: IdMap,
    /// The directory that the task is about. Its files belong to the ids inside.
    pub(super) dir: PathBuf,
    /// The task.
    pub(super) task: Task,
}

/// The tasks of a supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Task {
    /// Run the agent in a sandbox whose disk space is `dir`.
    RunAgent(Box<AgentTask>),
    /// Test whether this machine boots.
    TryMachine(Box<VmSpec>),
    /// Boot an image, whose console is the supervisor's standard output.
    BootImage(Box<ImageMachine>),
    /// Run a host program as root of a user namespace; `dir` is at [`super::HOST_COMMAND_DIR`].
    RunHostCommand {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Its whole environment.
        env: Vec<(String, String)>,
        /// Emulator for programs of another architecture; a path below [`super::HOST_COMMAND_DIR`].
        emulator: Option<BinfmtEntry>,
    },
    /// Remove everything in `dir`, but not `dir` itself.
    Empty,
}

/// A sandbox with an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AgentTask {
    /// Names the host inside.
    pub(super) name: String,
    /// Names the control groups.
    pub(super) group: String,
    /// The unpacked toolbox.
    pub(super) toolbox: PathBuf,
    /// The agent's file.
    pub(super) agent: PathBuf,
    /// The directory with the server's sockets.
    pub(super) doors: PathBuf,
    /// The line that the agent reads on its standard input.
    pub(super) facts: AgentFacts,
    /// Content of `/etc/resolv.conf`.
    pub(super) resolv_conf: String,
    /// The most that the sandbox may use.
    pub(super) limits: Limits,
    /// The networks that it can reach.
    pub(super) network: Network,
    /// The virtual machine that it runs in, if any.
    pub(super) machine: Option<VmSpec>,
    /// Whether the sandbox ends with the process that started it. Otherwise it lives until its agent ends or its stop file
    /// appears.
    pub(super) attached: bool,
    /// Whether its files are kept in a directory even if they could be in one file with a size.
    pub(super) in_directory: bool,
    /// The lease without which the sandbox stands still.
    #[serde(default)]
    pub(super) lease: Option<Lease>,
}

impl AgentTask {
    /// The host name inside.
    pub(super) fn hostname(&self) -> String {
        format!("kiln-{}", self.name.get(..8).unwrap_or(&self.name))
    }
}

impl Plan {
    /// The agent's task, if this is one.
    pub(super) fn agent(&self) -> Option<&AgentTask> {
        match &self.task {
            Task::RunAgent(agent) => Some(agent),
            Task::TryMachine(_) | Task::BootImage(_) | Task::RunHostCommand { .. } | Task::Empty => None,
        }
    }

    /// The machine, if there is one that follows Kiln's orders.
    pub(super) fn machine(&self) -> Option<&VmSpec> {
        match &self.task {
            Task::RunAgent(agent) => agent.machine.as_ref(),
            Task::TryMachine(machine) => Some(machine),
            Task::BootImage(_) | Task::RunHostCommand { .. } | Task::Empty => None,
        }
    }

    /// The machine that boots an image, if there is one.
    pub(super) fn image(&self) -> Option<&ImageMachine> {
        match &self.task {
            Task::BootImage(image) => Some(image),
            Task::RunAgent(_) | Task::TryMachine(_) | Task::RunHostCommand { .. } | Task::Empty => None,
        }
    }

    /// The name of its control groups and what they limit, for a task that has some.
    pub(super) fn group(&self) -> Option<(String, Limits)> {
        match &self.task {
            Task::RunAgent(agent) => {
                let machine = agent.machine.as_ref();
                let limits = machine.map_or(agent.limits, |machine| machine.host_limits(&agent.limits));
                Some((agent.group.clone(), limits))
            }
            Task::BootImage(image) => {
                let name = self.dir.file_name()?.to_str()?;
                Some((name.to_owned(), image.host_limits()))
            }
            Task::TryMachine(_) | Task::RunHostCommand { .. } | Task::Empty => None,
        }
    }

    /// The machine's errand.
    pub(super) fn errand(&self) -> Errand {
        match self.agent() {
            Some(agent) => Errand::Agent(GuestJob {
                facts: agent.facts.clone(),
                hostname: agent.hostname(),
                resolv_conf: agent.resolv_conf.clone(),
                pids: agent.limits.pids,
            }),
            None => Errand::Boot,
        }
    }

    /// Whether the task ends with the process that started it. The removal of a directory is always completed.
    pub(super) fn is_attached(&self) -> bool {
        match &self.task {
            Task::RunAgent(agent) => agent.attached,
            Task::TryMachine(_) | Task::BootImage(_) | Task::RunHostCommand { .. } => true,
            Task::Empty => false,
        }
    }

    /// The destinations of the sandbox's own network, if it has one.
    pub(super) fn reach(&self) -> Option<&Reach> {
        match &self.agent()?.network {
            Network::Isolated(reach) => Some(reach),
            Network::Host => None,
        }
    }
}

/// The result of a plan.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The exit code, or 128 plus the signal's number.
    pub exit_code: i32,
    /// Set when the sandbox could not be made.
    pub failure: Option<Failure>,
    /// How often the kernel killed a process inside because memory ran out.
    pub oom_kills: u64,
    /// Set when limits could not be applied.
    pub warning: Option<String>,
    /// Its total usage.
    #[serde(default)]
    pub usage: Usage,
}

impl Report {
    /// The report on a sandbox that could not be made.
    pub(super) fn of_failure(failure: Failure) -> Self {
        Self {
            exit_code: 1,
            failure: Some(failure),
            ..Self::default()
        }
    }

    /// Adds a warning to those already there.
    pub(super) fn warn(&mut self, text: String) {
        self.warning = Some(match self.warning.take() {
            Some(before) => format!("{before}; {text}"),
            None => text,
        });
    }
}
