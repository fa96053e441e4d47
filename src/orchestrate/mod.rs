//! From a request to an ended job: where it runs, what it is given, how it is watched, what is left of it.
//!
//! Jobs of the service come in through [`ask`], whoever wants them: a request, a schedule, or a job that is done again.
//!
//! The service carries jobs out by four loops over the rows of its database: `launch` gives jobs their place and
//! starts their sandboxes, `watch` sees whether they live and get on, `commit` makes images of what agents brought,
//! `settle` clears away. Each looks at what is, not at what it remembers, so it is right when run twice or after a
//! crash at any line. What agents say comes in through `desk`. States and arrows are in
//! [`records::run`](crate::records::run).
//!
//! `kiln build` carries out one job by itself, in [`run`].

mod admit;
pub mod agents;
pub mod ask;
mod commit;
mod desk;
mod equipment;
pub mod job_dir;
mod launch;
mod live;
mod log_artifact;
pub mod loops;
mod orchestrator;
pub mod place;
mod places;
mod reach;
pub mod reap;
pub mod recipe;
pub mod run;
pub mod schedule;
mod serve;
mod settle;
mod shell_ports;
mod shells;
#[cfg(test)]
mod tests;
mod token;
mod watch;

use crate::records::JobId;

pub use self::{
    equipment::{Equipment, Lack},
    orchestrator::{Ended, Orchestrator, Parts},
    places::Places,
    shell_ports::ShellPlace,
};

/// The span of work on a job: every line that is logged in it has `job.id`. Its level is the highest, so that it is there
/// for whatever `KILN_LOG` lets through.
pub fn job_span(job: JobId) -> tracing::Span {
    tracing::error_span!("job", job.id = %job)
}
