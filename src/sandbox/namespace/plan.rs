//! What Kiln tells the supervisor of a sandbox, and what it hears back: one JSON line each way.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    records::{
        Failure,
        guest::{Errand, GuestJob},
        protocol::{AgentFacts, BinfmtEntry},
    },
    sandbox::{Limits, Network, Reach, Usage, microvm::VmSpec, room::IdMap},
};

/// One errand of a supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// The host ids behind the ids inside.
    pub(super) ids: IdMap,
    /// The directory it is about. Files in it belong to the ids inside.
    pub(super) dir: PathBuf,
    /// What to do.
    pub(super) task: Task,
}

/// What to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Task {
    /// Run the agent in a sandbox whose disk space is `dir`.
    RunAgent(Box<AgentTask>),
    /// See whether this machine boots.
    TryMachine(Box<VmSpec>),
    /// Run a program of the host as root of a user namespace; `dir` is at [`super::HOST_COMMAND_DIR`].
    RunHostCommand {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Its whole environment.
        env: Vec<(String, String)>,
        /// What runs programs of another architecture that it starts; a path below [`super::HOST_COMMAND_DIR`].
        emulator: Option<BinfmtEntry>,
    },
    /// Remove everything in `dir`, but not `dir` itself.
    Empty,
}

/// A sandbox with an agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AgentTask {
    /// Names the control groups and the host inside.
    pub(super) name: String,
    /// The unpacked toolbox.
    pub(super) toolbox: PathBuf,
    /// The agent's file.
    pub(super) agent: PathBuf,
    /// Holds the server's sockets.
    pub(super) doors: PathBuf,
    /// What the agent hears on its standard input.
    pub(super) facts: AgentFacts,
    /// Content of `/etc/resolv.conf`.
    pub(super) resolv_conf: String,
    /// What the sandbox may use.
    pub(super) limits: Limits,
    /// What it can reach.
    pub(super) network: Network,
    /// The machine that it runs in, if it has one of its own.
    pub(super) machine: Option<VmSpec>,
    /// Whose it is.
    pub(super) life: Life,
}

impl AgentTask {
    /// What the sandbox calls itself.
    pub(super) fn hostname(&self) -> String {
        format!("kiln-{}", self.name.get(..8).unwrap_or(&self.name))
    }
}

/// How long a sandbox lives.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Life {
    /// As long as the process that started it.
    Attached {
        /// Leave the directory as it is at the end; otherwise it is removed.
        keep: bool,
    },
    /// Until its agent ends, or its stop file appears. What is left of it is somebody else's to remove.
    Detached,
}

impl Plan {
    /// The sandbox with an agent, if it is that.
    pub(super) fn agent(&self) -> Option<&AgentTask> {
        match &self.task {
            Task::RunAgent(agent) => Some(agent),
            Task::TryMachine(_) | Task::RunHostCommand { .. } | Task::Empty => None,
        }
    }

    /// The machine, if there is one.
    pub(super) fn machine(&self) -> Option<&VmSpec> {
        match &self.task {
            Task::RunAgent(agent) => agent.machine.as_ref(),
            Task::TryMachine(machine) => Some(machine),
            Task::RunHostCommand { .. } | Task::Empty => None,
        }
    }

    /// What the machine is to do.
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

    /// Whether the sandbox lives on when the process that started it ends.
    pub(super) fn is_detached(&self) -> bool {
        self.agent().is_some_and(|agent| matches!(agent.life, Life::Detached))
    }

    /// Where the way out of the sandbox's own network leads, if it has one.
    pub(super) fn reach(&self) -> Option<&Reach> {
        match &self.agent()?.network {
            Network::Isolated(reach) => Some(reach),
            Network::Host => None,
        }
    }
}

/// How it went.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The exit code, or 128 plus the signal's number.
    pub exit_code: i32,
    /// Set when the sandbox could not be made.
    pub failure: Option<Failure>,
    /// How often the kernel killed a process inside for want of memory.
    pub oom_kills: u64,
    /// Set when limits could not be had.
    pub warning: Option<String>,
    /// What it used in all.
    #[serde(default)]
    pub usage: Usage,
}

impl Report {
    /// The report on a sandbox that was not made.
    pub(super) fn of_failure(failure: Failure) -> Self {
        Self {
            exit_code: 1,
            failure: Some(failure),
            ..Self::default()
        }
    }

    /// Adds a warning to those there are.
    pub(super) fn warn(&mut self, text: String) {
        self.warning = Some(match self.warning.take() {
            Some(before) => format!("{before}; {text}"),
            None => text,
        });
    }
}
