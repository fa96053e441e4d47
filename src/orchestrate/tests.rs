//! Tests the loops with real rows and a real S3 service, and with a place that only remembers what it was told.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    Equipment, JobDoors, Parts, Peers, Places, ShellPlace,
    agents::{AgentCalls, Refusal},
    answers::ANSWER,
    intake::NewRun,
    orchestrator::Orchestrator,
    places::NodeDriver,
    runner::{Runner, Runners},
};
use kiln_records::{
    Code, Execs, Failure, Image, Job, JobId, JobStatus, JobType, Moment, PublicKeyId, ServerId, Step, TwinLevel,
    arch::Arch,
    protocol::{AgentFacts, Call, Event, EventBatch, Stream, What},
    run::{FailedAttempts, State},
};
use kiln_s3::EmbeddedS3;

use crate::{
    artifacts::{ArtifactStore, S3Settings},
    config::{
        CapacitySettings, ContainerSettings, EmulationSettings, IsolationSettings, NetworkSettings, ServerSettings,
        WatchSettings, WebhookSettings,
    },
    metrics::Answer,
    sandbox::{
        Capacity, Driver, DriverKind, Evidence, Kernel, Machine, SandboxSpec, SandboxState, Scratch, ShellWay, Usage,
        agents::Agents, toolbox::tests::toolbox,
    },
    settings::Period,
    store::{Allowance, Collection, SharedStore, Side, SqliteStore},
    webhooks::Webhooks,
};
use async_trait::async_trait;
use futures::future::join_all;

mod ask;
mod channels;
mod commit;
mod nodes;
mod places;
mod runners;
pub(super) mod s3_proxy;
mod sample;
mod servers;
mod sets;
mod warnings;

/// A place that keeps each sandbox's spec and state in memory.
#[derive(Debug)]
struct Place {
    /// `None` means that the place does not answer at all.
    arch: Option<Arch>,
    /// Whether all servers reach it.
    is_shared: bool,
    sandboxes: Mutex<BTreeMap<JobId, (SandboxSpec, SandboxState)>>,
    /// What every agent there says on its standard error.
    words: Mutex<Vec<String>>,
    /// Whether it cannot be known yet what machines it has.
    lacks_toolbox: AtomicBool,
    /// Whether it answers nothing about sandboxes for now.
    hangs: AtomicBool,
    /// Whether it takes longer to measure its resources than an answer may take.
    measures_slowly: AtomicBool,
    /// Whether its sandboxes do not get started for now.
    is_slow: AtomicBool,
    /// Whether its resources cannot be measured for now.
    unmeasured: AtomicBool,
    /// Whether it cannot be asked for now.
    away: AtomicBool,
    /// Whether it starts nothing, and finds that out when it is looked at.
    refuses: AtomicBool,
    /// The way that it makes to shells, and how often it was asked for one, by port.
    way: Mutex<Result<ShellWay, Failure>>,
    asked_for_way: Mutex<Vec<u16>>,
}

impl Place {
    fn new(arch: Option<Arch>) -> Arc<Self> {
        Self::shared(arch, false)
    }

    fn shared(arch: Option<Arch>, is_shared: bool) -> Arc<Self> {
        Arc::new(Self {
            arch,
            is_shared,
            sandboxes: Mutex::default(),
            words: Mutex::default(),
            lacks_toolbox: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            measures_slowly: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            unmeasured: AtomicBool::new(false),
            away: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            way: Mutex::new(Ok(ShellWay::Server)),
            asked_for_way: Mutex::default(),
        })
    }

    async fn answers(&self) {
        while self.hangs.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn refusal(&self) -> Result<(), Failure> {
        let refuses = self.refuses.load(Ordering::Relaxed);
        let failure = || Failure::new(Code::EngineRefused, "no such shim");
        if refuses { Err(failure()) } else { Ok(()) }
    }

    fn facts(&self, job: JobId) -> AgentFacts {
        self.sandboxes.lock().unwrap()[&job].0.facts.clone()
    }

    fn ends(&self, job: JobId) {
        let evidence = Evidence {
            exit_code: 137,
            oom_kills: 0,
            failure: None,
            warning: None,
            last_words: Vec::new(),
        };
        self.sandboxes.lock().unwrap().get_mut(&job).unwrap().1 = SandboxState::Ended(evidence);
    }
}

#[async_trait]
impl Driver for Place {
    async fn start(&self, sandbox: &SandboxSpec) -> Result<(), Failure> {
        while self.is_slow.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.refusal()?;
        let mut all = self.sandboxes.lock().unwrap();
        all.insert(sandbox.job, (sandbox.clone(), SandboxState::Running));
        Ok(())
    }

    async fn look(&self, job: JobId) -> Result<SandboxState, Failure> {
        self.answers().await;
        let all = self.sandboxes.lock().unwrap();
        Ok(all.get(&job).map_or(SandboxState::Absent, |(_, state)| state.clone()))
    }

    async fn last_words(&self, _: JobId) -> Result<Vec<String>, Failure> {
        Ok(self.words.lock().unwrap().clone())
    }

    async fn usage(&self, _: JobId) -> Result<Usage, Failure> {
        Ok(Usage::default())
    }

    async fn destroy(&self, job: JobId, _: Scratch) -> Result<(), Failure> {
        self.answers().await;
        self.sandboxes.lock().unwrap().remove(&job);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<(JobId, bool)>, Failure> {
        self.answers().await;
        Ok(self.sandboxes.lock().unwrap().keys().map(|job| (*job, false)).collect())
    }

    async fn capacity(&self) -> Result<Capacity, Failure> {
        self.answers().await;
        if self.measures_slowly.load(Ordering::Relaxed) {
            tokio::time::sleep(2 * ANSWER).await;
        }
        if self.unmeasured.load(Ordering::Relaxed) {
            return Err(Failure::new(Code::EngineGone, "no route to host"));
        }
        Ok(Capacity {
            cpus: 2,
            memory: 1 << 36,
            disk_free: 1 << 40,
            disk_total: 1 << 40,
            inodes_free: 1 << 30,
            inodes_total: 1 << 30,
        })
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn memory_beside(&self, kernel: Kernel) -> u64 {
        if kernel == Kernel::Own { 1 << 35 } else { 0 }
    }

    fn kind(&self, kernel: Kernel) -> DriverKind {
        match kernel {
            Kernel::Shared => DriverKind::Namespace,
            Kernel::Own => DriverKind::Microvm,
        }
    }

    async fn arch(&self) -> Result<Arch, Failure> {
        match self.arch {
            _ if self.away.load(Ordering::Relaxed) => Err(Failure::new(Code::EngineGone, "it does not answer")),
            Some(arch) => Ok(arch),
            None => std::future::pending().await,
        }
    }

    async fn shell_way(&self, _: JobId, port: u16) -> Result<ShellWay, Failure> {
        self.asked_for_way.lock().unwrap().push(port);
        self.way.lock().unwrap().clone()
    }

    async fn shared_kernel(&self) -> Result<(), Failure> {
        self.refusal()
    }

    async fn own_kernel(&self) -> Result<Machine, Failure> {
        if self.lacks_toolbox.load(Ordering::Relaxed) {
            return Err(Failure::new(Code::NotLookedAt, "the toolbox is not built yet"));
        }
        Ok(Machine {
            what: "a machine of the tests".to_owned(),
            accelerated: true,
        })
    }
}

/// A database and an S3 service, which servers share.
struct Site {
    store: SharedStore,
    artifacts: ArtifactStore,
    s3: EmbeddedS3,
    emulation: EmulationSettings,
    /// Where all servers say that they are to be reached.
    peer_url: Option<String>,
    dir: tempfile::TempDir,
}

/// A server, and the place where it makes sandboxes.
struct Server {
    orchestrator: Arc<Orchestrator>,
    place: Arc<Place>,
}

impl Site {
    async fn new() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let s3 = EmbeddedS3::start(&dir.path().join("s3"), ([127, 0, 0, 1], 0).into())
            .await
            .unwrap();
        Self {
            store: Arc::new(SqliteStore::open(&dir.path().join("records.sqlite")).await.unwrap()),
            artifacts: ArtifactStore::connect(&S3Settings::from(&s3)).await.unwrap(),
            s3,
            emulation: EmulationSettings::default(),
            peer_url: None,
            dir,
        }
    }

    fn runners(&self) -> Runners {
        Runners::of(self.dir.path())
    }

    fn server(&self, watch: WatchSettings) -> Server {
        let equipment = Equipment::new(Agents::beside("/none".into()), [toolbox(Arch::host())]);
        self.server_with(watch, equipment, Box::new(|name| panic!("there is no {name}")))
    }

    fn server_with(&self, watch: WatchSettings, equipment: Equipment, node: NodeDriver) -> Server {
        self.process(ServerId::new(), None, watch, equipment, Arch::host(), node)
    }

    /// A command that carries out jobs of its own beside the server of a data directory.
    fn command(&self, id: ServerId, runner: &Runner) -> Server {
        let equipment = Equipment::new(Agents::beside("/none".into()), [toolbox(Arch::host())]);
        let watch = WatchSettings::default();
        self.process(
            id,
            Some(runner),
            watch,
            equipment,
            Arch::host(),
            Box::new(|name| panic!("there is no {name}")),
        )
    }

    fn process(
        &self,
        id: ServerId,
        runner: Option<&Runner>,
        watch: WatchSettings,
        equipment: Equipment,
        arch: Arch,
        node: NodeDriver,
    ) -> Server {
        let place = Place::new(Some(arch));
        let equipment = Arc::new(equipment);
        let orchestrator = Orchestrator::new(Parts {
            id,
            runner: runner.map(Runner::id),
            runners: self.runners(),
            host_network: runner.is_some(),
            store: Arc::clone(&self.store),
            artifacts: self.artifacts.clone(),
            places: Places::new(id, place.clone(), arch, Vec::new(), node, Arc::clone(&equipment)),
            equipment,
            doors: JobDoors::new(
                self.dir.path().to_owned(),
                Vec::new(),
                1,
                tokio::sync::mpsc::unbounded_channel().0,
            ),
            shell_place: ShellPlace {
                listen: std::net::Ipv4Addr::LOCALHOST.into(),
                host: "localhost".to_owned(),
                ports: "42000-42099".parse().unwrap(),
                idle: Duration::from_mins(1),
                longest: Duration::from_mins(10),
            },
            isolation: IsolationSettings::default(),
            gate: None,
            network: NetworkSettings::default(),
            services: Vec::new(),
            agent_address: None,
            peers: Peers::of(&ServerSettings {
                peer_url: self.peer_url.clone(),
                ..ServerSettings::default()
            }),
            emulation: self.emulation.clone(),
            checks: kiln_records::CheckLevels::new(),
            containers: ContainerSettings::default(),
            authorities: None,
            cache: kiln_records::CacheDepth::Packages,
            capacity: CapacitySettings::default(),
            signer: None,
            builder: "urn:kiln:test".to_owned(),
            watch,
            traces: None,
            webhooks: Arc::new(Webhooks::new(
                &WebhookSettings::default(),
                None,
                Arc::clone(&self.store),
            )),
            lease_file: None,
            feed: Arc::default(),
        });
        Server {
            orchestrator: Arc::new(orchestrator),
            place,
        }
    }

    async fn state(&self, job: JobId) -> State {
        self.store.get_run(job).await.unwrap().unwrap().run.state
    }

    /// Notes what the agent of a launched job tells while the root is made: twins ran.
    async fn builds_with_twins(&self, server: &Server, job: JobId) {
        let execs = Execs {
            twins: 9,
            emulated: 1,
            most_expensive: Vec::new(),
        };
        let noted = server.orchestrator.jobs.change(job, |run, _| {
            run.start()?;
            run.begin_step(Step::Build);
            run.note_execs(execs.clone());
            Ok(())
        });
        noted.await.unwrap().unwrap().unwrap();
    }

    /// Adds a job, lets a server launch it, and looks at it once.
    async fn launched(&self, server: &Server) -> JobId {
        let orchestrator = &server.orchestrator;
        let job = orchestrator.intake.accept(job(), NewRun::default()).await.unwrap().id;
        orchestrator.launch.pass().await.unwrap();
        server.has_started(job).await;
        orchestrator.watch.pass().await.unwrap();
        job
    }
}

impl Server {
    /// The start runs beside the loop, and a job that is being started is not watched.
    async fn has_started(&self, job: JobId) {
        while self.orchestrator.sandboxes.is_in_hand(job) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn says_nothing(&self, job: JobId, token: &str) -> Result<(), Refusal> {
        let batch = EventBatch {
            first: 0,
            events: Vec::new(),
        };
        let call = Call::PostEvents(batch);
        self.orchestrator.desk.answer(job, token, call).await.map(|_| ())
    }
}

fn job() -> Job {
    Job {
        id: JobId::new(),
        created: Moment::now(),
        job_type: JobType::Create,
        artifact_id: uuid::Uuid::new_v4(),
        public_key_id: PublicKeyId::new(),
        image_root_archive_name: "image".into(),
        enable_debug: false,
        build_env_size: 1,
        job_mem_size: 1,
        kernel_file_name: "vmlinuz".into(),
        initrd_file_name: "initrd".into(),
        kernel_parameters_file_name: "kernel-parameters".into(),
        ssh_containers: None,
        require_dkms: false,
        status: JobStatus::Creating,
        arch: Arch::host(),
        resultant_image_id: None,
        kubernetes_job: String::new(),
        kubernetes_service: String::new(),
        kubernetes_configmap: String::new(),
        kubernetes_pvc: String::new(),
        kubernetes_secret: None,
        kubernetes_namespace: String::new(),
        remote_build_node: String::new(),
    }
}

#[tokio::test]
async fn a_token_opens_one_try_of_one_job() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let (first, second) = (site.launched(&server).await, site.launched(&server).await);
    let token = server.place.facts(first).token;
    assert_eq!(server.says_nothing(first, &token).await, Ok(()));
    assert_eq!(server.says_nothing(second, &token).await, Err(Refusal::Unknown));
    assert_eq!(server.says_nothing(JobId::new(), &token).await, Err(Refusal::Unknown));
    assert_eq!(server.says_nothing(first, "").await, Err(Refusal::Unknown));
    // The stored digest is not itself a token.
    let kept = site.store.get_run(first).await.unwrap().unwrap().run.token.unwrap();
    assert_eq!(server.says_nothing(first, &kept).await, Err(Refusal::Unknown));

    // The next try has another token.
    server.place.ends(first);
    server.orchestrator.watch.pass().await.unwrap();
    assert_eq!(site.state(first).await, State::Queued);
    assert_eq!(server.says_nothing(first, &token).await, Err(Refusal::Unknown));
    server
        .orchestrator
        .jobs
        .cancel(second, Failure::new(Code::Cancelled, "enough"))
        .await
        .unwrap();
    let token = server.place.facts(second).token;
    assert_eq!(server.says_nothing(second, &token).await, Err(Refusal::Over));
}

#[tokio::test]
async fn a_try_that_was_killed_is_not_the_jobs() {
    let site = Site::new().await;
    let server = site.server(WatchSettings {
        attempts: 2,
        interruptions: 4,
        retry_pause: Period::seconds(0),
        ..WatchSettings::default()
    });
    let orchestrator = &server.orchestrator;
    let job = site.launched(&server).await;
    let causes = [
        Code::SandboxLost,
        Code::S3Timeout,
        Code::NetworkLost,
        Code::SandboxStart,
        Code::VmLost,
    ];
    for (attempt, code) in (1..).zip(causes) {
        let failure = Failure::new(code, "it happens");
        orchestrator.jobs.fail(job, attempt, failure).await.unwrap();
        assert_eq!(site.state(job).await, State::Queued, "{code}");
        let launched = orchestrator
            .jobs
            .change(job, |run, now| run.launch(orchestrator.claim.id(), now));
        launched.await.unwrap().unwrap().unwrap();
    }
    // The storage has failed once before.
    let failure = Failure::new(Code::UploadFailed, "again");
    orchestrator.jobs.fail(job, 6, failure.clone()).await.unwrap();
    assert_eq!(site.state(job).await, State::Failed(failure));
}

#[tokio::test]
async fn what_the_place_did_is_tried_again_and_not_for_ever() {
    let site = Site::new().await;
    let server = site.server(WatchSettings {
        interruptions: 2,
        retry_pause: Period::seconds(0),
        ..WatchSettings::default()
    });
    let job = site.launched(&server).await;
    server.place.ends(job);
    // A second look does not end the job a second time.
    server.orchestrator.watch.pass().await.unwrap();
    server.orchestrator.watch.pass().await.unwrap();
    let run = site.store.get_run(job).await.unwrap().unwrap().run;
    assert_eq!((run.state, run.attempt), (State::Queued, 2));

    server.orchestrator.launch.pass().await.unwrap();
    while server.place.look(job).await.unwrap() != SandboxState::Running {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.place.ends(job);
    // The task that starts the sandbox must finish before the sandbox is looked at.
    let ended = async {
        while !site.state(job).await.is_final() {
            server.orchestrator.watch.pass().await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended).await.unwrap();
    let State::Failed(failure) = site.state(job).await else {
        panic!("{:?}", site.state(job).await);
    };
    assert_eq!(failure.code, Code::SandboxLost);
    server.orchestrator.settle.pass().await.unwrap();
    assert!(server.place.list().await.unwrap().is_empty());
    assert!(site.store.get_run(job).await.unwrap().unwrap().run.settled);
}

#[tokio::test]
async fn a_job_that_failed_with_twins_is_tried_without_by_the_server_that_is_started_next() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let job = site.launched(&server).await;
    site.builds_with_twins(&server, job).await;
    let first = Failure::new(Code::ScriptFailed, "config.sh failed").at(Step::Build);
    server.orchestrator.jobs.fail(job, 1, first.clone()).await.unwrap();
    // The agent that failed is heard no more, and says it twice.
    server.orchestrator.jobs.fail(job, 1, first.clone()).await.unwrap();
    drop(server);

    let server = site.server(WatchSettings::default());
    let run = site.store.get_run(job).await.unwrap().unwrap().run;
    assert_eq!((run.state.clone(), run.attempt), (State::Queued, 2));
    assert_eq!(run.failed, FailedAttempts::default());
    assert_eq!(
        (run.plan.twins, run.twins_in_force()),
        (TwinLevel::Full, TwinLevel::Off)
    );
    assert_eq!(run.twins_fallback.unwrap().failure, first);
    server.orchestrator.launch.pass().await.unwrap();
    assert_eq!(site.state(job).await, State::Launching);
    // Even if its agent claims to have had twins.
    site.builds_with_twins(&server, job).await;
    let second = Failure::new(Code::ChangeFailed, "another").at(Step::Build);
    server.orchestrator.jobs.fail(job, 2, second.clone()).await.unwrap();
    assert_eq!(site.state(job).await, State::Failed(second));
}

#[tokio::test]
async fn a_job_that_hangs_with_twins_is_tried_without_and_hangs_no_third_time() {
    let site = Site::new().await;
    let server = site.server(WatchSettings {
        silence: Period::seconds(1),
        ..WatchSettings::default()
    });
    let job = site.launched(&server).await;
    site.builds_with_twins(&server, job).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    server.orchestrator.watch.pass().await.unwrap();
    let run = site.store.get_run(job).await.unwrap().unwrap().run;
    assert_eq!(
        (run.state.clone(), run.twins_in_force()),
        (State::Queued, TwinLevel::Off)
    );
    assert_eq!(run.twins_fallback.unwrap().failure.code, Code::Silent);
    server.orchestrator.launch.pass().await.unwrap();
    server.has_started(job).await;
    server.orchestrator.watch.pass().await.unwrap();
    site.builds_with_twins(&server, job).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    server.orchestrator.watch.pass().await.unwrap();
    let State::Failed(failure) = site.state(job).await else {
        panic!("{:?}", site.state(job).await);
    };
    assert_eq!(failure.code, Code::Silent);
}

#[tokio::test]
async fn a_cancelled_job_is_not_tried_without_twins() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let cancelled = Failure::new(Code::Cancelled, "enough").at(Step::Build);
    let ends = async |job, attempt| {
        let done = server.orchestrator.jobs.cancel(job, cancelled.clone()).await;
        let run = done.unwrap().unwrap().run;
        assert_eq!((run.state, run.attempt), (State::Failed(cancelled.clone()), attempt));
    };
    let first = site.launched(&server).await;
    site.builds_with_twins(&server, first).await;
    ends(first, 1).await;

    // Nor is one that waits for its second try, or is in it.
    let second = site.launched(&server).await;
    site.builds_with_twins(&server, second).await;
    let failure = Failure::new(Code::BuildFailed, "kiwi failed");
    server.orchestrator.jobs.fail(second, 1, failure).await.unwrap();
    let done = server.orchestrator.jobs.cancel(second, cancelled.clone()).await;
    assert_eq!(done.unwrap().unwrap().run.attempt, 2);
    assert!(site.state(second).await.is_final());
}

#[tokio::test]
async fn a_job_rests_before_it_is_tried_again_and_holds_nobody_up() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let first = site.launched(&server).await;
    server.place.ends(first);
    server.orchestrator.watch.pass().await.unwrap();
    let second = site.launched(&server).await;
    assert_eq!(site.state(first).await, State::Queued);
    assert_eq!(site.state(second).await, State::Launching);
    let (_, reason) = server.orchestrator.glance.waiting(first).unwrap();
    assert!(
        reason.starts_with("its last try failed; the next one starts in "),
        "{reason}"
    );
    // Operators see the same, without another look at the jobs.
    let mut answer = Answer::default();
    server.orchestrator.glance.write_metrics(&mut answer);
    let text = answer.text();
    assert!(text.contains("kiln_queue_jobs{reason=\"rest\"} 1\n"), "{text}");
    let is_counted = |blame| !text.contains(&format!("kiln_job_attempts_failed_total{{blame=\"{blame}\"}} 0\n"));
    assert!(["place", "killed"].into_iter().any(is_counted), "{text}");
    assert!(text.contains("kiln_job_queue_duration_seconds_count"), "{text}");
}

#[tokio::test]
async fn what_a_machine_takes_beside_its_job_is_counted() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let dkms = || NewRun {
        own_kernel: true,
        ..NewRun::default()
    };
    // Until the first look, it is not known whether there are virtual machines.
    let first = server.orchestrator.intake.accept(job(), dkms()).await.unwrap().id;
    server.orchestrator.launch.pass().await.unwrap();
    assert!(
        server
            .orchestrator
            .glance
            .waiting(first)
            .unwrap()
            .1
            .contains("found out")
    );
    let second = server.orchestrator.intake.accept(job(), dkms()).await.unwrap().id;
    join_all(server.orchestrator.places.looks(&[])).await;
    server.orchestrator.launch.pass().await.unwrap();
    assert_eq!(site.state(first).await, State::Launching);
    let run = site.store.get_run(first).await.unwrap().unwrap().run;
    assert_eq!(run.plan.driver, DriverKind::Microvm);
    // The place has twice as much as a machine takes beside its job, less a tenth; both jobs were given it in the same
    // look.
    let (_, reason) = server.orchestrator.glance.waiting(second).unwrap();
    assert!(reason.contains("of memory"), "{reason}");
}

#[tokio::test]
async fn a_silent_job_is_ended_by_the_clocks_of_the_process() {
    let site = Site::new().await;
    let server = site.server(WatchSettings {
        heartbeat: Period::seconds(1),
        interruptions: 1,
        ..WatchSettings::default()
    });
    let job = site.launched(&server).await;
    // By the time of day it was launched long ago, or will be: the clocks ignore that.
    for micros in [0, i64::MAX / 2] {
        let stored = site.store.get_run(job).await.unwrap().unwrap();
        let mut run = stored.run;
        run.launched = Some(Moment::from_micros(micros));
        site.store
            .replace_run(&stored.job, &run, stored.revision)
            .await
            .unwrap();
        server.orchestrator.watch.pass().await.unwrap();
        assert!(!site.state(job).await.is_final());
    }
    tokio::time::sleep(Duration::from_millis(1100)).await;
    server.orchestrator.watch.pass().await.unwrap();
    let State::Failed(failure) = site.state(job).await else {
        panic!("{:?}", site.state(job).await);
    };
    assert_eq!(failure.code, Code::HeartbeatLost);
}

#[tokio::test]
async fn a_start_may_take_longer_than_an_agent_may_be_silent() {
    let site = Site::new().await;
    let server = site.server(WatchSettings {
        heartbeat: Period::seconds(1),
        silence: Period::seconds(1),
        interruptions: 1,
        ..WatchSettings::default()
    });
    let made = server.orchestrator.intake.accept(job(), NewRun::default());
    let job = made.await.unwrap().id;
    server.place.is_slow.store(true, Ordering::Relaxed);
    server.orchestrator.launch.pass().await.unwrap();
    server.orchestrator.watch.pass().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    server.orchestrator.watch.pass().await.unwrap();
    assert!(server.orchestrator.sandboxes.is_in_hand(job));
    server.place.is_slow.store(false, Ordering::Relaxed);
    server.has_started(job).await;
    server.orchestrator.watch.pass().await.unwrap();
    assert_eq!(site.state(job).await, State::Launching);
    // From then on its agent has to be heard.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    server.orchestrator.watch.pass().await.unwrap();
    assert!(matches!(site.state(job).await, State::Failed(failure) if failure.code == Code::HeartbeatLost));
}

#[tokio::test]
async fn a_sandbox_that_waits_says_why_and_stops_the_clocks_but_not_for_ever() {
    let site = Site::new().await;
    let server = site.server(WatchSettings {
        heartbeat: Period::seconds(1),
        silence: Period::seconds(1),
        attempts: 1,
        interruptions: 1,
        ..WatchSettings::default()
    });
    let job = site.launched(&server).await;
    let waits = |longest| SandboxState::Waiting {
        why: Failure::new(Code::PodWaits, "no node takes its pod: 0/3 nodes are available"),
        longest,
    };
    let becomes = |state| server.place.sandboxes.lock().unwrap().get_mut(&job).unwrap().1 = state;
    becomes(waits(Duration::from_mins(15)));
    for _ in 0..4 {
        server.orchestrator.watch.pass().await.unwrap();
        let why = server.orchestrator.glance.held_up(job).unwrap();
        assert_eq!(why, "no node takes its pod: 0/3 nodes are available");
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    assert_eq!(site.state(job).await, State::Launching);
    becomes(SandboxState::Running);
    server.orchestrator.watch.pass().await.unwrap();
    assert_eq!(server.orchestrator.glance.held_up(job), None);
    assert_eq!(site.state(job).await, State::Launching);

    becomes(waits(Duration::ZERO));
    server.orchestrator.watch.pass().await.unwrap();
    let State::Failed(failure) = site.state(job).await else {
        panic!("{:?}", site.state(job).await);
    };
    assert_eq!(failure.code, Code::PodWaits);
    let expected = "the sandbox did not start within 0 s: no node takes its pod: 0/3 nodes are available";
    assert_eq!(failure.detail, expected);

    // What has been heard has started: its node is gone, and could not say so.
    let job = site.launched(&server).await;
    server
        .orchestrator
        .jobs
        .change(job, |run, _| run.start())
        .await
        .unwrap();
    let unknown = waits(Duration::from_mins(15));
    server.place.sandboxes.lock().unwrap().get_mut(&job).unwrap().1 = unknown;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    server.orchestrator.watch.pass().await.unwrap();
    let State::Failed(failure) = site.state(job).await else {
        panic!("{:?}", site.state(job).await);
    };
    assert_eq!(failure.code, Code::HeartbeatLost);
}

#[tokio::test]
async fn jobs_of_a_server_that_is_gone_are_taken_over_and_others_are_not() {
    let site = Site::new().await;
    let (gone, other) = (
        site.server(WatchSettings::default()),
        site.server(WatchSettings {
            retry_pause: Period::seconds(0),
            ..WatchSettings::default()
        }),
    );
    for server in [&gone, &other] {
        server.orchestrator.life.pass().await.unwrap();
    }
    let job = site.launched(&gone).await;
    let settle_other = async || {
        other.orchestrator.life.pass().await.unwrap();
        other.orchestrator.settle.pass().await.unwrap();
    };
    settle_other().await;
    // As long as it shows life, any time may pass.
    gone.orchestrator.life.pass().await.unwrap();
    other.orchestrator.life.pass().await.unwrap();
    other.orchestrator.claim.leases.let_pass(Duration::from_secs(20));
    settle_other().await;
    assert_eq!(site.state(job).await, State::Launching);

    // The server has shown no life for long.
    other.orchestrator.claim.leases.let_pass(Duration::from_mins(1));
    settle_other().await;
    let run = site.store.get_run(job).await.unwrap().unwrap().run;
    assert_eq!((run.state, run.attempt, run.owner), (State::Queued, 2, None));
    other.orchestrator.launch.pass().await.unwrap();
    let run = site.store.get_run(job).await.unwrap().unwrap().run;
    assert_eq!(run.owner, Some(other.orchestrator.claim.id()));
    // After its return, the first server finds a sandbox that belongs to none of its jobs.
    gone.orchestrator.sweep.pass().await.unwrap();
    assert!(gone.place.list().await.unwrap().is_empty());
}

/// The log of this thread, in JSON as a server writes it.
#[derive(Clone, Default)]
struct JsonLog(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for JsonLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn every_line_about_a_job_has_its_id() {
    let log = JsonLog::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_span_list(false)
        .with_env_filter("off,kiln=info")
        .with_writer(move || writer.clone())
        .finish();
    // While there is only one subscriber, the thread that comes to a line first decides for all threads whether it is
    // written, and that may be another test's.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _guard = tracing::subscriber::set_default(subscriber);

    let site = Site::new().await;
    let server = site.server(WatchSettings {
        interruptions: 2,
        retry_pause: Period::seconds(0),
        ..WatchSettings::default()
    });
    let job = site.launched(&server).await;
    server.place.ends(job);
    server.orchestrator.watch.pass().await.unwrap();
    server.orchestrator.launch.pass().await.unwrap();
    while server.orchestrator.sandboxes.is_in_hand(job) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.place.ends(job);
    server.orchestrator.watch.pass().await.unwrap();
    assert!(site.state(job).await.is_final());
    let unknown = JobId::new();
    let sandbox = server.place.sandboxes.lock().unwrap()[&job].clone();
    server.place.sandboxes.lock().unwrap().insert(unknown, sandbox);
    server.orchestrator.settle.pass().await.unwrap();
    server.orchestrator.sweep.pass().await.unwrap();

    let lines = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = |start: &str, job: JobId| {
        lines.iter().any(|line| {
            let message = line["message"].as_str().unwrap();
            message.starts_with(start) && line["span"]["job.id"] == job.to_string()
        })
    };
    assert!(said("the job is tried again: ", job), "{lines:#?}");
    assert!(said("the job has failed: ", job), "{lines:#?}");
    assert!(said("removing what a sandbox left", unknown), "{lines:#?}");
    assert!(
        lines.iter().all(|line| line["span"]["job.id"].is_string()),
        "{lines:#?}"
    );
}
