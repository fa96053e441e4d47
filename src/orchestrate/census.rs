//! Counts the jobs that are under way, and what they wait for, whenever the launch loop has looked at them. So figures
//! cost no look at the records of their own. Pure apart from reading the clock.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use kiln_records::{
    JobId, Moment,
    arch::Arch,
    run::{DriverKind, How, LOCAL, State},
};

use super::{
    places::place_name,
    waits::{Wait, WaitsFor},
};
use crate::{
    metrics::{Answer, gauges},
    store::OpenRuns,
};

/// The longest time for which a census holds: older figures are left out rather than shown as if they were new.
const HOLDS_FOR: Duration = Duration::from_secs(30);

/// The jobs of the records that are under way, as the launch loop saw them.
#[derive(Debug)]
pub(super) struct Census {
    taken: Instant,
    jobs: BTreeMap<Kind, u64>,
    queue: BTreeMap<WaitsFor, u64>,
    oldest: Option<Moment>,
    places: BTreeMap<String, u64>,
    unread: u64,
}

/// Jobs that count together. The driver is the name of one.
type Kind = (&'static str, Arch, &'static str, &'static str);

impl Census {
    /// Counts these jobs.
    pub(super) fn of(open: &OpenRuns, waiting: &[(JobId, Wait)]) -> Self {
        let mut census = Self {
            taken: Instant::now(),
            jobs: BTreeMap::new(),
            queue: BTreeMap::new(),
            oldest: None,
            places: BTreeMap::new(),
            unread: open.unread.len() as u64,
        };
        for stored in &**open {
            let (job, run) = (&stored.job, &stored.run);
            let state = match run.state {
                State::Success | State::Failed(_) => "ended",
                _ => run.state.name(),
            };
            let kind = (state, job.arch, run.plan.driver.name(), run.plan.how.name());
            *census.jobs.entry(kind).or_default() += 1;
            if run.state == State::Queued {
                census.oldest = Some(census.oldest.map_or(job.created, |oldest| oldest.min(job.created)));
            }
            if run.holds_place() {
                let place = place_name(run);
                *census.places.entry(place.to_owned()).or_default() += 1;
            }
        }
        for (_, wait) in waiting {
            *census.queue.entry(wait.waits_for).or_default() += 1;
        }
        census
    }

    /// Writes the figures into an answer, unless they are old. A state that no job is in is 0 for this host's own kind of
    /// jobs, so that the figure is there.
    pub(super) fn write(&self, answer: &mut Answer) {
        if self.taken.elapsed() > HOLDS_FOR {
            return;
        }
        for state in ["queued", "launching", "running", "committing", "ended"] {
            let (driver, how) = (DriverKind::default().name(), How::Native.name());
            answer.count(&gauges::JOBS, [state, Arch::host().name(), driver, how], 0);
        }
        for ((state, arch, driver, how), count) in &self.jobs {
            answer.count(&gauges::JOBS, [state, arch.name(), driver, how], *count);
        }
        answer.count(&gauges::QUEUE_JOBS, [WaitsFor::Slots.name()], 0);
        for (waits_for, count) in &self.queue {
            answer.count(&gauges::QUEUE_JOBS, [waits_for.name()], *count);
        }
        let now = Moment::now().micros();
        let micros = self.oldest.map_or(0, |oldest| now.saturating_sub(oldest.micros()));
        let age = Duration::from_micros(u64::try_from(micros).unwrap_or_default());
        answer.set(&gauges::QUEUE_OLDEST, [], age.as_secs_f64());
        answer.add_at(&gauges::PLACE_JOBS, LOCAL, 0);
        for (place, count) in &self.places {
            answer.add_at(&gauges::PLACE_JOBS, place, *count);
        }
        answer.count(&gauges::UNREAD, [], self.unread);
    }
}
