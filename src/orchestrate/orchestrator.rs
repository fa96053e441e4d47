//! Holds what the loops share, and the single way in which they change a job. It reads and writes rows of the store.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Deref,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use kiln_records::{
    Blame, CacheDepth, CheckLevels, Code, Failure, JobId, LogLine, Moment, Run, ServerId, Verdict, log,
    run::{Needs, Refused, State, TwinsFallback, rest_after},
};
use tokio::sync::Notify;

use super::{
    agent_address::AgentAddress,
    answers::Troubles,
    census::Census,
    clearing::Clearing,
    equipment::Equipment,
    job_doors::JobDoors,
    lease::Leases,
    live::Live,
    peers::Peers,
    places::{Places, place_name},
    runner::Runners,
    shell_ports::{ShellPlace, Shells, show_shell},
    waits::{Starved, Wait},
};
use crate::{
    artifacts::ArtifactStore,
    config::{CapacitySettings, EmulationSettings, IsolationSettings, NetworkSettings, WatchSettings},
    metrics::{self, Answer, gauges},
    origin::Signer,
    proxy::Gate,
    sandbox::Driver,
    store::{LogFeed, SharedStore, StoreError, StoredRun},
    traces::Traces,
    webhooks::Webhooks,
};

/// What to do about the work in a shell that was open when its job failed.
const WORK_IN_SHELL: &str = "what was changed in its shell may still be on its disk: `kiln jobs retry --from package` makes an image \
                             of it";

/// The parts needed to carry jobs out.
#[derive(Debug)]
pub struct Parts {
    /// The id of this process's data directory.
    pub id: ServerId,
    /// This process, if it carries out jobs of its own only; `None` on a server.
    pub runner: Option<ServerId>,
    /// The other processes that carry out jobs for the data directory.
    pub runners: Runners,
    /// Whether sandboxes on this host's kernel share its network, as programs that a user starts do.
    pub host_network: bool,
    /// Records.
    pub store: SharedStore,
    /// Objects.
    pub artifacts: ArtifactStore,
    /// The places where jobs run.
    pub places: Places,
    /// The agents and toolboxes that sandboxes are made from.
    pub equipment: Arc<Equipment>,
    /// The sockets by which sandboxes reach this process.
    pub doors: JobDoors,
    /// The address and ports of jobs' shells.
    pub shell_place: ShellPlace,
    /// The settings that keep jobs apart.
    pub isolation: IsolationSettings,
    /// The settings for what jobs can reach.
    pub network: NetworkSettings,
    /// The way to the site's HTTP proxy, if there is one.
    pub gate: Option<Arc<Gate>>,
    /// Addresses of the services that every job needs, as jobs see them.
    pub services: Vec<String>,
    /// The address at which agents find this server if they cannot have its sockets.
    pub agent_address: Option<AgentAddress>,
    /// How this server and others on the same records reach each other, if they can.
    pub peers: Option<Peers>,
    /// How emulated jobs are carried out when they do not say.
    pub emulation: EmulationSettings,
    /// The levels of the checks of a finished root that this site chose.
    pub checks: CheckLevels,
    /// How much of earlier jobs a job may reuse that does not say.
    pub cache: CacheDepth,
    /// The resources that this host gives to jobs.
    pub capacity: CapacitySettings,
    /// Signs the provenance of images, if the site has a key for it.
    pub signer: Option<Arc<Signer>>,
    /// The name of this builder in the provenance of its images: a URI.
    pub builder: String,
    /// When jobs are given up.
    pub watch: WatchSettings,
    /// The file by which the sandboxes of a server on this host know that it holds its lease; `None` if no other server
    /// can take their jobs.
    pub lease_file: Option<PathBuf>,
    /// Sends traces of jobs, if there is a collector.
    pub traces: Option<Arc<Traces>>,
    /// Who is told how jobs end.
    pub webhooks: Arc<Webhooks>,
    /// Wakes the readers that follow a job.
    pub feed: Arc<LogFeed>,
}

/// Carries jobs out. Its loops are in the neighbouring files.
#[derive(Debug)]
pub struct Orchestrator {
    parts: Parts,
    /// Wakes the loops.
    pub(super) wake: Wake,
    /// Ports that lead to sandboxes.
    pub(super) shells: Shells,
    /// Which of the processes on this database are alive.
    pub(super) leases: Leases,
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
    pub(super) life: Notify,
    pub(super) places: Notify,
    pub(super) launch: Notify,
    pub(super) watch: Notify,
    pub(super) commit: Notify,
    pub(super) settle: Notify,
    pub(super) sweep: Notify,
    pub(super) shells: Notify,
}

/// State that need not outlive the process: a new process starts with none of it and is right all the same.
#[derive(Debug, Default)]
pub(super) struct InMemory {
    /// This process's knowledge of running jobs, by its own clock.
    pub(super) live: HashMap<JobId, Live>,
    /// When the jobs that are under way were last watched.
    pub(super) watched: Option<Instant>,
    /// The number of open jobs that this process cannot read.
    pub(super) unread: usize,
    /// When logs without jobs were last searched for.
    pub(super) logs_searched: Option<Instant>,
    /// Why jobs wait, as of the last pass; in the order of the queue.
    pub(super) waiting: Vec<(JobId, Wait)>,
    /// The jobs under way, as of the last pass of the launch loop.
    pub(super) census: Option<Census>,
    /// The sandboxes found at each place by the last sweep.
    pub(super) sandboxes: BTreeMap<String, u64>,
    /// The time since which the making of an image has been held up.
    pub(super) committing: HashMap<JobId, Instant>,
    /// Jobs whose objects were compared with their digests, while their images are being made.
    pub(super) verified: HashSet<JobId>,
    /// The room that a boot check takes on this host.
    pub(super) boot: Option<Needs>,
    /// Places without room although no job is there.
    pub(super) starved: Starved,
    /// Jobs whose sandboxes this process is starting right now.
    pub(super) starting: HashSet<JobId>,
    /// Jobs after which this process is clearing away, or could not.
    pub(super) clearing: Clearing,
    /// The places that do not answer.
    pub(super) troubles: Troubles,
}

impl Orchestrator {
    /// An orchestrator over these parts. Nothing happens until its loops [run](super::loops::run).
    pub fn new(parts: Parts) -> Self {
        Self {
            parts,
            wake: Wake::default(),
            shells: Shells::default(),
            leases: Leases::default(),
            state: Mutex::default(),
            placing: tokio::sync::Mutex::default(),
        }
    }

    /// The names of all remote build nodes.
    pub(super) async fn nodes(&self) -> Result<Vec<String>, StoreError> {
        let nodes = self.store.nodes().await?;
        Ok(nodes.into_iter().map(|node| node.xname).collect())
    }

    /// Shows other processes that this one is alive, so that they leave its jobs alone.
    pub(super) async fn show_life(&self) -> Result<(), StoreError> {
        let id = self.runner.unwrap_or(self.id);
        self.store.show_life(id, self.own_offers().as_deref()).await
    }

    /// Whether this process carries out a job that has been launched.
    pub(super) fn carries_out(&self, run: &Run) -> bool {
        run.owner == Some(self.id) && run.plan.runner == self.runner
    }

    /// The CPUs of a job: all that its place has, or fewer if the settings say so. Its sandbox is limited to them, and
    /// its build counts on them.
    pub(super) async fn cpus_of(&self, run: &Run) -> Result<u32, Failure> {
        let there = match self.places.cpus(run.plan.place.as_deref()) {
            Some(cpus) => cpus,
            None => self.places.measure(place_name(run)).await?.cpus,
        };
        let most = self.capacity.cpus_per_job.unwrap_or(there);
        Ok(most.min(there).max(1))
    }

    /// The driver that makes a job's sandbox.
    pub(super) fn driver_of(&self, run: &Run) -> Arc<dyn Driver> {
        self.places.driver(run.plan.place.as_deref())
    }

    /// Why a job waits, and its place in the queue, from 1.
    pub fn waiting(&self, job: JobId) -> Option<(usize, String)> {
        let state = self.state();
        let at = state.waiting.iter().position(|(id, _)| *id == job)?;
        Some((at + 1, state.waiting[at].1.why.clone()))
    }

    /// What each job of the queue waits for, with its position from 1.
    pub fn queue(&self) -> HashMap<JobId, (usize, Wait)> {
        let state = self.state();
        let numbered = state.waiting.iter().zip(1..);
        numbered
            .map(|((job, wait), position)| (*job, (position, wait.clone())))
            .collect()
    }

    /// What the sandbox of a job waits for that has its place and has not started.
    pub fn held_up(&self, job: JobId) -> Option<String> {
        self.state().live.get(&job).and_then(Live::waits).map(str::to_owned)
    }

    /// How far a job's current step is: the amount done, and the total.
    pub fn progress(&self, job: JobId) -> Option<(u64, u64)> {
        self.state().live.get(&job).and_then(Live::progress)
    }

    /// Writes into an answer what this process knows of jobs and places. It looks at nothing for that.
    pub fn write_metrics(&self, answer: &mut Answer) {
        {
            let state = self.state();
            if let Some(census) = &state.census {
                census.write(answer);
            }
            let running = state.live.iter().filter(|(_, live)| live.waits().is_none());
            let oldest = running.map(|(_, live)| live.heard.elapsed()).max();
            answer.set(&gauges::HEARTBEAT_AGE, [], oldest.unwrap_or_default().as_secs_f64());
            for (place, count) in &state.sandboxes {
                answer.add_at(&gauges::PLACE_SANDBOXES, place, *count);
            }
        }
        self.places.write_metrics(answer);
    }

    /// Makes the settle loop look soon for something to clear away.
    pub fn clear_away(&self) {
        self.wake.settle.notify_one();
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
        self.fail_if(job, attempt, failure, |run| self.carries_out(run)).await
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
            Blame::Place | Blame::Storage => (blame, self.watch.attempts),
            Blame::Killed => (blame, self.watch.interruptions),
        });
        let rest = rest_after(attempt, self.watch.retry_pause.duration());
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

    /// Adds a line of the server's own to a job's log. A line that cannot be stored changes nothing else.
    pub(super) async fn say(&self, job: JobId, text: String) {
        let line = LogLine::of_server(log::cut(text));
        if let Err(error) = self.store.say(job, &[line], Moment::now()).await {
            tracing::warn!(job.id = %job, %error, "a line was not kept");
        }
        self.feed.wake(job);
    }

    pub(super) fn state(&self) -> MutexGuard<'_, InMemory> {
        // A panic while the lock is held leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
