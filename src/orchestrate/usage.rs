//! What jobs use of their places: measured, drawn over time, and judged. It reads and writes rows of the store, and asks
//! sandboxes through their drivers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kiln_records::{Code, Failure, Moment, Run, run::Used, usage::UsageCurve};

use super::{
    answers::{Asked, in_time},
    live::LiveJobs,
    places::place_name,
    row::Jobs,
    sandboxes::Sandboxes,
};
use crate::store::{SharedStore, StoreError, StoredRun};

/// How often a sandbox's usage is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// How often the use of a job over time is stored.
const KEEP_EVERY: Duration = Duration::from_secs(20);

/// Measures what jobs use.
#[derive(Debug)]
pub(super) struct Usage {
    pub(super) store: SharedStore,
    pub(super) live: Arc<LiveJobs>,
    pub(super) sandboxes: Arc<Sandboxes>,
}

impl Usage {
    /// A job's usage, as far as it is known without asking.
    pub(super) fn known(&self, stored: &StoredRun) -> Used {
        let live = self.live.of(stored.job.id, |live| live.used);
        live.or(stored.run.used).unwrap_or_default()
    }

    /// A sandbox's usage, measured at intervals.
    pub(super) async fn measure(&self, stored: &StoredRun, asked: &Asked<'_>) -> Result<Used, Failure> {
        let job = stored.job.id;
        let known = self.live.of(job, |live| (live.measured, live.used));
        let (measured, used) = known.unwrap_or_default();
        if measured.is_some_and(|at| at.elapsed() < MEASURE_EVERY) {
            return Ok(used);
        }
        let measured = asked
            .ask(self.sandboxes.driver_of(&stored.run).usage(job))
            .await
            .map(Used::from);
        self.live.of(job, |live| {
            // What does not answer is not asked again at once.
            live.measured = Some(Instant::now());
            live.used = *measured.as_ref().unwrap_or(&used);
        });
        if let Ok(used) = measured {
            // A plot is not worth a job.
            if let Err(error) = self.draw(stored, used, KEEP_EVERY).await {
                tracing::warn!("the use of the job over time is not kept: {error}");
            }
        }
        measured
    }

    /// Adds a measurement to a job's curve, and stores the curve unless that was done less than so long ago.
    async fn draw(&self, stored: &StoredRun, used: Used, every: Duration) -> Result<(), StoreError> {
        let (job, attempt) = (stored.job.id, stored.run.attempt);
        let is_new = self.live.of(job, |live| live.curve.is_none()).unwrap_or(true);
        let known = if is_new {
            // Another process may have begun it.
            self.store.usage(job).await?.filter(|curve| curve.attempt == attempt)
        } else {
            None
        };
        let drawn = self.live.of(job, |live| {
            if live.attempt != attempt {
                return None;
            }
            let begin = || (known.unwrap_or(UsageCurve::new(attempt)), Instant::now());
            let (curve, kept) = live.curve.get_or_insert_with(begin);
            curve.note(since_its_launch(&stored.run), used);
            if kept.elapsed() < every {
                return None;
            }
            *kept = Instant::now();
            Some(curve.clone())
        });
        match drawn.flatten() {
            Some(drawn) => self.store.put_usage(job, &drawn).await,
            None => Ok(()),
        }
    }

    /// Records what a sandbox used, for the next build of the recipe. Without an answer the record stays as it is: the node of
    /// a sandbox may be gone, which is no reason to keep the rest.
    pub(super) async fn note_last(&self, jobs: &Jobs, stored: &StoredRun) -> Result<(), Failure> {
        let job = stored.job.id;
        let driver = self.sandboxes.driver_of(&stored.run);
        let used = match in_time(place_name(&stored.run), driver.usage(job)).await {
            Ok(usage) => Used::from(usage),
            Err(failure) => {
                tracing::warn!("what the sandbox used is not known: {failure}");
                return Ok(());
            }
        };
        if used != Used::default() {
            // Nor must a plot.
            if let Err(error) = self.draw(stored, used, Duration::ZERO).await {
                tracing::warn!("the use of the job over time is not kept: {error}");
            }
            jobs.change(job, |run, _| {
                run.note_use(used);
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// A tool killed for lack of memory does not know the cause; the kernel does.
    pub(super) async fn better_cause(&self, stored: &StoredRun, failure: Failure) -> Failure {
        match self.sandboxes.driver_of(&stored.run).usage(stored.job.id).await {
            Ok(usage) if usage.oom_kills > 0 => out_of_memory(usage.oom_kills),
            _ => failure,
        }
    }
}

/// The time from the launch of an attempt to its end, or to now.
fn since_its_launch(run: &Run) -> Duration {
    let until = run.ended.unwrap_or_else(Moment::now).micros();
    let since = run
        .launched
        .map_or(0, |launched| until.saturating_sub(launched.micros()));
    Duration::from_micros(u64::try_from(since).unwrap_or(0))
}

/// The failure of a sandbox in which the kernel killed processes for lack of memory.
pub(super) fn out_of_memory(kills: u64) -> Failure {
    let detail = format!("the build needed more memory than it may have; the kernel killed {kills} of its processes");
    Failure::new(Code::OutOfMemory, detail)
        .hint("allow it more: `job_mem_size` of the job, in GiB, or `--memory` of `kiln build`")
}
