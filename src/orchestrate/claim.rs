//! Answers one question: is this job this process's business? Reads locks of other processes of the data directory.
//!
//! A job has an owner once it is launched: the data directory whose process runs its sandbox. A job of a command has a
//! runner besides: the command's process. Several servers may share the records; each acts on its jobs only as long as it
//! holds its [lease](super::lease).

use kiln_records::{Run, ServerId};

use super::{lease::Leases, runner::Runners};

/// This process among those that carry out jobs of the same records.
#[derive(Debug)]
pub struct Claim {
    id: ServerId,
    runner: Option<ServerId>,
    /// The other processes that carry out jobs for the data directory.
    pub(super) runners: Runners,
    /// Which of the processes on the records are alive.
    pub(super) leases: Leases,
    is_shared: bool,
}

/// The process that is responsible for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// This one.
    Ours,
    /// One that is gone: the first that finds the job takes it over.
    Left,
    /// Another one, which lives or may live.
    Others,
}

impl Claim {
    /// `id` is that of this process's data directory, and `runner` that of this process if it carries out jobs of its own
    /// only. `is_shared` says whether processes of other data directories may be on the same records.
    pub(super) fn new(id: ServerId, runner: Option<ServerId>, runners: Runners, is_shared: bool) -> Self {
        Self {
            id,
            runner,
            runners,
            leases: Leases::default(),
            is_shared,
        }
    }

    /// The id of this process's data directory.
    pub fn id(&self) -> ServerId {
        self.id
    }

    /// This process, if it carries out jobs of its own only; `None` on a server.
    pub(super) fn runner(&self) -> Option<ServerId> {
        self.runner
    }

    /// Whether this process carries out jobs of its own only.
    pub(super) fn is_command(&self) -> bool {
        self.runner.is_some()
    }

    /// The id under which the other processes know this one.
    pub(super) fn process(&self) -> ServerId {
        self.runner.unwrap_or(self.id)
    }

    /// Whether this process may act on its jobs: no other one has taken them. The only process of a database always may.
    pub(super) fn holds_lease(&self) -> bool {
        !self.is_shared || self.leases.is_held()
    }

    /// Whether this process carries out a job that has been launched.
    pub(super) fn carries_out(&self, run: &Run) -> bool {
        run.owner == Some(self.id) && run.plan.runner == self.runner
    }

    /// Whether this process is responsible for a job.
    pub(super) fn is_mine(&self, run: &Run) -> bool {
        self.whose(run) != Whose::Others
    }

    /// Which process is responsible for a job. A process whose end is not shown is taken to be alive.
    pub(super) fn whose(&self, run: &Run) -> Whose {
        let (owner, runner) = (run.owner, run.plan.runner);
        if runner == self.runner && owner.is_none_or(|owner| owner == self.id) {
            return Whose::Ours;
        }
        let is_gone = match (owner, runner) {
            (Some(owner), Some(runner)) if owner == self.id => self.runners.is_gone(runner),
            // A command does the work of a server neither here nor for another host.
            _ if self.is_command() => false,
            (Some(owner), runner) => self.leases.is_gone(runner.unwrap_or(owner)),
            (None, _) => false,
        };
        if is_gone { Whose::Left } else { Whose::Others }
    }
}
