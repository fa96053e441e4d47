//! How long jobs of a recipe or image usually take, from the last ones that succeeded. Reads the database, and remembers
//! what it read for a minute.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use kiln_records::{Moment, Run, Step, arch::Arch, run::How};
use uuid::Uuid;

use super::text::{between, duration};
use crate::{
    api::Api,
    store::{Result, StoredRun},
};

/// The past jobs that are looked at.
const PAST: u32 = 10;

/// How long a history counts as current.
const CURRENT: Duration = Duration::from_mins(1);

/// The most recipes and images that are remembered.
const MOST: usize = 256;

/// What is remembered of recipes and images.
#[derive(Debug, Default)]
pub(super) struct Histories(Mutex<HashMap<Uuid, Remembered>>);

/// The latest successes of a recipe or image, and the time at which they were read.
type Remembered = (Instant, Arc<Vec<Past>>);

/// A job that succeeded.
#[derive(Debug)]
struct Past {
    arch: Arch,
    how: How,
    steps: Vec<(Step, u64)>,
}

/// The usual durations of steps, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Usual(Vec<(Step, u64)>);

impl Histories {
    /// The usual durations of jobs like this one; none before the first has succeeded.
    pub(super) async fn usual(&self, api: &Api, stored: &StoredRun) -> Result<Option<Usual>> {
        let artifact = stored.job.artifact_id;
        let past = if let Some(past) = self.known(artifact) {
            past
        } else {
            let past = api.store.latest_successes(artifact, PAST).await?;
            let past = Arc::new(past.iter().map(Past::of).collect::<Vec<_>>());
            self.remember(artifact, &past);
            past
        };
        Ok(Usual::of(&past, stored.job.arch, stored.run.plan.how))
    }

    fn known(&self, artifact: Uuid) -> Option<Arc<Vec<Past>>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (when, past) = known.get(&artifact)?;
        (when.elapsed() < CURRENT).then(|| Arc::clone(past))
    }

    fn remember(&self, artifact: Uuid, past: &Arc<Vec<Past>>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (when, _)| when.elapsed() < CURRENT);
        if known.len() < MOST {
            known.insert(artifact, (Instant::now(), Arc::clone(past)));
        }
    }
}

impl Past {
    fn of(stored: &StoredRun) -> Self {
        Self {
            arch: stored.job.arch,
            how: stored.run.plan.how,
            steps: stored.run.steps.iter().map(|time| (time.step, time.wall_ms)).collect(),
        }
    }
}

impl Usual {
    fn of(past: &[Past], arch: Arch, how: How) -> Option<Self> {
        let alike: Vec<_> = past
            .iter()
            .filter(|past| past.arch == arch && past.how == how)
            .collect();
        if alike.is_empty() {
            return None;
        }
        let median = |step: Step| {
            let times = alike.iter().flat_map(|past| &past.steps);
            let mut times: Vec<u64> = times.filter(|(known, _)| *known == step).map(|(_, ms)| *ms).collect();
            times.sort_unstable();
            times.get(times.len() / 2).copied()
        };
        let steps = Step::ALL.into_iter().filter_map(|step| Some((step, median(step)?)));
        Some(Self(steps.collect()))
    }

    /// How long a step usually takes, in milliseconds.
    pub(super) fn step(&self, step: Step) -> Option<u64> {
        self.0.iter().find(|(known, _)| *known == step).map(|(_, ms)| *ms)
    }

    /// The time that a running job has left, in words.
    pub(super) fn left(&self, run: &Run, now: Moment) -> String {
        let is_done = |step: Step| run.steps.iter().any(|time| time.step == step);
        let done: u64 = run.steps.iter().map(|time| time.wall_ms).sum();
        let to_do: u64 = self
            .0
            .iter()
            .filter(|(step, _)| !is_done(*step))
            .map(|(_, ms)| *ms)
            .sum();
        let since = run.launched.map_or(Duration::ZERO, |launched| between(launched, now));
        let in_step = since.saturating_sub(Duration::from_millis(done));
        // Steps that were made by an earlier attempt are not done again.
        let expected = Duration::from_millis(to_do);
        match expected.checked_sub(in_step) {
            Some(left) => format!("about {} left", duration(left)),
            None => format!("{} longer than usual", duration(in_step.saturating_sub(expected))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_jobs_alike_is_usual() {
        let past = |arch, how, build| Past {
            arch,
            how,
            steps: vec![(Step::Fetch, 10), (Step::Build, build)],
        };
        let past = [
            past(Arch::X86_64, How::Native, 100),
            past(Arch::X86_64, How::Native, 300),
            past(Arch::X86_64, How::Native, 200),
            past(Arch::Aarch64, How::Emulated, 9000),
        ];
        let usual = Usual::of(&past, Arch::X86_64, How::Native).unwrap();
        assert_eq!(usual, Usual(vec![(Step::Fetch, 10), (Step::Build, 200)]));
        assert_eq!(Usual::of(&past, Arch::X86_64, How::Emulated), None);
    }
}
