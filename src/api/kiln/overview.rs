//! `/kiln/v1/overview`: what waits, what runs and what the places have, on one screen. Reads the rows of open jobs, and the
//! last signs of life of those that run.

use std::{collections::BTreeMap, time::Duration};

use axum::{Json, extract::State};
use kiln_records::{
    Moment, Step,
    arch::Arch,
    run::{LOCAL, State as Is},
};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    api::{
        Api,
        problem::{Problem, Result},
    },
    store::StoredRun,
};

/// The most jobs of each list: a screen has room for fewer.
const MOST: usize = 200;

/// What waits, what runs, and what the places have.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct Overview {
    /// The time of the answer.
    #[schema(value_type = String)]
    now: Moment,
    /// The number of jobs that wait.
    queued: usize,
    /// The first of them, in the order of the queue; those that wait at other servers' hosts come last.
    queue: Vec<QueuedJob>,
    /// The number of jobs that have their place.
    running: usize,
    /// The first of them, in the order in which they were asked for.
    jobs: Vec<RunningJob>,
    /// The places of this server.
    places: Vec<PlaceNow>,
    /// The number of open jobs that only a server of another version can read.
    unread: usize,
}

/// A job that waits.
#[derive(Debug, Serialize, ToSchema)]
struct QueuedJob {
    /// The job.
    id: Uuid,
    /// The name of the resulting image.
    name: String,
    /// Its architecture.
    #[schema(value_type = String)]
    arch: Arch,
    /// What it waits for, as in `kiln_queue_jobs`; null before this server has looked at it.
    waits_for: Option<&'static str>,
    /// The same as a sentence.
    reason: Option<String>,
    /// The time of the request.
    #[schema(value_type = String)]
    created: Moment,
}

/// A job that has its place.
#[derive(Debug, Serialize, ToSchema)]
struct RunningJob {
    /// The job.
    id: Uuid,
    /// The name of the resulting image.
    name: String,
    /// Its architecture.
    #[schema(value_type = String)]
    arch: Arch,
    /// `launching`, `running`, `committing`.
    state: &'static str,
    /// Its step.
    #[schema(value_type = Option<String>)]
    step: Option<Step>,
    /// How much of the step is done, in percent, if that is known at this server.
    percent: Option<u8>,
    /// `native` or `emulated`.
    how: &'static str,
    /// Its place.
    place: Option<String>,
    /// The number of this attempt.
    attempt: u32,
    /// The start of this attempt.
    #[schema(value_type = Option<String>)]
    started: Option<Moment>,
    /// The seconds since its agent was heard; null if it was not heard yet.
    heard_s: Option<u64>,
    /// What its sandbox waits for that has not started.
    waits: Option<String>,
}

/// A place, as of the last look at it.
#[derive(Debug, Serialize, ToSchema)]
struct PlaceNow {
    /// Its name.
    name: String,
    /// The architecture of its CPUs.
    #[schema(value_type = String)]
    arch: Arch,
    /// Whether it can make sandboxes of some kind; null before the first look.
    usable: Option<bool>,
    /// What it waits for before it can be looked at.
    awaits: Option<String>,
    /// The jobs that hold room there; for `local`, those of this server.
    jobs: u64,
    /// Its CPUs.
    cpus: Option<u32>,
    /// Its memory, in bytes.
    memory_bytes: Option<u64>,
    /// Its free disk space, in bytes.
    disk_free_bytes: Option<u64>,
    /// Its disk space in all, in bytes.
    disk_total_bytes: Option<u64>,
}

/// Show what waits and why, what runs, and what the places have.
#[utoipa::path(get, path = "/overview", tag = "jobs", responses((status = 200, body = Overview), (status = 503, body = Problem)))]
pub(in crate::api) async fn get(State(api): State<Api>) -> Result<Json<Overview>> {
    let open = api.store.open_runs().await?;
    let orchestrator = api.orchestrator.as_deref();
    let mut waits = orchestrator
        .map(|orchestrator| orchestrator.glance.queue())
        .unwrap_or_default();
    let (mut queue, mut jobs) = (Vec::new(), Vec::new());
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    for stored in &*open {
        match stored.run.state {
            Is::Queued => queue.push(stored),
            Is::Launching | Is::Running | Is::Committing => jobs.push(stored),
            Is::Success | Is::Failed(_) => {}
        }
        let is_here = orchestrator.is_some_and(|orchestrator| orchestrator.sandboxes.reaches(&stored.run));
        if stored.run.holds_place() && is_here {
            *held
                .entry(stored.run.plan.place.as_deref().unwrap_or(LOCAL))
                .or_default() += 1;
        }
    }
    let (queued, running) = (queue.len(), jobs.len());
    queue.sort_by_key(|stored| waits.get(&stored.job.id).map_or(usize::MAX, |(position, _)| *position));
    let queue = queue.into_iter().take(MOST).map(|StoredRun { job, .. }| {
        let wait = waits.remove(&job.id).map(|(_, wait)| wait);
        QueuedJob {
            id: job.id.0,
            name: job.image_root_archive_name.clone(),
            arch: job.arch,
            waits_for: wait.as_ref().map(|wait| wait.waits_for.name()),
            reason: wait.map(|wait| wait.why),
            created: job.created,
        }
    });
    let queue = queue.collect();
    let mut now = Vec::new();
    for stored in jobs.into_iter().take(MOST) {
        now.push(running_job(&api, stored).await?);
    }
    let places = orchestrator
        .map(|orchestrator| orchestrator.places.look_back())
        .unwrap_or_default();
    let places = places.into_iter().map(|seen| PlaceNow {
        jobs: held.get(seen.name.as_str()).copied().unwrap_or_default(),
        arch: seen.arch,
        usable: seen.is_known.then(|| seen.is_usable()),
        awaits: seen.awaits,
        cpus: seen.capacity.map(|capacity| capacity.cpus),
        memory_bytes: seen.capacity.map(|capacity| capacity.memory),
        disk_free_bytes: seen.capacity.map(|capacity| capacity.disk_free),
        disk_total_bytes: seen.capacity.map(|capacity| capacity.disk_total),
        name: seen.name,
    });
    Ok(Json(Overview {
        now: Moment::now(),
        queued,
        queue,
        running,
        jobs: now,
        places: places.collect(),
        unread: open.unread.len(),
    }))
}

async fn running_job(api: &Api, StoredRun { job, run, .. }: &StoredRun) -> Result<RunningJob> {
    let orchestrator = api.orchestrator.as_deref();
    // Any server may have heard it.
    let pulse = api.store.pulse(job.id).await?;
    let pulse = pulse.filter(|pulse| pulse.attempt == run.attempt);
    let progress = orchestrator.and_then(|orchestrator| orchestrator.glance.progress(job.id));
    Ok(RunningJob {
        id: job.id.0,
        name: job.image_root_archive_name.clone(),
        arch: job.arch,
        state: run.state.name(),
        step: run.step,
        percent: progress.and_then(|(done, total)| percent(done, total)),
        how: run.plan.how.name(),
        place: run.plan.place.clone(),
        attempt: run.attempt,
        started: run.launched,
        heard_s: pulse.map(|pulse| Duration::as_secs(&pulse.unheard)),
        waits: orchestrator.and_then(|orchestrator| orchestrator.glance.held_up(job.id)),
    })
}

/// A part in percent, of a whole that is known. What an agent says may be anything.
fn percent(done: u64, total: u64) -> Option<u8> {
    let percent = u128::from(done) * 100 / u128::from((total > 0).then_some(total)?);
    Some(u8::try_from(percent.min(100)).unwrap_or(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_never_more_than_the_whole() {
        assert_eq!(percent(1, 3), Some(33));
        assert_eq!(percent(7, 3), Some(100));
        assert_eq!(percent(u64::MAX, u64::MAX), Some(100));
        assert_eq!(percent(1, 0), None);
    }
}
