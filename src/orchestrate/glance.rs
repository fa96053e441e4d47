//! What can be seen of jobs and places without a look at either: published by the loops, read by the API, pages and metrics.
//! Pure apart from the clock.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kiln_records::JobId;

use super::{census::Census, live::LiveJobs, places::Places, waits::Wait};
use crate::metrics::{Answer, gauges};

/// What this process saw last.
#[derive(Debug)]
pub struct Glance {
    live: Arc<LiveJobs>,
    /// The places where jobs run.
    places: Arc<Places>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Why jobs wait, as of the last pass; in the order of the queue.
    waiting: Vec<(JobId, Wait)>,
    /// The jobs under way, as of the last pass of the launch loop.
    census: Option<Census>,
    /// The sandboxes found at each place by the last sweep.
    sandboxes: BTreeMap<String, u64>,
}

impl Glance {
    pub(super) fn new(live: Arc<LiveJobs>, places: Arc<Places>) -> Self {
        Self {
            live,
            places,
            seen: Mutex::default(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Each change is complete before anything can panic.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the jobs that are under way, and why others wait.
    pub(super) fn publish_queue(&self, census: Census, waiting: Vec<(JobId, Wait)>) {
        let mut seen = self.seen();
        seen.census = Some(census);
        seen.waiting = waiting;
    }

    /// Publishes how many sandboxes there are at each place.
    pub(super) fn publish_sandboxes(&self, found: BTreeMap<String, u64>) {
        self.seen().sandboxes = found;
    }

    /// Why a job waits, and its place in the queue, from 1.
    pub fn waiting(&self, job: JobId) -> Option<(usize, String)> {
        let seen = self.seen();
        let at = seen.waiting.iter().position(|(id, _)| *id == job)?;
        Some((at + 1, seen.waiting[at].1.why.clone()))
    }

    /// What each job of the queue waits for, with its position from 1.
    pub fn queue(&self) -> HashMap<JobId, (usize, Wait)> {
        let seen = self.seen();
        let numbered = seen.waiting.iter().zip(1..);
        numbered
            .map(|((job, wait), position)| (*job, (position, wait.clone())))
            .collect()
    }

    /// What the sandbox of a job waits for that has its place and has not started.
    pub fn held_up(&self, job: JobId) -> Option<String> {
        self.live.of(job, |live| live.waits().map(str::to_owned))?
    }

    /// How far a job's current step is: the amount done, and the total.
    pub fn progress(&self, job: JobId) -> Option<(u64, u64)> {
        self.live.of(job, |live| live.progress())?
    }

    /// Writes into an answer what this process knows of jobs and places. It looks at nothing for that.
    pub fn write_metrics(&self, answer: &mut Answer) {
        {
            let seen = self.seen();
            if let Some(census) = &seen.census {
                census.write(answer);
            }
            let oldest = self.live.longest_unheard();
            answer.set(&gauges::HEARTBEAT_AGE, [], oldest.as_secs_f64());
            for (place, count) in &seen.sandboxes {
                answer.add_at(&gauges::PLACE_SANDBOXES, place, *count);
            }
        }
        self.places.write_metrics(answer);
    }
}
