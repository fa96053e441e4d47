//! Changes the rows of jobs: the only way by which the service does so. It reads and writes rows of the store, adds lines to
//! logs, and wakes whatever has something to do then.

use std::sync::Arc;

use kiln_records::{
    Blame, Code, Failure, Image, JobId, LogLine, Moment, Run, Verdict, log,
    run::{Refused, State, TwinsFallback, rest_after},
};

use super::{
    agents::Refusal,
    bells::Bells,
    claim::Claim,
    live::LiveJobs,
    places::{Places, place_name},
    shell_ports::show_shell,
};
use crate::{
    config::WatchSettings,
    metrics,
    store::{Collection, LogFeed, SharedStore, Side, StoreError, StoredRun},
};

/// What to do about the work in a shell that was open when its job failed.
const WORK_IN_SHELL: &str = "what was changed in its shell may still be on its disk: `kiln jobs retry --from package` makes an image \
                             of it";

/// The jobs in the records.
#[derive(Debug)]
pub struct Jobs {
    pub(super) store: SharedStore,
    /// Wakes the readers that follow a job.
    pub(super) feed: Arc<LogFeed>,
    pub(super) bells: Arc<Bells>,
    pub(super) claim: Arc<Claim>,
    pub(super) live: Arc<LiveJobs>,
    pub(super) places: Arc<Places>,
    /// How often a job is tried.
    pub(super) limits: WatchSettings,
}

impl Jobs {
    /// Changes a job by an arrow, and retries if another task changed the job meanwhile. `None` when the job no longer
    /// exists; a refused arrow changes nothing.
    pub(super) async fn change(
        &self,
        job: JobId,
        arrow: impl Fn(&mut Run, Moment) -> Result<(), Refused>,
    ) -> Result<Option<Result<StoredRun, Refused>>, StoreError> {
        loop {
            let Some(StoredRun {
                mut job,
                mut run,
                revision,
                position,
            }) = self.store.get_run(job).await?
            else {
                return Ok(None);
            };
            let before = run.clone();
            if let Err(refused) = arrow(&mut run, Moment::now()) {
                return Ok(Some(Err(refused)));
            }
            if run == before {
                return Ok(Some(Ok(StoredRun {
                    job,
                    run,
                    revision,
                    position,
                })));
            }
            job.status = run.status(job.status);
            show_shell(&mut job, &run);
            if run.state == State::Launching {
                let place = place_name(&run);
                let is_node = self.places.is_node(place);
                job.remote_build_node = if is_node { place.to_owned() } else { String::new() };
            }
            if run.state == State::Success && run.plan.verifies.is_none() {
                job.resultant_image_id = Some(run.image);
            }
            match self.store.replace_run(&job, &run, revision).await {
                Ok(()) => {
                    metrics::job_changed(&job, &before, &run);
                    self.changed(&before, &run, job.id);
                    let revision = revision + 1;
                    return Ok(Some(Ok(StoredRun {
                        job,
                        run,
                        revision,
                        position,
                    })));
                }
                Err(StoreError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Rings the bells of the loops that have something to do now.
    fn changed(&self, before: &Run, after: &Run, job: JobId) {
        self.feed.wake(job);
        if before.has_open_shell() != after.has_open_shell() {
            self.bells.shells.notify_one();
        }
        if before.state == after.state {
            return;
        }
        match &after.state {
            State::Queued => {
                self.bells.settle.notify_one();
                self.bells.launch.notify_one();
            }
            State::Committing => self.bells.commit.notify_one(),
            State::Success | State::Failed(_) => {
                self.live.forget(job);
                self.bells.settle.notify_one();
            }
            State::Launching | State::Running => {}
        }
    }

    /// Adds a line of the server's own to a job's log. A line that cannot be stored changes nothing else.
    pub(super) async fn say(&self, job: JobId, text: String) {
        let line = LogLine::of_server(log::cut(text));
        if let Err(error) = self.store.say(job, &[line], Moment::now()).await {
            tracing::warn!(job.id = %job, %error, "a line was not kept");
        }
        self.feed.wake(job);
    }

    /// Makes the settle loop look soon for something to clear away.
    pub fn clear_away(&self) {
        self.bells.settle.notify_one();
    }

    /// Ends a job at a user's request, for this reason. `None` when there is no such job.
    ///
    /// # Errors
    ///
    /// [`Ended::Already`] when it has ended; it stays as it is.
    pub async fn cancel(&self, job: JobId, failure: Failure) -> Result<Option<StoredRun>, Ended> {
        let changed = self
            .change(job, |run, now| {
                if matches!(run.state, State::Committing) {
                    return Err(Refused {
                        from: "committing",
                        arrow: "be cancelled",
                    });
                }
                run.fail(failure.clone(), now)
            })
            .await?;
        match changed {
            None => Ok(None),
            Some(Err(refused)) => Err(Ended::Already(refused)),
            Some(Ok(stored)) => {
                self.say(job, format!("error: {failure}")).await;
                Ok(Some(stored))
            }
        }
    }

    /// Decides what happens to the changes made in a job's shell. The agent gets the decision in the answer to its next
    /// sign of life. `None` when there is no such job.
    ///
    /// # Errors
    ///
    /// [`Ended::Already`] when no shell is open; nothing changes.
    pub async fn judge(&self, job: JobId, verdict: Verdict) -> Result<Option<StoredRun>, Ended> {
        let judged = self.change(job, |run, _| run.judge(verdict)).await?;
        Ok(judged.transpose()?)
    }

    /// The only place that ends a job without an image: for good, or for another try if the place was what failed, or
    /// native twins may have been. `attempt` is the one that failed; a job that is past it is left alone.
    pub(super) async fn fail(&self, job: JobId, attempt: u32, failure: Failure) -> Result<(), StoreError> {
        self.fail_if(job, attempt, failure, |_| true).await
    }

    /// As [`Self::fail`], if no other server has taken the job over meanwhile.
    pub(super) async fn fail_own(&self, job: JobId, attempt: u32, failure: Failure) -> Result<(), StoreError> {
        self.fail_if(job, attempt, failure, |run| self.claim.carries_out(run))
            .await
    }

    async fn fail_if(
        &self,
        job: JobId,
        attempt: u32,
        failure: Failure,
        is_ours: impl Fn(&Run) -> bool,
    ) -> Result<(), StoreError> {
        // Its words may be those of a recipe.
        let failure = failure.shown();
        let blame = failure.code.blame().map(|blame| match blame {
            Blame::Place | Blame::Storage => (blame, self.limits.attempts),
            Blame::Killed => (blame, self.limits.interruptions),
        });
        let rest = rest_after(attempt, self.limits.retry_pause.duration());
        let changed = self
            .change(job, |run, now| {
                if run.attempt != attempt || !is_ours(run) {
                    return Err(Refused {
                        from: "in another try",
                        arrow: "fail",
                    });
                }
                if let Some((blame, most)) = blame
                    && run.retry(blame, most, now.plus(rest)).is_ok()
                {
                    return Ok(());
                }
                if run.fall_back(&failure).is_ok() {
                    return Ok(());
                }
                let mut failure = failure.clone();
                if run.has_open_shell() && run.plan.runner.is_none() {
                    let hints = failure.hint.take().into_iter().chain([WORK_IN_SHELL.to_owned()]);
                    failure.hint = Some(hints.collect::<Vec<_>>().join("; "));
                }
                run.fail(failure, now)
            })
            .await?;
        let Some(Ok(StoredRun { run, .. })) = changed else {
            return Ok(());
        };
        if run.state.is_final() {
            tracing::info!(
                code = failure.code.name(),
                hint = failure.hint,
                "the job has failed: {failure}"
            );
            if let Some(verified) = run.plan.verifies.filter(|_| failure.code == Code::TwinsDiffer) {
                tracing::warn!("native twins have changed the image of job {verified}: {failure}");
            }
            if let Some(TwinsFallback { attempt, failure }) = &run.twins_fallback {
                let text = format!("try {attempt}, with native twins, failed too: {failure}");
                self.say(job, text).await;
            }
            self.say(job, format!("error: {failure}")).await;
            return Ok(());
        }
        tracing::warn!(
            attempt,
            code = failure.code.name(),
            hint = failure.hint,
            "the job is tried again: {failure}"
        );
        let how = match blame {
            Some((blame, most)) => {
                let failed = run.failed.by(blame);
                format!("in {} s ({blame}: {failed} of {most} tries)", rest.as_secs())
            }
            None => "without native twins, which may have been the cause".to_owned(),
        };
        let text = format!("try {attempt} ended: {failure}; the job is tried again {how}");
        self.say(job, text).await;
        Ok(())
    }

    /// Changes the job of an agent's call by an arrow; a refused arrow means that the job is over for this agent.
    pub(super) async fn change_for(
        &self,
        stored: &StoredRun,
        arrow: impl Fn(&mut Run, Moment) -> Result<(), Refused>,
    ) -> Result<StoredRun, Refusal> {
        let attempt = stored.run.attempt;
        let changed = self
            .change(stored.job.id, |run, now| {
                if run.attempt != attempt {
                    return Err(Refused {
                        from: "in another try",
                        arrow: "hear this agent",
                    });
                }
                arrow(run, now)
            })
            .await?;
        changed.ok_or(Refusal::Unknown)?.map_err(|_| Refusal::Over)
    }

    /// Whether an image has a record, even a deleted one.
    pub(super) async fn has_record(&self, run: &Run) -> Result<bool, StoreError> {
        for side in [Side::Live, Side::Deleted] {
            if Collection::<Image>::get(&*self.store, side, run.image).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Why a job cannot be ended, or judged, at a user's request.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// It has ended, or is about to end with its image.
    #[error(transparent)]
    Already(#[from] Refused),
    /// The store did not answer, so the outcome is unknown.
    #[error(transparent)]
    Store(#[from] StoreError),
}
