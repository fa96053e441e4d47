//! The sweep loop removes what no job needs any more, whoever left it: logs, sandboxes, sockets. It reads and writes rows of
//! the store, lists and destroys sandboxes through their drivers, and removes sockets.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::future::join_all;
use kiln_records::{Failure, JobId, Run};
use tracing::Instrument;

use super::{
    answers::patiently, claim::Claim, glance::Glance, job_doors::JobDoors, job_span, live::since, row::Jobs,
    sandboxes::Sandboxes,
};
use crate::{
    metrics::{self, Swept},
    sandbox::{Driver, Scratch},
    settings::Period,
    store::{SharedStore, StoreError},
};

/// How many lines of a deleted job's log are removed at a time, so that other writers get a turn in between.
const LINES_AT_ONCE: u32 = 5000;

/// How often logs are searched whose jobs are gone, and how many are removed then.
const SEARCH_LOGS_EVERY: Duration = Duration::from_hours(1);
const LOGS_AT_ONCE: u32 = 100;

/// Removes what is left.
#[derive(Debug)]
pub struct Sweep {
    pub(super) store: SharedStore,
    pub(super) jobs: Arc<Jobs>,
    pub(super) claim: Arc<Claim>,
    pub(super) sandboxes: Arc<Sandboxes>,
    pub(super) doors: Arc<JobDoors>,
    pub(super) glance: Arc<Glance>,
    /// How long the files of a failed job are kept.
    pub(super) keep_failed: Period,
    /// When logs without jobs were last searched for.
    pub(super) logs_searched: Mutex<Option<Instant>>,
}

impl Sweep {
    /// Makes one pass over all that no job needs any more, whoever left it.
    ///
    /// # Errors
    ///
    /// The first failure, after everything else was tried.
    pub async fn pass(&self) -> Result<(), Failure> {
        if !self.claim.holds_lease() {
            return Ok(());
        }
        let mut outcome = Ok(());
        note(&mut outcome, self.drop_logs().await);
        note(&mut outcome, self.sweep_sandboxes().await);
        note(&mut outcome, self.sweep_doors().await);
        let forgotten = self.store.forget_old_servers().await;
        note(&mut outcome, forgotten.map_err(Into::into));
        outcome
    }

    /// Removes logs whose jobs are gone, which something was added to after their jobs were cleared away. To find them takes
    /// longer with every job that there is, so it is done seldom.
    async fn drop_logs(&self) -> Result<(), Failure> {
        let searched = *self.logs_searched.lock().unwrap_or_else(PoisonError::into_inner);
        if searched.is_some_and(|at| at.elapsed() < SEARCH_LOGS_EVERY) {
            return Ok(());
        }
        let left = self.store.logs_left_behind(LOGS_AT_ONCE).await?;
        let are_all = left.len() < usize::try_from(LOGS_AT_ONCE).unwrap_or(usize::MAX);
        for job in left {
            drop_log(&self.store, job).await?;
            metrics::swept(Swept::Log);
        }
        if are_all {
            let mut searched = self.logs_searched.lock().unwrap_or_else(PoisonError::into_inner);
            *searched = Some(Instant::now());
        }
        Ok(())
    }

    /// Removes sandboxes that no job needs any more.
    async fn sweep_sandboxes(&self) -> Result<(), Failure> {
        // A place that does not answer does not keep the others from being swept.
        let sweeps = self
            .sandboxes
            .places
            .drivers()
            .into_iter()
            .map(async |(place, driver)| {
                let swept = self.place(&place, driver.as_ref()).await;
                (place, swept)
            });
        let mut outcome = Ok(());
        let mut found = BTreeMap::new();
        for (place, swept) in join_all(sweeps).await {
            match swept {
                Ok(sandboxes) => {
                    found.insert(place, sandboxes);
                }
                Err(failure) => outcome = outcome.and(Err(failure)),
            }
        }
        self.glance.publish_sandboxes(found);
        outcome
    }

    /// Removes the sockets of jobs that have no sandbox any more: of those that an earlier process did not get to.
    async fn sweep_doors(&self) -> Result<(), Failure> {
        let there = self.doors.jobs()?;
        // Jobs are read after sockets: a job that arrived in between has its row by now.
        let open = self.store.open_runs().await?;
        let wanted: HashSet<JobId> = open
            .iter()
            .map(|stored| stored.job.id)
            .chain(open.unread.iter().copied())
            .collect();
        for job in there.iter().filter(|job| !wanted.contains(job)) {
            self.doors.close(*job)?;
            metrics::swept(Swept::Sockets);
        }
        Ok(())
    }

    /// Removes the sandboxes at a place that no job needs any more. Returns how many were there before.
    pub(super) async fn place(&self, place: &str, driver: &dyn Driver) -> Result<u64, Failure> {
        let listed = patiently(place, driver.list()).await?;
        let count = listed.len() as u64;
        // Jobs are read after sandboxes: a job that arrived in between has its row by now.
        let open = self.store.open_runs().await?;
        let wanted: HashSet<JobId> = open
            .iter()
            .filter(|stored| self.sandboxes.reaches(&stored.run) && is_at(&stored.run, place))
            .map(|stored| stored.job.id)
            .chain(open.iter().filter_map(|stored| Some(stored.run.resumes()?.job)))
            // What cannot be read may be anywhere.
            .chain(open.unread.iter().copied())
            .collect();
        for (job, only_scratch) in listed {
            // A command removes only what the records name: the rest may be that of a server with other records.
            if self.claim.is_command() && self.store.get_run(job).await?.is_none() {
                continue;
            }
            if wanted.contains(&job) || (only_scratch && self.is_kept(job).await?) {
                continue;
            }
            // A job that waits for another try may be launched at this very moment.
            let Some(_in_hand) = self.sandboxes.take_in_hand(job) else {
                continue;
            };
            self.remove_unless_launched(job, place, driver)
                .instrument(job_span(job))
                .await?;
        }
        Ok(count)
    }

    /// Removes what remains of a sandbox. The caller makes sure that it is not started meanwhile.
    async fn remove_unless_launched(&self, job: JobId, place: &str, driver: &dyn Driver) -> Result<(), Failure> {
        let now = self.store.get_run(job).await?;
        if now.is_some_and(|now| self.sandboxes.reaches(&now.run) && is_at(&now.run, place) && !now.run.settled) {
            return Ok(());
        }
        tracing::info!(place, "removing what a sandbox left");
        driver.destroy(job, Scratch::Remove).await?;
        metrics::swept(Swept::Sandbox);
        Ok(())
    }

    /// Whether the files of a job that has ended are still kept.
    async fn is_kept(&self, job: JobId) -> Result<bool, Failure> {
        let Some(stored) = self.store.get_run(job).await? else {
            return Ok(false);
        };
        let ended = stored.run.ended.map(since);
        let is_recent = ended.is_some_and(|ago| ago < self.keep_failed.duration());
        if stored.run.kept && (stored.run.plan.keep || is_recent) {
            return Ok(true);
        }
        self.jobs
            .change(job, |run, _| {
                run.kept = false;
                Ok(())
            })
            .await?;
        Ok(false)
    }
}

/// Removes the log of a job.
pub(super) async fn drop_log(store: &SharedStore, job: JobId) -> Result<(), StoreError> {
    while store.drop_log(job, LINES_AT_ONCE).await? {}
    Ok(())
}

/// Reports a failure, and keeps the first one.
fn note(outcome: &mut Result<(), Failure>, done: Result<(), Failure>) {
    if let Err(failure) = done {
        report(&failure);
        if outcome.is_ok() {
            *outcome = Err(failure);
        }
    }
}

pub(super) fn report(failure: &Failure) {
    tracing::warn!(
        code = failure.code.name(),
        hint = failure.hint,
        "something is not cleared away yet: {failure}"
    );
}

fn is_at(run: &Run, place: &str) -> bool {
    run.plan.place.as_deref() == Some(place)
}
