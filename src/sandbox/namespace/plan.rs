//! What Kiln tells the supervisor of a sandbox, and what it hears back: one JSON line each way.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::idmap::IdMap;
use crate::{records::Failure, sandbox::Limits};

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
    /// Run the agent in a sandbox whose disk space is `dir`, then empty `dir`.
    RunAgent {
        /// Names the control groups and the host inside.
        name: String,
        /// The unpacked toolbox.
        toolbox: PathBuf,
        /// The agent's file.
        agent: PathBuf,
        /// The directory of the server's sockets.
        doors: PathBuf,
        /// Content of `/etc/resolv.conf`.
        resolv_conf: String,
        /// What the sandbox may use.
        limits: Limits,
        /// Leave `dir` as it is at the end.
        keep: bool,
    },
    /// Run a program of the host as root of a user namespace; `dir` is at [`super::HOST_COMMAND_DIR`].
    RunHostCommand {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Its whole environment.
        env: Vec<(String, String)>,
    },
    /// Remove everything in `dir`, but not `dir` itself.
    Empty,
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
}
