//! The launch loop gives waiting jobs their place, and makes their sandboxes. It reads and writes rows of the store,
//! and runs sandboxes through their drivers.
//!
//! A job gets its place in the database before anything is made for it, so a burst of jobs cannot take more than there
//! is. A server that dies in between finds on its next pass what it had begun.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use kiln_records::{
    Blame, Code, Failure, Job, JobId, Moment, Run, ServerId,
    arch::Arch,
    protocol::{AgentFacts, ProxyFacts},
    run::{Kernel, LOCAL, Needs, Plan, Refused, State, Used},
};
use tracing::Instrument;

use super::{
    admit::{Limits, Room, Verdict, admit},
    answers::in_time,
    census::Census,
    job_span,
    orchestrator::Orchestrator,
    place::{Placement, Wish},
    places::{Decision, place_name},
    reach::{host_of, reach},
    token,
    waits::{Wait, WaitsFor},
};
use crate::{
    sandbox::{DiskLimit, Limits as SandboxLimits, Network, SandboxSpec, SandboxState, Scratch, doors::AGENT_SOCKET},
    store::{PlaceLock, StoreError, StoredRun},
};

/// The longest time for which other servers wait for this one to give its jobs room at a shared place.
const LONGEST_ADMISSION: Duration = Duration::from_mins(1);

/// How long a sandbox may take to appear after a process that is now gone asked for its start.
const ORPHANED_START: Duration = Duration::from_secs(2);

impl Orchestrator {
    /// Makes one pass over everything that waits or is being launched.
    ///
    /// # Errors
    ///
    /// When the store or the place does not answer; the next pass starts afresh.
    pub async fn launch_once(self: &std::sync::Arc<Self>) -> Result<(), Failure> {
        if !self.holds_lease() {
            return Ok(());
        }
        let open = self.store.open_runs().await?;
        for stored in &*open {
            if stored.run.state == State::Launching && self.carries_out(&stored.run) {
                self.start_soon(stored);
            }
        }
        let now = Moment::now();
        let (resting, ready): (Vec<_>, Vec<_>) = open
            .iter()
            .filter(|stored| stored.run.state == State::Queued && stored.run.plan.runner == self.runner)
            // The files that a job resumes from are on one host only.
            .filter(|stored| stored.run.resumes().is_none_or(|resume| resume.server == self.id))
            .partition(|stored| stored.run.rest(now).is_some());
        let (ready, held_back) = hold_back_verifications(ready, &open);
        // A resting job does not block the queue.
        let resting = resting.into_iter().filter_map(|stored| {
            let seconds = stored.run.rest(now)?.as_secs() + 1;
            Some((
                stored.job.id,
                WaitsFor::Rest.because(format!("its last try failed; the next one starts in {seconds} s")),
            ))
        });
        let mut waiting = Vec::new();
        let mut queues: BTreeMap<String, Vec<_>> = BTreeMap::new();
        let mut taken: HashMap<JobId, Placement> = HashMap::new();
        for stored in ready {
            if let Some(host) = self.host_elsewhere(&stored.run.plan) {
                match self.instead_of(host, stored) {
                    Some((placement, run)) => {
                        let queue = queues.entry(placement.place.clone()).or_default();
                        queue.push((stored.job.id, self.takes(&run)));
                        taken.insert(stored.job.id, placement);
                    }
                    None => waiting.push((stored.job.id, self.turn_at(host))),
                }
                continue;
            }
            let at = match self.equipment.of(Arch::host()) {
                Err(lack) => Err(WaitsFor::Toolbox.because(lack.to_string())),
                Ok(_) => self.place_of(stored).instrument(job_span(stored.job.id)).await?,
            };
            match at {
                Ok(run) => {
                    // No run means that the job has just ended.
                    if let Some((place, run)) = run.and_then(|run| Some((run.plan.place.clone()?, run))) {
                        let queue = queues.entry(place).or_default();
                        queue.push((stored.job.id, self.takes(&run)));
                    }
                }
                Err(wait) => waiting.push((stored.job.id, wait)),
            }
        }
        for (place, queue) in queues {
            let is_shared = self.places.is_shared(&place);
            let Some(_room) = self.room_at(&place, is_shared).await? else {
                let wait = WaitsFor::Busy.because("another kiln process is giving its jobs room there");
                waiting.extend(queue.iter().map(|(job, _)| (*job, wait.clone())));
                continue;
            };
            // Another process may have taken room since.
            let open = self.store.open_runs().await?;
            if is_shared && !open.unread.is_empty() {
                let wait = WaitsFor::Version
                    .because("jobs of a server of another version are open, and the room they take there is not known");
                waiting.extend(queue.iter().map(|(job, _)| (*job, wait.clone())));
                continue;
            }
            let held = self.held_at(&place, is_shared, &open);
            match self.admit_at(&place, &queue, &held).await {
                Ok(mut verdicts) => {
                    self.end_starved(&place, &mut verdicts, &open);
                    for (job, verdict) in verdicts {
                        let span = job_span(job);
                        let waits = match taken.get(&job) {
                            Some(placement) => self.take(job, placement, verdict, &open).instrument(span).await?,
                            None => self.carry_out(job, verdict, &open).instrument(span).await?,
                        };
                        waiting.extend(waits);
                    }
                }
                Err(failure) => {
                    let wait = WaitsFor::PlaceFailed.because(failure.to_string());
                    waiting.extend(queue.iter().map(|(job, _)| (*job, wait.clone())));
                }
            }
        }
        waiting.extend(resting);
        waiting.extend(held_back);
        let census = Census::of(&open, &waiting);
        let mut state = self.state();
        state.census = Some(census);
        state.waiting = waiting;
        Ok(())
    }

    /// Gives up the first job at a place if it has waited too long for what no job holds there: only other programs can
    /// free it, and they may never do so.
    fn end_starved(&self, place: &str, verdicts: &mut [(JobId, Verdict)], open: &[StoredRun]) {
        let is_held = open
            .iter()
            .any(|stored| stored.run.holds_place() && stored.run.plan.place.as_deref() == Some(place));
        let mut waiting = verdicts.iter_mut().filter_map(|(job, verdict)| match verdict {
            Verdict::Wait(wait) if wait.waits_for.is_shared_with_others() => Some((*job, wait.why.clone(), verdict)),
            _ => None,
        });
        let first = waiting.next().filter(|_| !is_held);
        let job = first.as_ref().map(|(job, ..)| *job);
        let waited = self.state().starved.waits(place, job, Instant::now());
        if let Some((_, why, verdict)) = first
            && waited >= self.capacity.longest_wait.duration()
        {
            *verdict = Verdict::Never(format!(
                "{why}, and it waited {} s for other programs to free it: no job of Kiln holds any",
                waited.as_secs()
            ));
        }
    }

    /// What is held of a place.
    fn held_at(&self, place: &str, is_shared: bool, open: &[StoredRun]) -> Vec<(Needs, Used)> {
        let mut held: Vec<_> = open
            .iter()
            // Other processes of this data directory use the same places, and other servers those that are shared.
            .filter(|stored| is_shared || stored.run.owner == Some(self.id))
            .filter(|stored| stored.run.holds_place() && stored.run.plan.place.as_deref() == Some(place))
            .map(|stored| (self.takes(&stored.run), self.used(stored)))
            .collect();
        if place == LOCAL {
            held.extend(self.state().boot.map(|needs| (needs, Used::default())));
        }
        held
    }

    /// Takes room of this host for a boot check, until the returned value is dropped. It takes no job's slot, so that a long
    /// queue does not keep it waiting.
    ///
    /// # Errors
    ///
    /// When the records or the host cannot be read.
    pub(super) async fn room_for_boot(self: &std::sync::Arc<Self>, needs: Needs) -> Result<RoomForBoot, Failure> {
        let Some(_room) = self.room_at(LOCAL, false).await? else {
            return Ok(RoomForBoot::Later);
        };
        let open = self.store.open_runs().await?;
        let held = self.held_at(LOCAL, false, &open);
        let (mut room, limits) = self.room_beside(LOCAL, &held).await?;
        room.jobs = 1;
        match admit(&[(JobId::new(), needs)], room, limits).pop() {
            Some((_, Verdict::Go)) => {
                self.state().boot = Some(needs);
                Ok(RoomForBoot::Here(BootRoom(self.clone())))
            }
            Some((_, Verdict::Never(why))) => Ok(RoomForBoot::Never(why)),
            Some((_, Verdict::Wait(_))) | None => Ok(RoomForBoot::Later),
        }
    }

    /// The other living server that has the place of a waiting job for itself.
    fn host_elsewhere(&self, plan: &Plan) -> Option<ServerId> {
        plan.host.filter(|host| *host != self.id && !self.leases.is_gone(*host))
    }

    /// A place of this server that is as good for a job as the one at `host` for which it waits: the job then runs where
    /// there is room first.
    fn instead_of(&self, host: ServerId, stored: &StoredRun) -> Option<(Placement, Run)> {
        let (plan, wish) = (&stored.run.plan, wish(&stored.job, &stored.run.plan));
        self.equipment.of(Arch::host()).ok()?;
        let placement = self.places.decide_here(wish, &self.isolation)?;
        let is_as_good = placement.how == plan.how && placement.driver.kernel() == plan.driver.kernel();
        let mut run = stored.run.clone();
        placement.note_in(&mut run).ok()?;
        (is_as_good && placement.host != Some(host)).then_some((placement, run))
    }

    /// Takes a job from another server if there is room for it here.
    async fn take(
        self: &std::sync::Arc<Self>,
        job: JobId,
        placement: &Placement,
        verdict: Verdict,
        open: &[StoredRun],
    ) -> Result<Option<(JobId, Wait)>, Failure> {
        let host = open
            .iter()
            .find(|stored| stored.job.id == job)
            .and_then(|stored| stored.run.plan.host);
        if verdict == Verdict::Go {
            let arrow = |run: &mut Run, now| {
                if run.plan.host != host {
                    return Err(Refused {
                        from: "placed anew",
                        arrow: "be taken",
                    });
                }
                placement.note_in(run)?;
                run.launch(self.id, now)
            };
            if let Some(Ok(stored)) = self.change(job, arrow).await? {
                self.start_soon(&stored);
            }
            return Ok(None);
        }
        Ok(host.map(|host| (job, self.turn_at(host))))
    }

    /// Excludes the other processes from giving jobs room at a place, until the returned value is dropped. `None` when another
    /// one does not let go in time.
    async fn room_at(&self, place: &str, is_shared: bool) -> Result<Option<RoomGuard>, Failure> {
        if is_shared {
            return Ok(self
                .store
                .lock_place(place, LONGEST_ADMISSION)
                .await?
                .map(|lock| RoomGuard::Shared { _lock: lock }));
        }
        if place == LOCAL {
            return Ok(self.runners.room().await?.map(|lock| RoomGuard::OfHost { _lock: lock }));
        }
        // An engine of this host, where a command seldom takes room.
        Ok(Some(RoomGuard::None))
    }

    /// A waiting job, with its place; the place is decided anew if there is none or it is unusable now. `Ok(None)`: the
    /// job has just ended, since no place will ever do. `Err`: why there is no place yet.
    async fn place_of(&self, stored: &StoredRun) -> Result<Result<Option<Run>, Wait>, Failure> {
        let (job, plan) = (stored.job.id, &stored.run.plan);
        if self.places.has(plan) && self.isolation.allows(plan.driver) {
            return Ok(Ok(Some(stored.run.clone())));
        }
        let _placing = self.placing.lock().await;
        Ok(match self.decide(&stored.job, plan).await? {
            Decision::Placed(placement) => {
                let placed = self.change(job, |run, _| placement.note_in(run)).await?;
                match placement.host {
                    Some(host) if host != self.id => Err(self.turn_at(host)),
                    _ => Ok(placed.and_then(Result::ok).map(|placed| placed.run)),
                }
            }
            Decision::Later(reason) => Err(WaitsFor::UnknownPlaces.because(reason)),
            // It had a place, which may come back.
            Decision::Refused(failure) if plan.place.is_some() || stored.run.attempt > 1 => {
                Err(WaitsFor::NoPlace.because(failure.detail))
            }
            Decision::Refused(failure) => {
                self.fail(job, stored.run.attempt, failure).await?;
                Ok(None)
            }
        })
    }

    /// Why a job waits that another server launches.
    fn turn_at(&self, host: ServerId) -> Wait {
        let name = self.places.host_of(host).unwrap_or_else(|| host.to_string());
        WaitsFor::Elsewhere.because(format!(
            "it waits for its turn at {name}, whose server says what it waits for"
        ))
    }

    /// Where a job would run now.
    pub(super) async fn decide(&self, job: &Job, plan: &Plan) -> Result<Decision, StoreError> {
        let wish = wish(job, plan);
        let open = self.store.open_runs().await?;
        let jobs_at = |name: &str, host: Option<ServerId>| {
            let there = open.iter().filter(|stored| {
                let plan = &stored.run.plan;
                plan.place.as_deref() == Some(name) && (plan.host == host || plan.host.is_none())
            });
            u32::try_from(there.count()).unwrap_or(u32::MAX)
        };
        let is_command = self.runner.is_some();
        let mut decision = self.places.decide(wish, &self.isolation, is_command, jobs_at);
        if matches!(decision, Decision::Refused(_)) && self.places.misses(&self.nodes().await?) {
            decision =
                Decision::Later("a remote build node was added, and it is being found out what it offers".to_owned());
        }
        if matches!(decision, Decision::Later(_)) {
            self.wake.places.notify_one();
        }
        Ok(decision)
    }

    /// Which of the jobs that wait at a place have room there, beside those that already hold part of it.
    async fn admit_at(
        &self,
        place: &str,
        queue: &[(JobId, Needs)],
        held: &[(Needs, Used)],
    ) -> Result<Vec<(JobId, Verdict)>, Failure> {
        let (room, limits) = self.room_beside(place, held).await?;
        Ok(admit(queue, room, limits))
    }

    /// The room at a place beside what is held of it, and the most that there could be.
    async fn room_beside(&self, place: &str, held: &[(Needs, Used)]) -> Result<(Room, Limits), Failure> {
        let capacity = in_time(place, self.places.measure(place)).await?;
        let mut settings = self.capacity.clone();
        if place != LOCAL {
            // These settings are for this host only.
            (settings.jobs, settings.memory) = (None, None);
        }
        let limits = Limits::of(&capacity, &settings);
        Ok((Room::beside(held, limits, &capacity, &settings), limits))
    }

    /// Carries out the decision on a waiting job. Returns the reason if it still waits.
    async fn carry_out(
        self: &std::sync::Arc<Self>,
        job: JobId,
        verdict: Verdict,
        open: &[StoredRun],
    ) -> Result<Option<(JobId, Wait)>, Failure> {
        match verdict {
            Verdict::Go => {
                let launched = self.change(job, |run, now| run.launch(self.id, now)).await?;
                if let Some(Ok(stored)) = launched {
                    self.start_soon(&stored);
                }
            }
            Verdict::Wait(wait) => return Ok(Some((job, wait))),
            Verdict::Never(reason) => {
                let failure = Failure::new(Code::NoCapacity, reason).hint(
                    "ask for less (`build_env_size`, `job_mem_size`, `capacity.first_disk`), or give this host more",
                );
                self.fail(job, attempt_of(open, job), failure).await?;
            }
        }
        Ok(None)
    }

    /// Whether a job reaches what programs of this host reach: those of the user of a command.
    pub(super) fn shares_network(&self, plan: &Plan) -> bool {
        self.host_network && plan.driver.kernel() == Kernel::Shared && plan.place.as_deref() == Some(LOCAL)
    }

    /// The room that a job takes at its place: its own needs, plus those of its kind of sandbox.
    fn takes(&self, run: &Run) -> Needs {
        let beside = self.driver_of(run).memory_beside(run.plan.driver.kernel());
        Needs {
            memory: run.plan.needs.memory + beside,
            ..run.plan.needs
        }
    }

    /// A job's current usage.
    fn used(&self, stored: &StoredRun) -> Used {
        let live = self.state().live.get(&stored.job.id).map(|live| live.used);
        live.or(stored.run.used).unwrap_or_default()
    }

    /// Starts a job's sandbox in the background, unless this process is already doing so.
    fn start_soon(self: &std::sync::Arc<Self>, stored: &StoredRun) {
        let (job, attempt) = (stored.job.id, stored.run.attempt);
        if !self.state().starting.insert(job) {
            return;
        }
        let this = self.clone();
        let (place, kernel) = (place_name(&stored.run).to_owned(), stored.run.plan.driver.kernel());
        let start = async move {
            let done = this.start(job, attempt).await;
            let done = match done {
                Ok(()) => Ok(()),
                Err(failure) => {
                    if failure.code.blame() == Some(Blame::Place) {
                        // Before the next job goes there, it is tried again.
                        this.places.doubt(&place, kernel);
                        this.wake.places.notify_one();
                    }
                    this.fail_own(job, attempt, failure).await
                }
            };
            if let Err(error) = done {
                tracing::warn!(%error, "a sandbox's start is not recorded");
            }
            this.state().starting.remove(&job);
        };
        tokio::spawn(start.instrument(job_span(job)));
    }

    /// Starts the sandbox of a try that is being launched. Does nothing when the sandbox already exists.
    async fn start(&self, job: JobId, attempt: u32) -> Result<(), Failure> {
        // Read the row now that no other task here starts this job: the loop's copy may be older than the last start.
        let stored = match self.store.get_run(job).await? {
            Some(stored)
                if stored.run.state == State::Launching
                    && stored.run.attempt == attempt
                    && self.carries_out(&stored.run) =>
            {
                stored
            }
            _ => return Ok(()),
        };
        let driver = self.driver_of(&stored.run);
        if Box::pin(self.takes_earlier_image(&stored, &*driver)).await? {
            return Ok(());
        }
        let run = stored.run;
        match driver.look(job).await? {
            // It belongs to this try: an earlier one would have been destroyed below, before its successor.
            SandboxState::Running | SandboxState::Waiting { .. } if run.token.is_some() => return Ok(()),
            SandboxState::Absent => {
                // Another process may have started it: one that was killed a moment ago, whose sandbox is still on its
                // way.
                if run.token.is_some() {
                    tokio::time::sleep(ORPHANED_START).await;
                    if driver.look(job).await? != SandboxState::Absent {
                        return Ok(());
                    }
                }
            }
            SandboxState::Running | SandboxState::Waiting { .. } | SandboxState::Ended(_) if run.token.is_none() => {
                driver.destroy(job, Scratch::Remove).await?;
            }
            // The watch loop reports how it ended.
            SandboxState::Running | SandboxState::Waiting { .. } | SandboxState::Ended(_) => return Ok(()),
        }
        let (agent, toolbox) = self.equipment.of(driver.arch().await?)?;
        let (secret, digest) = token::fresh();
        let noted = self
            .change(job, |run, _| {
                if run.state != State::Launching || run.attempt != attempt || !self.carries_out(run) {
                    return Err(Refused {
                        from: run.state.name(),
                        arrow: "get a token",
                    });
                }
                run.token = Some(digest.clone());
                run.toolbox_sha256 = Some(toolbox.facts.sha256.clone());
                Ok(())
            })
            .await?;
        let Some(Ok(stored)) = noted else { return Ok(()) };
        let plan = &stored.run.plan;
        let (needs, kernel) = (plan.needs, plan.driver.kernel());
        let (network, doors, proxy) = if self.shares_network(plan) {
            let variables = match &self.gate {
                Some(gate) => Some(gate.variables_here().await?),
                None => None,
            };
            let proxy = variables.map(|variables| ProxyFacts { variables, port: None });
            (Network::Host, Vec::new(), proxy)
        } else {
            let mut services = self.services.clone();
            if plan.place.as_deref() != Some(LOCAL) {
                // Here the agent reaches its server by a socket.
                services.extend(self.agent_address.as_ref().map(|address| address.url.clone()));
            }
            let reach = reach(&self.network, &services, self.gate.as_deref()).await?;
            let proxy = self.gate.as_deref().map(|gate| {
                let port = proxy_port(self.doors.ports());
                let direct: Vec<_> = services.iter().filter_map(|url| host_of(url)).collect();
                let url = format!("http://127.0.0.1:{port}");
                ProxyFacts {
                    variables: gate.variables(&url, &direct),
                    port: Some(port),
                }
            });
            (Network::Isolated(reach), self.doors.ports().to_vec(), proxy)
        };
        let server_ca_bundle = match &self.agent_address {
            Some(address) => address.authorities()?,
            None => None,
        };
        let spec = SandboxSpec {
            job,
            toolbox,
            agent,
            limits: SandboxLimits {
                memory: Some(needs.memory_limit),
                cpus: Some(self.cpus_of(&stored.run).await?),
                pids: self.capacity.processes_per_job,
                disk: Some(DiskLimit {
                    bytes: needs.disk_limit,
                    inodes: u64::from(self.capacity.files_per_job),
                }),
            },
            kernel,
            network,
            doors_dir: self.doors.open(job)?,
            facts: AgentFacts {
                gateway: None,
                ca_bundle: None,
                server: format!("unix:/run/kiln/{AGENT_SOCKET}"),
                job,
                token: secret,
                doors,
                proxy: proxy.map(Box::new),
            },
            server_url: self.agent_address.as_ref().map(|address| address.url.clone()),
            server_ca_bundle,
            in_directory: plan.keep,
            lease: self.lease(),
            scratch_from: stored.run.resumes().map(|resume| resume.job),
        };
        match driver.start(&spec).await {
            // A process that was killed meanwhile had begun it, or an earlier sandbox is not entirely gone. Only the
            // agent of this start knows the job's token, so the other sandbox is of no use.
            Err(failure) if failure.code == Code::SandboxExists => {
                // Unless another server has taken the job: then that one's agent knows the token.
                let now = self.store.get_run(job).await?;
                if now.is_none_or(|now| now.run.token.as_ref() != Some(&digest)) {
                    return Ok(());
                }
                tracing::info!("replacing a sandbox that another process began");
                driver.destroy(job, Scratch::Remove).await?;
                driver.start(&spec).await?;
            }
            started => started?,
        }
        self.say(job, format!("try {}: {}", stored.run.attempt, stored.run.plan.why))
            .await;
        for passed in &stored.run.plan.passed_over {
            let driver = passed.driver.name();
            let text = format!("warning: passed over {driver} at {}: {}", passed.place, passed.why);
            self.say(job, text).await;
        }
        self.wake.watch.notify_one();
        Ok(())
    }
}

/// The port of a sandbox's loopback for the way to the proxy: no door has it.
fn proxy_port(doors: &[u16]) -> u16 {
    let usual = 3128;
    (usual..=u16::MAX).find(|port| !doors.contains(port)).unwrap_or(usual)
}

fn wish(job: &Job, plan: &Plan) -> Wish {
    Wish {
        arch: job.arch,
        own_kernel: plan.own_kernel,
    }
}

/// The answer to a boot check that asks for room.
pub(super) enum RoomForBoot {
    /// There is room, which is taken.
    Here(BootRoom),
    /// There is none yet.
    Later,
    /// There will never be room, for this reason.
    Never(String),
}

/// The room that a boot check has taken.
pub(super) struct BootRoom(std::sync::Arc<Orchestrator>);

impl Drop for BootRoom {
    fn drop(&mut self) {
        self.0.state().boot = None;
        self.0.wake.launch.notify_one();
    }
}

/// Held while jobs are given room at a place.
enum RoomGuard {
    OfHost { _lock: fs_err::File },
    Shared { _lock: PlaceLock },
    None,
}

/// Verifications take the capacity that is left: one at a time, when no other job waits. Returns the jobs that may go on,
/// and the others, with the reason.
fn hold_back_verifications<'a>(
    ready: Vec<&'a StoredRun>,
    open: &[StoredRun],
) -> (Vec<&'a StoredRun>, Vec<(JobId, Wait)>) {
    let verifies = |stored: &StoredRun| stored.run.plan.verifies.is_some();
    let others_wait = open
        .iter()
        .any(|stored| stored.run.state == State::Queued && !verifies(stored));
    let mut is_busy = open.iter().any(|stored| verifies(stored) && stored.run.holds_place());
    let mut held_back = Vec::new();
    let goes_on = |stored: &&StoredRun| {
        if !verifies(stored) {
            return true;
        }
        let is_next = !others_wait && !is_busy;
        is_busy = true;
        if !is_next {
            let why = "it verifies native twins, when no other job waits and one at a time";
            held_back.push((stored.job.id, WaitsFor::Verification.because(why)));
        }
        is_next
    };
    (ready.into_iter().filter(goes_on).collect(), held_back)
}

fn attempt_of(open: &[StoredRun], job: JobId) -> u32 {
    let of = open.iter().find(|stored| stored.job.id == job);
    of.map_or(1, |stored| stored.run.attempt)
}

/// How long ago a try was launched, or was left by its user.
pub(super) fn since_launch(run: &Run) -> Duration {
    run.at_work_since().map_or(Duration::ZERO, since)
}

/// The time since that moment, by the time of day; zero when it is still to come.
pub(super) fn since(moment: Moment) -> Duration {
    let micros = Moment::now().micros().saturating_sub(moment.micros());
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
