//! Knows after which jobs this process is clearing away, and limits how many these are. Pure apart from the clock.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use kiln_records::JobId;

/// The most jobs of one place after which is cleared away at the same time: a place that hangs takes no more tasks.
const AT_ONCE: usize = 32;

/// The pause after a failure, and the longest one: it doubles each time. A job that cannot be cleared away takes no room from
/// the others meanwhile.
const PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// When to try again after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tried {
    /// At once.
    AtOnce,
    /// After a pause.
    AfterAPause,
}

/// The jobs after which this process is clearing away, or could not a moment ago.
#[derive(Debug, Default)]
pub(super) struct Clearing {
    /// With their places.
    under_way: HashMap<JobId, String>,
    /// When it was tried last, and how often.
    failed: HashMap<JobId, (Instant, u32)>,
    /// Whether a job was put off, because there were enough at its place.
    has_more: bool,
}

impl Clearing {
    /// Whether to begin with a job, which is then under way.
    pub(super) fn begin(&mut self, job: JobId, place: &str, again: Tried) -> bool {
        let rests = |(at, times): &(Instant, u32)| at.elapsed() < pause_after(*times);
        if self.under_way.contains_key(&job)
            || (again == Tried::AfterAPause && self.failed.get(&job).is_some_and(rests))
        {
            return false;
        }
        if self.under_way.values().filter(|at| *at == place).count() >= AT_ONCE {
            self.has_more = true;
            return false;
        }
        self.under_way.insert(job, place.to_owned());
        true
    }

    /// Notes the end. Returns whether there is room now for a job that was put off.
    pub(super) fn end(&mut self, job: JobId, is_done: bool) -> bool {
        self.under_way.remove(&job);
        let times = self.failed.remove(&job).map_or(0, |(_, times)| times);
        if !is_done {
            self.failed.insert(job, (Instant::now(), times.saturating_add(1)));
        }
        std::mem::take(&mut self.has_more)
    }
}

fn pause_after(times: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(times.saturating_sub(1));
    PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_a_limit_and_a_failure_a_pause() {
        let mut clearing = Clearing::default();
        let jobs: Vec<_> = (0..=AT_ONCE).map(|_| JobId::new()).collect();
        for job in &jobs[..AT_ONCE] {
            assert!(clearing.begin(*job, "one", Tried::AfterAPause));
            assert!(!clearing.begin(*job, "one", Tried::AtOnce), "it is under way");
        }
        assert!(!clearing.end(jobs[0], false), "nothing was put off");
        assert!(clearing.begin(jobs[AT_ONCE], "one", Tried::AfterAPause));
        assert!(
            !clearing.begin(jobs[0], "one", Tried::AfterAPause),
            "it failed a moment ago"
        );
        assert!(!clearing.begin(jobs[0], "one", Tried::AtOnce), "there are enough");
        assert!(clearing.begin(JobId::new(), "another", Tried::AfterAPause));
        assert!(clearing.end(jobs[1], true), "one was put off");
        assert!(clearing.begin(jobs[0], "one", Tried::AtOnce));
        assert!(!clearing.end(jobs[0], true) && clearing.failed.is_empty());
    }

    #[test]
    fn pauses_grow_and_have_an_end() {
        assert_eq!([1, 2, 3].map(pause_after), [10, 20, 30].map(Duration::from_secs));
        assert_eq!(pause_after(u32::MAX), LONGEST_PAUSE);
    }
}
