//! The settle loop clears away: sandboxes, objects and files of jobs that have ended, were deleted, or are unknown. It
//! reads and writes rows of the store, destroys sandboxes through their drivers, and writes logs to S3 and removes
//! objects there.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use kiln_records::{
    Code, Failure, JobId, Run, Warning,
    run::{Refused, State, Used},
};
use tokio::task::JoinSet;
use tracing::Instrument;

use super::{
    answers::{in_time, patiently},
    clearing::Tried,
    job_span,
    launch::since,
    live::Live,
    log_artifact::packed_log,
    orchestrator::Orchestrator,
    places::place_name,
};
use crate::{
    metrics::{self, Swept},
    sandbox::{Driver, Evidence, SandboxState, Scratch},
    store::{StoreError, StoredRun},
};

/// How long an agent that has reported its end may take to exit by itself.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// How many lines of a deleted job's log are removed at a time, so that other writers get a turn in between.
const LINES_AT_ONCE: u32 = 5000;

/// How often logs are searched whose jobs are gone, and how many are removed then.
const SEARCH_LOGS_EVERY: Duration = Duration::from_hours(1);
const LOGS_AT_ONCE: u32 = 100;

/// Clearing away after one job each.
pub(super) type Tasks = JoinSet<Result<(), Failure>>;

impl Orchestrator {
    /// Makes one pass over all that is left of jobs that have ended, were deleted, or lost their process. Waits for all of it.
    ///
    /// # Errors
    ///
    /// The first failure, after everything else was tried.
    pub async fn settle_once(self: &Arc<Self>) -> Result<(), Failure> {
        let (mut tasks, mut outcome) = (Tasks::new(), Ok(()));
        self.begin_to_settle(&mut tasks, Tried::AtOnce).await?;
        for done in tasks.join_all().await {
            outcome = outcome.and(done);
        }
        outcome
    }

    /// The same without waiting for the tasks, which end with `tasks`: what takes long for one job holds up neither the next
    /// pass nor the other jobs.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub(super) async fn settle_soon(self: &Arc<Self>, tasks: &mut Tasks) -> Result<(), Failure> {
        while tasks.try_join_next().is_some() {}
        self.begin_to_settle(tasks, Tried::AfterAPause).await
    }

    /// Begins to clear away after each job for which that is due, and not under way.
    async fn begin_to_settle(self: &Arc<Self>, tasks: &mut Tasks, again: Tried) -> Result<(), Failure> {
        if !self.holds_lease() {
            return Ok(());
        }
        let mut begin = |stored: StoredRun, due: Due| {
            let job = stored.job.id;
            if !self.state().clearing.begin(job, place_name(&stored.run), again) {
                return;
            }
            let mut cleared = Cleared {
                of: Arc::clone(self),
                job,
                is_done: false,
            };
            let clear = async move {
                let this = &cleared.of;
                let done = match due {
                    Due::Ended => this.settle(&stored).await,
                    Due::Left => this.inherit(&stored).await,
                    Due::Deleted => this.settle_deleted(&stored).await,
                };
                match &done {
                    Ok(()) => cleared.succeeds(),
                    Err(failure) => report(failure),
                }
                done
            };
            tasks.spawn(clear.instrument(job_span(job)));
        };
        let open = self.store.open_runs().await?;
        self.note_unread(&open.unread);
        for stored in open {
            match self.claim(&stored.run) {
                Claim::Ours | Claim::Left if stored.run.state.is_final() => begin(stored, Due::Ended),
                Claim::Left => begin(stored, Due::Left),
                Claim::Ours | Claim::Others => {}
            }
        }
        for stored in self.store.deleted_runs().await? {
            if self.is_mine(&stored.run) {
                begin(stored, Due::Deleted);
            }
        }
        Ok(())
    }

    /// Makes one pass over all that no job needs any more, whoever left it.
    ///
    /// # Errors
    ///
    /// As for [`Self::settle_once`].
    pub async fn sweep_once(&self) -> Result<(), Failure> {
        if !self.holds_lease() {
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

    /// Reports the jobs that this server cannot read, when there are more or fewer of them.
    fn note_unread(&self, unread: &[JobId]) {
        let before = std::mem::replace(&mut self.state().unread, unread.len());
        if before != unread.len() {
            tracing::warn!(
                jobs = ?unread,
                "jobs are left alone that only a server of another version can read"
            );
        }
    }

    /// Whether anything is left to clear away, or to complete, by this process.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn has_remains(&self) -> Result<bool, StoreError> {
        for stored in self
            .store
            .open_runs()
            .await?
            .iter()
            .chain(&self.store.deleted_runs().await?)
        {
            if self.is_mine(&stored.run) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether this process is responsible for a job.
    pub(super) fn is_mine(&self, run: &Run) -> bool {
        self.claim(run) != Claim::Others
    }

    /// Which process is responsible for a job. A process whose end is not shown is taken to be alive.
    fn claim(&self, run: &Run) -> Claim {
        let (owner, runner) = (run.owner, run.plan.runner);
        if runner == self.runner && owner.is_none_or(|owner| owner == self.id) {
            return Claim::Ours;
        }
        let is_gone = match (owner, runner) {
            (Some(owner), Some(runner)) if owner == self.id => self.runners.is_gone(runner),
            // A command does the work of a server neither here nor for another host.
            _ if self.runner.is_some() => false,
            (Some(owner), runner) => self.leases.is_gone(runner.unwrap_or(owner)),
            (None, _) => false,
        };
        if is_gone { Claim::Left } else { Claim::Others }
    }

    /// Whether this process reaches the sandbox of a job, or what it left.
    pub fn reaches(&self, run: &Run) -> bool {
        let place = run.plan.place.as_deref();
        run.owner == Some(self.id) || place.is_some_and(|place| self.places.is_shared(place))
    }

    /// Takes over a job whose process is gone. Its sandbox goes on if this process reaches it too. Otherwise the sandbox
    /// stands still or is gone, and no other host can check which.
    async fn inherit(&self, stored: &StoredRun) -> Result<(), Failure> {
        if stored.run.state == State::Committing {
            // The commit loop takes it over.
            return Ok(());
        }
        if self.reaches(&stored.run) && stored.run.plan.runner.is_none() {
            return self.adopt(stored).await;
        }
        let failure = if stored.run.plan.runner.is_some() {
            Failure::new(Code::Interrupted, "the command that ran the job was killed")
                .hint("start it again; nothing of it was left behind")
        } else {
            Failure::new(Code::ServerLost, "the server that ran the job is gone")
                .hint("see why it does not run; what its sandbox left is removed when it starts again")
        };
        Ok(self.fail(stored.job.id, stored.run.attempt, failure).await?)
    }

    /// Carries out a job from now on that another server has launched.
    async fn adopt(&self, stored: &StoredRun) -> Result<(), Failure> {
        let (job, before) = (stored.job.id, stored.run.owner);
        // By this process's own clock, it begins now: the other one's may be wrong.
        let live = Live::new(stored.run.attempt, Duration::ZERO);
        self.state().live.insert(job, live);
        let adopted = self
            .change(job, |run, _| {
                if run.owner != before {
                    return Err(Refused {
                        from: "another server's",
                        arrow: "be adopted",
                    });
                }
                run.adopt(self.id)
            })
            .await?;
        if let Some(Ok(_)) = adopted {
            tracing::warn!("the server that ran the job is gone; this one goes on with it");
            let text = "the server that ran the job is gone; another one goes on with it";
            self.say(job, text.to_owned()).await;
            self.wake.watch.notify_one();
        }
        Ok(())
    }

    /// Clears away what a job that has ended leaves behind.
    async fn settle(&self, stored: &StoredRun) -> Result<(), Failure> {
        let (job, run) = (stored.job.id, &stored.run);
        // First of all, since a place that is away can hold up the rest; but a full disk must not keep the sandbox that fills it.
        let told = self.tell(stored).await;
        let mut kept = false;
        if self.reaches(run) {
            self.let_exit(stored).await?;
            self.note_use(stored).await?;
            self.note_warning(stored).await?;
            kept = self.keeps_scratch(run);
            let scratch = if kept { Scratch::Keep } else { Scratch::Remove };
            self.driver_of(run).destroy(job, scratch).await?;
            self.doors.close(job)?;
        }
        if self.has_record(run).await? {
            // An earlier try may have left some uploads.
            self.artifacts.abort_uploads(run.image).await?;
        } else {
            self.artifacts.discard_image(run.image).await?;
        }
        Box::pin(self.verify_sampled(stored)).await?;
        told?;
        let packed = packed_log(self.store.clone(), job);
        let log = self.artifacts.put_job_log(job, packed).await?;
        self.change(job, |run, _| {
            run.log = Some(log.clone());
            run.kept = kept;
            run.settled = true;
            Ok(())
        })
        .await?;
        if let Some(traces) = &self.traces {
            traces.job_ended(stored);
        }
        // The resources it held are now free for other jobs.
        self.wake.launch.notify_one();
        Ok(())
    }

    /// Waits briefly for a sandbox whose agent has reported its end: if it exits by itself, nothing is cut off.
    async fn let_exit(&self, stored: &StoredRun) -> Result<(), Failure> {
        let (job, driver) = (stored.job.id, self.driver_of(&stored.run));
        let until = tokio::time::Instant::now() + EXIT_GRACE;
        while driver.look(job).await? == SandboxState::Running && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Tells the user what the place could not give the sandbox, such as limits.
    async fn note_warning(&self, stored: &StoredRun) -> Result<(), Failure> {
        if let SandboxState::Ended(Evidence {
            warning: Some(warning), ..
        }) = self.driver_of(&stored.run).look(stored.job.id).await?
        {
            tracing::warn!("{warning}");
            let warning = Warning::new(Code::LimitsPartial, warning);
            self.say(stored.job.id, warning.line()).await;
            self.change(stored.job.id, |run, _| {
                run.warn(warning.clone());
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Records what a sandbox used, for the next build of the recipe. Without an answer the record stays as it is: the node of
    /// a sandbox may be gone, which is no reason to keep the rest.
    async fn note_use(&self, stored: &StoredRun) -> Result<(), Failure> {
        let job = stored.job.id;
        let driver = self.driver_of(&stored.run);
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
            self.change(job, |run, _| {
                run.note_use(used);
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Whether a job's files are kept: because its user asked for them, or because another job can resume from those of
    /// a failed one. A command leaves nothing on a user's disk without being asked.
    fn keeps_scratch(&self, run: &Run) -> bool {
        let resumable = run.failure().is_some() && !run.steps.is_empty();
        let asked = run.plan.keep && run.failure().is_none_or(|failure| failure.code != Code::Interrupted);
        asked || (run.plan.runner.is_none() && resumable && !self.watch.keep_failed.duration().is_zero())
    }

    /// Tells the site's other services how a job ended. A command shows its user how its jobs end.
    async fn tell(&self, stored: &StoredRun) -> Result<(), StoreError> {
        match stored.run.plan.runner {
            None => self.webhooks.job_ended(stored).await,
            Some(_) => Ok(()),
        }
    }

    /// Clears away what a deleted job leaves behind.
    async fn settle_deleted(&self, stored: &StoredRun) -> Result<(), Failure> {
        let (job, run) = (stored.job.id, &stored.run);
        let told = self.tell(stored).await;
        if self.reaches(run) {
            self.driver_of(run).destroy(job, Scratch::Remove).await?;
            self.doors.close(job)?;
        }
        if !self.has_record(run).await? {
            self.artifacts.discard_image(run.image).await?;
        }
        self.artifacts.discard_job_log(job).await?;
        self.artifacts.discard_recipe(job).await?;
        if run.plan.image.is_some() {
            self.artifacts.discard_changes(job).await?;
        }
        self.drop_log(job).await?;
        self.store.drop_usage(job).await?;
        told?;
        self.store.forget_deleted_run(job).await?;
        self.state().live.remove(&job);
        self.wake.launch.notify_one();
        Ok(())
    }

    /// Removes logs whose jobs are gone, which something was added to after their jobs were cleared away. To find them takes
    /// longer with every job that there is, so it is done seldom.
    async fn drop_logs(&self) -> Result<(), Failure> {
        let searched = self.state().logs_searched;
        if searched.is_some_and(|at| at.elapsed() < SEARCH_LOGS_EVERY) {
            return Ok(());
        }
        let left = self.store.logs_left_behind(LOGS_AT_ONCE).await?;
        let are_all = left.len() < usize::try_from(LOGS_AT_ONCE).unwrap_or(usize::MAX);
        for job in left {
            self.drop_log(job).await?;
            metrics::swept(Swept::Log);
        }
        if are_all {
            self.state().logs_searched = Some(Instant::now());
        }
        Ok(())
    }

    async fn drop_log(&self, job: JobId) -> Result<(), StoreError> {
        while self.store.drop_log(job, LINES_AT_ONCE).await? {}
        Ok(())
    }

    /// Removes sandboxes that no job needs any more.
    async fn sweep_sandboxes(&self) -> Result<(), Failure> {
        // A place that does not answer does not keep the others from being swept.
        let sweeps = self.places.drivers().into_iter().map(async |(place, driver)| {
            let swept = self.sweep_place(&place, driver.as_ref()).await;
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
        self.state().sandboxes = found;
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
    pub(super) async fn sweep_place(&self, place: &str, driver: &dyn Driver) -> Result<u64, Failure> {
        let listed = patiently(place, driver.list()).await?;
        let count = listed.len() as u64;
        // Jobs are read after sandboxes: a job that arrived in between has its row by now.
        let open = self.store.open_runs().await?;
        let wanted: HashSet<JobId> = open
            .iter()
            .filter(|stored| self.reaches(&stored.run) && is_at(&stored.run, place))
            .map(|stored| stored.job.id)
            .chain(open.iter().filter_map(|stored| Some(stored.run.resumes()?.job)))
            // What cannot be read may be anywhere.
            .chain(open.unread.iter().copied())
            .collect();
        for (job, only_scratch) in listed {
            // A command removes only what the records name: the rest may be that of a server with other records.
            if self.runner.is_some() && self.store.get_run(job).await?.is_none() {
                continue;
            }
            if wanted.contains(&job) || (only_scratch && self.is_kept(job).await?) {
                continue;
            }
            // A job that waits for another try may be launched at this very moment.
            if !self.state().starting.insert(job) {
                continue;
            }
            let removed = self
                .remove_unless_launched(job, place, driver)
                .instrument(job_span(job))
                .await;
            self.state().starting.remove(&job);
            removed?;
        }
        Ok(count)
    }

    /// Removes what remains of a sandbox. The caller makes sure that it is not started meanwhile.
    async fn remove_unless_launched(&self, job: JobId, place: &str, driver: &dyn Driver) -> Result<(), Failure> {
        let now = self.store.get_run(job).await?;
        if now.is_some_and(|now| self.reaches(&now.run) && is_at(&now.run, place) && !now.run.settled) {
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
        let is_recent = ended.is_some_and(|ago| ago < self.watch.keep_failed.duration());
        if stored.run.kept && (stored.run.plan.keep || is_recent) {
            return Ok(true);
        }
        self.change(job, |run, _| {
            run.kept = false;
            Ok(())
        })
        .await?;
        Ok(false)
    }
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

fn report(failure: &Failure) {
    tracing::warn!(
        code = failure.code.name(),
        hint = failure.hint,
        "something is not cleared away yet: {failure}"
    );
}

/// What there is to clear away after a job.
#[derive(Debug, Clone, Copy)]
enum Due {
    /// It has ended.
    Ended,
    /// Its process is gone.
    Left,
    /// Its record was deleted.
    Deleted,
}

/// Notes the end of clearing away after a job, also when that is broken off.
struct Cleared {
    of: Arc<Orchestrator>,
    job: JobId,
    is_done: bool,
}

impl Cleared {
    fn succeeds(&mut self) {
        self.is_done = true;
    }
}

impl Drop for Cleared {
    fn drop(&mut self) {
        if self.of.state().clearing.end(self.job, self.is_done) {
            self.of.wake.settle.notify_one();
        }
    }
}

/// Which process is responsible for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// This one.
    Ours,
    /// This one, since the process that carried it out is gone.
    Left,
    /// Another one.
    Others,
}

fn is_at(run: &Run, place: &str) -> bool {
    run.plan.place.as_deref() == Some(place)
}
