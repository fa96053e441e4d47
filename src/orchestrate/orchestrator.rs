//! What the loops share, and the one way in which they change a job.

use std::{
    collections::{HashMap, HashSet},
    ops::Deref,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::Notify;

use super::{
    equipment::Equipment,
    live::Live,
    places::Places,
    shell_ports::{ShellPlace, Shells, show_shell},
};
use crate::{
    artifacts::ArtifactStore,
    config::{CapacitySettings, EmulationSettings, IsolationSettings, NetworkSettings, WatchSettings},
    records::{
        Code, Failure, JobId, LogLine, Moment, Run, ServerId, Verdict,
        run::{Refused, State, rest_after},
    },
    sandbox::Driver,
    store::{LogFeed, SharedStore, StoreError, StoredRun},
};

/// What carrying jobs out takes.
#[derive(Debug)]
pub struct Parts {
    /// Which server this is.
    pub id: ServerId,
    /// Records.
    pub store: SharedStore,
    /// Objects.
    pub artifacts: ArtifactStore,
    /// Where jobs run.
    pub places: Places,
    /// What sandboxes are made from.
    pub equipment: Arc<Equipment>,
    /// Where agents find this server's sockets.
    pub doors_dir: PathBuf,
    /// Ports of this host's loopback that sandboxes may reach.
    pub doors: Vec<u16>,
    /// Where the shells of jobs are.
    pub shell_place: ShellPlace,
    /// What keeps jobs apart.
    pub isolation: IsolationSettings,
    /// What jobs can reach.
    pub network: NetworkSettings,
    /// Addresses of what every job needs, as jobs see them.
    pub services: Vec<String>,
    /// Where agents find this server that cannot have its sockets.
    pub agent_url: Option<String>,
    /// How emulated jobs are carried out that do not say.
    pub emulation: EmulationSettings,
    /// What this host gives.
    pub capacity: CapacitySettings,
    /// When jobs are given up.
    pub watch: WatchSettings,
    /// Wakes those who follow a job.
    pub feed: Arc<LogFeed>,
}

/// Carries jobs out. Its loops are in the files beside this one.
#[derive(Debug)]
pub struct Orchestrator {
    parts: Parts,
    /// Wakes the loops.
    pub(super) wake: Wake,
    /// Ports that lead to sandboxes.
    pub(super) shells: Shells,
    state: Mutex<InMemory>,
    /// Held while a job is given its place.
    pub(super) placing: tokio::sync::Mutex<()>,
}

impl Deref for Orchestrator {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

/// One bell for each loop.
#[derive(Debug, Default)]
pub(super) struct Wake {
    pub(super) places: Notify,
    pub(super) launch: Notify,
    pub(super) watch: Notify,
    pub(super) commit: Notify,
    pub(super) settle: Notify,
    pub(super) shells: Notify,
}

/// What need not outlive the process: a new one begins with nothing and is right all the same.
#[derive(Debug, Default)]
pub(super) struct InMemory {
    /// What is known of jobs that run, by this process's own clock.
    pub(super) live: HashMap<JobId, Live>,
    /// Why jobs wait, as of the last look; in the order of the queue.
    pub(super) waiting: Vec<(JobId, String)>,
    /// Since when images are being made whose making is held up.
    pub(super) committing: HashMap<JobId, Instant>,
    /// Jobs whose sandboxes are being started by this process right now.
    pub(super) starting: HashSet<JobId>,
}

impl Orchestrator {
    /// Over these parts. Nothing happens until its loops [run](super::loops::run).
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            wake: Wake::default(),
            shells: Shells::default(),
            state: Mutex::default(),
            placing: tokio::sync::Mutex::default(),
        }
    }

    /// The remote build nodes that there are.
    pub(super) async fn nodes(&self) -> Result<Vec<String>, StoreError> {
        let nodes = self.store.nodes().await?;
        Ok(nodes.into_iter().map(|node| node.xname).collect())
    }

    /// What makes a job's sandbox.
    pub(super) fn driver_of(&self, run: &Run) -> Arc<dyn Driver> {
        self.places.driver(run.plan.place.as_deref())
    }

    /// Why a job waits, and its place in the queue, from 1.
    pub fn waiting(&self, job: JobId) -> Option<(usize, String)> {
        let state = self.state();
        let at = state.waiting.iter().position(|(id, _)| *id == job)?;
        Some((at + 1, state.waiting[at].1.clone()))
    }

    /// How far a job's current step is: done, and of how much.
    pub fn progress(&self, job: JobId) -> Option<(u64, u64)> {
        self.state().live.get(&job).and_then(Live::progress)
    }

    /// Looks soon whether something is to be cleared away.
    pub fn clear_away(&self) {
        self.wake.settle.notify_one();
    }

    /// Ends a job on somebody's wish. `None` when there is no such job.
    ///
    /// # Errors
    ///
    /// [`Ended::Already`] when it has ended; it stays as it is.
    pub async fn cancel(&self, job: JobId, why: &str) -> Result<Option<StoredRun>, Ended> {
        let failure = Failure::new(Code::Cancelled, why);
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
                self.say(job, format!("error: {why}")).await;
                Ok(Some(stored))
            }
        }
    }

    /// Says what is to become of what was done in a job's shell. Its agent hears it with its next sign of life. `None` when
    /// there is no such job.
    ///
    /// # Errors
    ///
    /// [`Ended::Already`] when no shell is open; nothing changes.
    pub async fn judge(&self, job: JobId, verdict: Verdict) -> Result<Option<StoredRun>, Ended> {
        let judged = self.change(job, |run, _| run.judge(verdict)).await?;
        Ok(judged.transpose()?)
    }

    /// The one place that ends a job without an image: for good, or for another try if what failed was the place.
    /// `attempt` is the one that failed; a job that is past it is left alone.
    pub(super) async fn fail(&self, job: JobId, attempt: u32, failure: Failure) -> Result<(), StoreError> {
        let most = self.watch.attempts.max(1);
        let again = failure.code.is_of_the_place() && attempt < most;
        let rest = rest_after(attempt, self.watch.retry_pause.duration());
        let changed = self
            .change(job, |run, now| {
                if run.attempt != attempt {
                    return Err(Refused {
                        from: "in another try",
                        arrow: "fail",
                    });
                }
                if again && run.retry(now.plus(rest)).is_ok() {
                    return Ok(());
                }
                run.fail(failure.clone(), now)
            })
            .await?;
        let Some(Ok(stored)) = changed else { return Ok(()) };
        if stored.run.state.is_final() {
            tracing::info!(
                code = failure.code.name(),
                hint = failure.hint,
                "the job has failed: {failure}"
            );
            self.say(job, format!("error: {failure}")).await;
        } else {
            tracing::warn!(
                attempt,
                code = failure.code.name(),
                hint = failure.hint,
                "the job is tried again: {failure}"
            );
            let text = format!(
                "try {attempt} of {most} ended: {failure}; the job is tried again in {} s",
                rest.as_secs()
            );
            self.say(job, text).await;
        }
        Ok(())
    }

    /// Changes a job by an arrow, again if somebody else changed it meanwhile. `None` when it is not there any more;
    /// what the arrow refuses changes nothing.
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
            if run.state == State::Success {
                job.resultant_image_id = Some(run.image);
            }
            match self.store.replace_run(&job, &run, revision).await {
                Ok(()) => {
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

    /// Rings the bells of those who have something to do now.
    fn changed(&self, before: &Run, after: &Run, job: JobId) {
        self.feed.wake(job);
        if before.has_open_shell() != after.has_open_shell() {
            self.wake.shells.notify_one();
        }
        if before.state == after.state {
            return;
        }
        match &after.state {
            State::Queued => {
                self.wake.settle.notify_one();
                self.wake.launch.notify_one();
            }
            State::Committing => self.wake.commit.notify_one(),
            State::Success | State::Failed(_) => {
                self.state().live.remove(&job);
                self.wake.settle.notify_one();
            }
            State::Launching | State::Running => {}
        }
    }

    /// Adds a line of the server's own to a job's log. That it cannot be kept is no reason to do anything else otherwise.
    pub(super) async fn say(&self, job: JobId, text: String) {
        if let Err(error) = self.store.say(job, &[LogLine::of_server(text)], Moment::now()).await {
            tracing::warn!(job.id = %job, %error, "a line was not kept");
        }
        self.feed.wake(job);
    }

    pub(super) fn state(&self) -> MutexGuard<'_, InMemory> {
        // Nothing is left half-done between two of its lines.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a job cannot be ended on somebody's wish.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// It has ended, or is about to with its image.
    #[error(transparent)]
    Already(#[from] Refused),
    /// Nobody knows.
    #[error(transparent)]
    Store(#[from] StoreError),
}
