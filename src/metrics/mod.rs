//! What a server counts and measures of itself, in Prometheus' terms. Keeps its counts in memory and touches nothing.
//!
//! There are two kinds of figures. Counters and histograms are of this process: they begin at zero with it, and each
//! event is counted by the one server at which it happens. Gauges are written anew for each answer, from what the
//! server looked at last; those from the records are the same at all servers on one database. The table says which is
//! which.
//!
//! The number of series is bounded by construction: values of labels are words of the program, not texts from outside,
//! with places as the one exception, of which no more than [`MOST_PLACES`] have a series of their own.

mod answer;
mod definition;
#[cfg(test)]
mod page;
mod table;

use std::time::{Duration, Instant};

use kiln_records::{
    Blame, Code, Failure, Job, Moment, Run, Step,
    run::{State, StepTime},
    webhook::{Delivery, DeliveryState},
};

use self::table::counters;
pub use self::table::gauges;
pub use self::{
    answer::{Answer, CONTENT_TYPE, MOST_PLACES},
    definition::Gauge,
};

/// Notes that a job was accepted.
pub fn job_asked(job: &Job) {
    counters::JOBS_ASKED.add([job.job_type.name(), job.arch.name()], 1);
}

/// Notes what a change of a job's row means: steps that ended, and the end of an attempt or of the job.
pub fn job_changed(job: &Job, before: &Run, after: &Run) {
    let how = after.plan.how.name();
    for StepTime { step, wall_ms, .. } in after.steps.iter().skip(before.steps.len()) {
        counters::STEP_SECONDS.observe([step.name(), how], Duration::from_millis(*wall_ms));
    }
    if let (None, Some(execs)) = (&before.execs, &after.execs) {
        counters::PROGRAMS.add(["twin"], execs.twins);
        counters::PROGRAMS.add(["emulated"], execs.emulated);
    }
    if let (State::Queued, State::Launching, 1) = (&before.state, &after.state, after.attempt) {
        let waited = after.launched.map_or(Duration::ZERO, |at| between(job.created, at));
        counters::QUEUE_SECONDS.observe([], waited);
    }
    if after.attempt > before.attempt {
        counters::ATTEMPTS_FAILED.add([blame(before, after)], 1);
    }
    if after.state.is_final() && !before.state.is_final() {
        job_ended(job, after);
    }
}

/// Notes the end of a job.
pub fn job_ended(job: &Job, run: &Run) {
    let (plan, failure) = (&run.plan, run.failure());
    let outcome = match failure {
        None => "success",
        Some(failure) if failure.code == Code::Cancelled => "cancelled",
        Some(_) => "error",
    };
    let (job_type, arch, how) = (job.job_type.name(), job.arch.name(), plan.how.name());
    let (driver, isolation) = (plan.driver.name(), plan.driver.isolation());
    counters::JOBS_ENDED.add([job_type, arch, driver, isolation, how, outcome], 1);
    if let Some(failure) = failure {
        counters::JOB_FAILURES.add([failure.code.name()], 1);
    }
    if let (Some(launched), Some(ended)) = (run.launched, run.ended) {
        counters::JOB_SECONDS.observe([job_type, how, outcome], between(launched, ended));
    }
}

/// Why an attempt failed that is followed by another one.
fn blame(before: &Run, after: &Run) -> &'static str {
    let of = |blame| after.failed.by(blame) > before.failed.by(blame);
    match () {
        () if of(Blame::Place) => "place",
        () if of(Blame::Storage) => "storage",
        () if of(Blame::Killed) => "killed",
        () => "twins",
    }
}

/// The time between two moments; zero if the clock was set back in between.
fn between(from: Moment, to: Moment) -> Duration {
    Duration::from_micros(u64::try_from(to.micros().saturating_sub(from.micros())).unwrap_or_default())
}

/// Measures a pass of a loop.
#[derive(Debug)]
pub struct Pass {
    name: &'static str,
    begun: Instant,
}

impl Pass {
    /// The pass of the loop with this name begins.
    pub fn begin(name: &'static str) -> Self {
        Self {
            name,
            begun: Instant::now(),
        }
    }

    /// It has ended.
    pub fn end(self, outcome: &Result<(), Failure>) {
        counters::LOOP_SECONDS.observe([self.name], self.begun.elapsed());
        match outcome {
            Ok(()) => counters::LOOP_SUCCESS.set([self.name], Moment::now()),
            Err(_) => counters::LOOP_FAILURES.add([self.name], 1),
        }
    }
}

/// The two kinds of work of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A statement that reads.
    Read,
    /// A transaction that writes.
    Write,
}

/// Notes work of the database that was begun then. `failed`: the database did not do it.
pub fn database(access: Access, begun: Instant, failed: bool) {
    let access = match access {
        Access::Read => "read",
        Access::Write => "write",
    };
    counters::DATABASE_SECONDS.observe([access], begun.elapsed());
    if failed {
        counters::DATABASE_ERRORS.add([access], 1);
    }
}

/// Notes a request to S3, with all its attempts. `failed`: S3 did not answer, or not properly.
pub fn s3_request(operation: &str, took: Duration, failed: bool) {
    let known = counters::S3_OPERATIONS
        .iter()
        .copied()
        .find(|known| *known == operation);
    let operation = known.unwrap_or(counters::OTHER);
    counters::S3_SECONDS.observe([operation], took);
    if failed {
        counters::S3_ERRORS.add([operation], 1);
    }
}

/// Notes an answer of the API; none when the caller went away before it.
pub fn api_answered(status: Option<u16>, took: Duration) {
    let class = match status {
        None => "closed",
        Some(..200) => "1xx",
        Some(200..300) => "2xx",
        Some(300..400) => "3xx",
        Some(400..500) => "4xx",
        Some(500..) => "5xx",
    };
    counters::API_SECONDS.observe([class], took);
}

/// What a server finds that no record needs any more, and removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swept {
    /// What remained of a sandbox.
    Sandbox,
    /// The sockets of a job.
    Sockets,
    /// The log of a job.
    Log,
    /// An object in S3.
    Object,
}

/// Notes that something was swept.
pub fn swept(what: Swept) {
    let kind = match what {
        Swept::Sandbox => "sandbox",
        Swept::Sockets => "sockets",
        Swept::Log => "log",
        Swept::Object => "object",
    };
    counters::SWEPT.add([kind], 1);
}

/// Notes runs of schedules, by their outcome.
pub fn schedule_run(outcome: &'static str) {
    counters::SCHEDULE_RUNS.add([outcome], 1);
}

/// Notes that a job asked for a shared package, and whether an earlier job had stored it.
pub fn shared_package(is_there: bool) {
    counters::SHARED_PACKAGES.add([if is_there { "hit" } else { "miss" }], 1);
}

/// Notes whether the collector took the trace of a job.
pub fn trace_sent(taken: bool) {
    counters::TRACES.add([if taken { "sent" } else { "dropped" }], 1);
}

/// Notes how a try to deliver a webhook ended.
pub fn webhook_tried(delivery: &Delivery) {
    let result = match delivery.state {
        DeliveryState::Delivered => "delivered",
        DeliveryState::Waiting => "failed",
        DeliveryState::Dead => "dead",
    };
    counters::WEBHOOK_TRIES.add([result], 1);
}

/// Notes things of a kind that were dropped before their promised age.
pub fn dropped(kind: &'static str, number: u64) {
    counters::DROPPED.add([kind], number);
}

/// Notes what retention removed.
pub fn retention_removed(kind: &'static str, bytes: u64) {
    counters::RETENTION_REMOVED.add([kind], 1);
    counters::RETENTION_BYTES.add([kind], bytes);
}

/// Notes that retention could not remove something, or not look at it.
pub fn retention_problem() {
    counters::RETENTION_PROBLEMS.add([], 1);
}

/// The names of all steps.
fn steps() -> Vec<&'static str> {
    Step::ALL.iter().map(|step| step.name()).collect()
}
