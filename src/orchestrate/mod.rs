//! Takes a job from the request to its end: where it runs, what it is given, how it is watched, what remains of it. It
//! reads and writes the rows of the store, runs sandboxes through their drivers, and reads and writes objects in S3.
//!
//! Every job of the service comes in through [`ask`]: from a request, from a schedule, or as a repeat of an earlier
//! job.
//!
//! The service carries jobs out in loops over the rows of its database, each a type with the few parts that it needs:
//! `launch` gives jobs their place and starts their sandboxes, `watch` checks that they are alive and making progress,
//! `commit` makes images of what agents uploaded, `settle` clears away after them, `sweep` removes the rest. Each acts on the
//! current state, not on what it remembers, so it is right when run twice or after a crash at any line. Calls from agents
//! come in through `desk`. The states and arrows are in [`records::run`](kiln_records::run).
//!
//! Several servers may share the records. Each keeps a `lease` on its jobs; the jobs of a server that has lost it are taken
//! over by the others.
//!
//! Each of them leaves alone the jobs of other processes: a command such as `kiln build` carries out its own jobs and no
//! others, also beside a server. [`runner`] tells whether such a process still lives.

mod admit;
mod agent_address;
pub mod agents;
mod allowance;
mod answers;
pub mod ask;
mod bases;
mod bells;
mod census;
mod claim;
mod clearing;
mod commit;
mod description;
mod desk;
mod earlier_image;
mod equipment;
mod glance;
mod intake;
mod job_doors;
mod launch;
mod layers;
mod lease;
mod life;
mod lines;
mod live;
mod log_artifact;
pub mod loops;
mod met;
mod network;
mod orchestrator;
pub mod package_index;
mod peers;
pub mod place;
mod places;
mod placing;
mod provenance;
mod reach;
pub mod reading;
pub mod recipe;
mod refusal;
mod repeats;
mod rooms;
mod row;
pub mod runner;
mod sample;
mod sandboxes;
pub mod schedule;
mod secrets;
pub mod sets;
mod settle;
mod shell_ports;
mod shells;
mod start;
mod sweep;
#[cfg(test)]
mod tests;
mod token;
mod usage;
mod waits;
mod watch;

use kiln_records::JobId;

pub use self::{
    agent_address::AgentAddress,
    equipment::{Equipment, Lack},
    job_doors::{AgentSocket, JobDoors, make_root as make_doors_root},
    life::lease_file,
    met::Met,
    orchestrator::{Orchestrator, Parts},
    peers::Peers,
    places::Places,
    rooms::PlaceRoom,
    row::Ended,
    shell_ports::ShellPlace,
};

/// The tracing span of work on a job: every line logged inside it has `job.id`. Its level is the highest, so the span
/// is present whatever `KILN_LOG` lets through. It stands for itself: work that other work on the job starts names it once.
pub fn job_span(job: JobId) -> tracing::Span {
    tracing::error_span!(parent: None, "job", job.id = %job)
}
