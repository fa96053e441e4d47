//! The settle loop clears away: sandboxes, objects and files of jobs that have ended, were deleted, or lost their process. It
//! reads and writes rows of the store, destroys sandboxes through their drivers, and writes logs to S3 and removes
//! objects there.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kiln_records::{
    Code, Failure, JobId, Run, Warning,
    run::{Refused, State},
};
use tokio::task::JoinSet;
use tracing::Instrument;

use super::{
    bells::Bells,
    claim::{Claim, Whose},
    clearing::{Clearing, Tried},
    job_doors::JobDoors,
    job_span,
    live::{Live, LiveJobs},
    log_artifact::packed_log,
    places::place_name,
    row::Jobs,
    sample::Sampling,
    sandboxes::Sandboxes,
    sweep::{drop_log, report},
    usage::Usage,
};
use crate::{
    artifacts::ArtifactStore,
    sandbox::{Evidence, SandboxState, Scratch},
    settings::Period,
    store::{SharedStore, StoreError, StoredRun},
    traces::Traces,
    webhooks::Webhooks,
};

/// How long an agent that has reported its end may take to exit by itself.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// Clearing away after one job each.
pub(super) type Tasks = JoinSet<Result<(), Failure>>;

/// Clears away after jobs.
#[derive(Debug)]
pub struct Settle {
    pub(super) store: SharedStore,
    pub(super) jobs: Arc<Jobs>,
    pub(super) claim: Arc<Claim>,
    pub(super) bells: Arc<Bells>,
    pub(super) live: Arc<LiveJobs>,
    pub(super) sandboxes: Arc<Sandboxes>,
    pub(super) usage: Arc<Usage>,
    pub(super) doors: Arc<JobDoors>,
    pub(super) artifacts: ArtifactStore,
    pub(super) sampling: Sampling,
    /// The site's services that are told how jobs end.
    pub(super) webhooks: Arc<Webhooks>,
    /// Sends traces of jobs, if there is a collector.
    pub(super) traces: Option<Arc<Traces>>,
    /// How long the files of a failed job are kept.
    pub(super) keep_failed: Period,
    pub(super) memory: Mutex<Memory>,
}

/// What need not outlive the process.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Jobs after which this process is clearing away, or could not.
    clearing: Clearing,
    /// The number of open jobs that this process cannot read.
    unread: usize,
}

impl Settle {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Each change is complete before anything can panic.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one pass over all that is left of jobs that have ended, were deleted, or lost their process. Waits for all of it.
    ///
    /// # Errors
    ///
    /// The first failure, after everything else was tried.
    pub async fn pass(self: &Arc<Self>) -> Result<(), Failure> {
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
    pub(super) async fn pass_soon(self: &Arc<Self>, tasks: &mut Tasks) -> Result<(), Failure> {
        while tasks.try_join_next().is_some() {}
        self.begin_to_settle(tasks, Tried::AfterAPause).await
    }

    /// Begins to clear away after each job for which that is due, and not under way.
    async fn begin_to_settle(self: &Arc<Self>, tasks: &mut Tasks, again: Tried) -> Result<(), Failure> {
        if !self.claim.holds_lease() {
            return Ok(());
        }
        let mut begin = |stored: StoredRun, due: Due| {
            let job = stored.job.id;
            if !self.memory().clearing.begin(job, place_name(&stored.run), again) {
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
            match self.claim.whose(&stored.run) {
                Whose::Ours | Whose::Left if stored.run.state.is_final() => begin(stored, Due::Ended),
                Whose::Left => begin(stored, Due::Left),
                Whose::Ours | Whose::Others => {}
            }
        }
        for stored in self.store.deleted_runs().await? {
            if self.claim.is_mine(&stored.run) {
                begin(stored, Due::Deleted);
            }
        }
        Ok(())
    }

    /// Reports the jobs that this server cannot read, when there are more or fewer of them.
    fn note_unread(&self, unread: &[JobId]) {
        let before = std::mem::replace(&mut self.memory().unread, unread.len());
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
            if self.claim.is_mine(&stored.run) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes over a job whose process is gone. Its sandbox goes on if this process reaches it too. Otherwise the sandbox
    /// stands still or is gone, and no other host can check which.
    async fn inherit(&self, stored: &StoredRun) -> Result<(), Failure> {
        if stored.run.state == State::Committing {
            // The commit loop takes it over.
            return Ok(());
        }
        if self.sandboxes.reaches(&stored.run) && stored.run.plan.runner.is_none() {
            return self.adopt(stored).await;
        }
        let failure = if stored.run.plan.runner.is_some() {
            Failure::new(Code::Interrupted, "the command that ran the job was killed")
                .hint("start it again; nothing of it was left behind")
        } else {
            Failure::new(Code::ServerLost, "the server that ran the job is gone")
                .hint("see why it does not run; what its sandbox left is removed when it starts again")
        };
        Ok(self.jobs.fail(stored.job.id, stored.run.attempt, failure).await?)
    }

    /// Carries out a job from now on that another server has launched.
    async fn adopt(&self, stored: &StoredRun) -> Result<(), Failure> {
        let (job, before) = (stored.job.id, stored.run.owner);
        // By this process's own clock, it begins now: the other one's may be wrong.
        let live = Live::new(stored.run.attempt, Duration::ZERO);
        self.live.begin(job, live);
        let adopted = self
            .jobs
            .change(job, |run, _| {
                if run.owner != before {
                    return Err(Refused {
                        from: "another server's",
                        arrow: "be adopted",
                    });
                }
                run.adopt(self.claim.id())
            })
            .await?;
        if let Some(Ok(_)) = adopted {
            tracing::warn!("the server that ran the job is gone; this one goes on with it");
            let text = "the server that ran the job is gone; another one goes on with it";
            self.jobs.say(job, text.to_owned()).await;
            self.bells.watch.notify_one();
        }
        Ok(())
    }

    /// Clears away what a job that has ended leaves behind.
    async fn settle(&self, stored: &StoredRun) -> Result<(), Failure> {
        let (job, run) = (stored.job.id, &stored.run);
        // First of all, since a place that is away can hold up the rest; but a full disk must not keep the sandbox that fills it.
        let told = self.tell(stored).await;
        let mut kept = false;
        if self.sandboxes.reaches(run) {
            self.let_exit(stored).await?;
            self.usage.note_last(&self.jobs, stored).await?;
            self.note_warning(stored).await?;
            kept = self.keeps_scratch(run);
            let scratch = if kept { Scratch::Keep } else { Scratch::Remove };
            self.sandboxes.driver_of(run).destroy(job, scratch).await?;
            self.doors.close(job)?;
        }
        if self.jobs.has_record(run).await? {
            // An earlier try may have left some uploads.
            self.artifacts.abort_uploads(run.image).await?;
        } else {
            self.artifacts.discard_image(run.image).await?;
        }
        Box::pin(self.sampling.verify(&self.jobs, stored)).await?;
        told?;
        let packed = packed_log(self.store.clone(), job);
        let log = self.artifacts.put_job_log(job, packed).await?;
        self.jobs
            .change(job, |run, _| {
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
        self.bells.launch.notify_one();
        Ok(())
    }

    /// Waits briefly for a sandbox whose agent has reported its end: if it exits by itself, nothing is cut off.
    async fn let_exit(&self, stored: &StoredRun) -> Result<(), Failure> {
        let (job, driver) = (stored.job.id, self.sandboxes.driver_of(&stored.run));
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
        }) = self.sandboxes.driver_of(&stored.run).look(stored.job.id).await?
        {
            tracing::warn!("{warning}");
            let warning = Warning::new(Code::LimitsPartial, warning);
            self.jobs.say(stored.job.id, warning.line()).await;
            self.jobs
                .change(stored.job.id, |run, _| {
                    run.warn(warning.clone());
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
        asked || (run.plan.runner.is_none() && resumable && !self.keep_failed.duration().is_zero())
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
        if self.sandboxes.reaches(run) {
            self.sandboxes.driver_of(run).destroy(job, Scratch::Remove).await?;
            self.doors.close(job)?;
        }
        if !self.jobs.has_record(run).await? {
            self.artifacts.discard_image(run.image).await?;
        }
        self.artifacts.discard_job_log(job).await?;
        self.artifacts.discard_recipe(job).await?;
        if run.plan.image.is_some() {
            self.artifacts.discard_changes(job).await?;
        }
        drop_log(&self.store, job).await?;
        self.store.drop_usage(job).await?;
        told?;
        self.store.forget_deleted_run(job).await?;
        self.live.forget(job);
        self.bells.launch.notify_one();
        Ok(())
    }
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
    of: Arc<Settle>,
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
        if self.of.memory().clearing.end(self.job, self.is_done) {
            self.of.bells.settle.notify_one();
        }
    }
}
