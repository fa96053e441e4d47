//! Joins the parts for a command that works on the records of a data directory without a server: `kiln build`, and the
//! commands for records where no server is. Opens sockets, the database and S3.

use std::{
    net::SocketAddr,
    os::fd::AsRawFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kiln_records::{Clock, Code, Failure, Job, JobId, Moment};
use kiln_s3::EmbeddedS3;
use reqwest::Url;
use tokio::{net::UnixListener, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    descriptors::Descriptors,
    jobs::JobService,
    objects::artifact_store,
    records::open_store,
    sandboxes::{namespace_driver, node_login},
    server::{certificate, seen_s3_endpoint},
};
use crate::{
    api::{
        self, Api, Shared,
        auth::Auth,
        limits::Limits,
        orphans,
        serve::{self, Sockets},
        turns::Turns,
    },
    artifacts::ArtifactStore,
    config::{Config, WebhookSettings},
    orchestrate::{
        Met, Orchestrator,
        ask::{Ask, Asker, Refusal},
        runner::{Runner, Runners},
        sets::Sets,
    },
    retention::Retention,
    sandbox::doors,
    store::{LogFeed, SharedStore},
    webhooks::Webhooks,
};

/// The name of the API's socket in the directory of this process.
const API_SOCKET: &str = "api.sock";

/// How long this process waits until everything that its jobs left is cleared away. The next command does the rest.
const CLEARING_UP: Duration = Duration::from_secs(30);

/// The same after the user interrupted it.
const LEAVING: Duration = Duration::from_millis(1800);

/// How often this process looks whether a job has got further.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The records of a data directory, and the means to carry out jobs for them as long as this process lives.
#[derive(Debug)]
pub struct Local {
    config: Box<Config>,
    store: SharedStore,
    artifacts: ArtifactStore,
    asker: Arc<Asker>,
    orchestrator: Option<Arc<Orchestrator>>,
    /// Why no jobs can be carried out here, if none can.
    lack: Option<Failure>,
    background: Mutex<Background>,
    api: Api,
    stop: CancellationToken,
    embedded: Option<EmbeddedS3>,
    /// Gives the socket a short name: the path of a socket may have at most 107 bytes.
    dir: fs_err::File,
    /// Dropped last: as long as it exists, no other process touches the jobs of this one.
    runner: Runner,
}

/// What runs beside the command, or will.
#[derive(Debug)]
struct Background {
    /// The parts that carry out jobs, until they run.
    jobs: Option<JobService>,
    /// Where agents of virtual machines in an engine call, if they can.
    agents: Option<Sockets>,
    /// Dropping it ends everything that runs.
    tasks: JoinSet<()>,
}

impl Local {
    /// Opens the records, and puts right what killed commands left.
    ///
    /// # Errors
    ///
    /// When the database or S3 cannot be used. A host that cannot carry out jobs is no error: [`Local::ask`] says so.
    pub async fn open(config: &Config) -> Result<Box<Self>, Failure> {
        let store = open_store(config).await?;
        let runner = Runners::of(&config.data_dir).enter()?;
        let (artifacts, embedded) = artifact_store(config).await?;
        let endpoint = seen_s3_endpoint(config, embedded.as_ref());
        let feed = Arc::new(LogFeed::default());
        let (agents, config) = agents_socket(config).await;
        let jobs = JobService::new(
            &config,
            Arc::clone(&store),
            artifacts.clone(),
            endpoint.as_deref(),
            Arc::clone(&feed),
            (store.site_id().await?, Some(&runner)),
        );
        let (jobs, lack) = match jobs {
            Ok(jobs) => (Some(jobs), None),
            Err(lack) => (None, Some(lack)),
        };
        let orchestrator = jobs.as_ref().map(|jobs| Arc::clone(&jobs.orchestrator));
        let asker = Arc::new(Asker {
            store: Arc::clone(&store),
            artifacts: artifacts.clone(),
            jobs: config.jobs.clone(),
            most_records: (&config.limits).into(),
            webhooks: Arc::new(Webhooks::new(&WebhookSettings::default(), None, Arc::clone(&store))),
            met: Met::default(),
            channels: config.catalogue.channels.clone(),
            boots: None,
            orchestrator: orchestrator.clone(),
        });
        let stop = CancellationToken::new();
        let api = Api::new(Shared {
            store: Arc::clone(&store),
            artifacts: artifacts.clone(),
            orchestrator: orchestrator.clone(),
            asker: Arc::clone(&asker),
            data_dir: config.data_dir.clone(),
            started: Moment::now(),
            streams: Turns::of_streams(),
            most_records: (&config.limits).into(),
            upload_bytes: config.limits.upload_bytes.0,
            public_url: config.server.public_url.clone(),
            remote_nodes: node_login(&config),
            retention: Retention {
                store: Arc::clone(&store),
                artifacts: artifacts.clone(),
                settings: config.retention.clone(),
                clock: Clock::default(),
            },
            feed,
            stop: stop.clone(),
            schedule_changed: Arc::default(),
        });
        let failed = |error: std::io::Error| Failure::io("cannot make the socket of this command", &error);
        let listener = doors::listen(runner.dir(), API_SOCKET)
            .and_then(UnixListener::from_std)
            .map_err(failed)?;
        let dir = fs_err::File::open(runner.dir()).map_err(failed)?;
        let app = serve::app(
            api.clone().router(),
            None,
            Auth::open(Vec::new(), &config.limits),
            Limits::from(&config.limits),
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // The future only ends by being aborted.
            let _ = axum::serve(listener, app).await;
        });
        let local = Box::new(Self {
            config: Box::new(config),
            store,
            artifacts,
            asker,
            orchestrator,
            lack,
            background: Mutex::new(Background { jobs, agents, tasks }),
            api,
            stop,
            embedded,
            dir,
            runner,
        });
        local.clear_up().await?;
        Runners::of(&local.config.data_dir).sweep()?;
        Ok(local)
    }

    /// The socket at which this process answers the API to itself.
    pub fn socket(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{API_SOCKET}", self.dir.as_raw_fd()))
    }

    /// The records.
    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    /// The objects.
    pub fn artifacts(&self) -> &ArtifactStore {
        &self.artifacts
    }

    /// The files that a job's sandbox on this host left.
    ///
    /// # Errors
    ///
    /// When sandboxes cannot be made or looked at here.
    pub fn kept_at(&self, job: JobId) -> Result<PathBuf, Failure> {
        namespace_driver(&self.config)?.kept_at(job)
    }

    /// Succeeds if jobs can be carried out here.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub fn can_carry_out(&self) -> Result<(), Failure> {
        self.lack.clone().map_or(Ok(()), Err)
    }

    /// Adds a job of this process, which waits for [`Local::carry_out`].
    ///
    /// # Errors
    ///
    /// Why there is no job.
    pub async fn ask(&self, ask: Ask) -> Result<Job, Refusal> {
        self.ask_as(JobId::new(), ask).await
    }

    /// As [`Local::ask`], with an id that was chosen before.
    ///
    /// # Errors
    ///
    /// Why there is no job.
    pub async fn ask_as(&self, id: JobId, ask: Ask) -> Result<Job, Refusal> {
        self.can_carry_out()?;
        self.asker.ask(id, ask, None).await
    }

    /// The image sets among the records.
    pub fn sets(&self) -> Sets {
        self.api.sets()
    }

    /// Carries out the jobs of this process from now on. Repeated calls change nothing.
    pub fn carry_out(&self) {
        let mut background = self.background();
        let Some(jobs) = background.jobs.take() else { return };
        if let Some(sockets) = background.agents.take() {
            let calls = api::agent::router(jobs.orchestrator.desk.clone());
            let (stop, config) = (self.stop.clone(), self.config.clone());
            let places = Descriptors::of_this_process().api();
            background.tasks.spawn(async move {
                let served = match certificate(&config) {
                    Ok(certificate) => sockets.serve(calls, certificate, &places, &stop).await,
                    Err(failure) => Err(std::io::Error::other(failure)),
                };
                if let Err(error) = served {
                    tracing::error!(%error, "the agents' address broke");
                }
            });
        }
        let (stop, config) = (self.stop.clone(), self.config.clone());
        background.tasks.spawn(async move { jobs.run(&config, &stop).await });
    }

    /// Ends the jobs of this process that have not ended, and waits until what they left is cleared away. `hurry` says
    /// that the user waits for the end of the command.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn close(self: Box<Self>, hurry: bool) -> Result<(), Failure> {
        self.interrupt().await?;
        self.wait_until_clear(if hurry { LEAVING } else { CLEARING_UP }).await?;
        self.stop.cancel();
        let has_built = self.background().jobs.is_none();
        let background = self.background.into_inner();
        background
            .unwrap_or_else(PoisonError::into_inner)
            .tasks
            .shutdown()
            .await;
        orphans::remove(&self.api).await;
        if !hurry && has_built {
            // No server does it here.
            self.api.retention.prune_packages().await;
        }
        self.store.forget_server(self.runner.id()).await?;
        if let Some(embedded) = self.embedded {
            embedded.shutdown().await;
        }
        self.store.close().await;
        Ok(())
    }

    /// Ends the jobs of this process that have not ended.
    async fn interrupt(&self) -> Result<(), Failure> {
        let Some(orchestrator) = &self.orchestrator else {
            return Ok(());
        };
        for stored in self.store.open_runs().await? {
            if stored.run.plan.runner != Some(self.runner.id()) || stored.run.state.is_final() {
                continue;
            }
            let failure = Failure::new(Code::Interrupted, "the build was interrupted");
            // A job that is about to end with its image may do so.
            let _ = orchestrator.jobs.cancel(stored.job.id, failure).await;
        }
        Ok(())
    }

    fn background(&self) -> MutexGuard<'_, Background> {
        // Each change is complete before anything can panic.
        self.background.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nothing is left of this process's jobs that have ended.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn clear_up(&self) -> Result<(), Failure> {
        self.wait_until_clear(CLEARING_UP).await
    }

    /// Waits until nothing is left of this process's jobs, nor of those of processes that are gone.
    async fn wait_until_clear(&self, longest: Duration) -> Result<(), Failure> {
        let Some(orchestrator) = &self.orchestrator else {
            return Ok(());
        };
        let until = Instant::now() + longest;
        while orchestrator.settle.has_remains().await? {
            let runs = self.background().jobs.is_none();
            let pass = if runs {
                orchestrator.jobs.clear_away();
                Ok(())
            } else {
                // No loop runs that could do it.
                async {
                    orchestrator.life.pass().await?;
                    orchestrator.commit.pass().await?;
                    orchestrator.settle.pass().await?;
                    orchestrator.sweep.pass().await
                }
                .await
            };
            // What cannot be cleared away now, since S3 is away perhaps, does not keep a command from its own work.
            if pass.is_err() || Instant::now() > until {
                tracing::warn!("something is not cleared away yet; the next kiln command goes on with it");
                break;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

/// A socket for agents in virtual machines of an engine, which have no other way to this process; and the configuration
/// with its address. Without an engine, or an address at which build hosts reach this host, there is none.
async fn agents_socket(config: &Config) -> (Option<Sockets>, Config) {
    let mut config = config.clone();
    let url = config.server.agent_url.take().and_then(|url| Url::parse(&url).ok());
    let (Some(mut url), Some(_)) = (url, &config.docker.engine) else {
        return (None, config);
    };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let ip = host.parse().unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into());
    // A server may have the port of the configuration.
    let Ok(sockets) = Sockets::open(&[SocketAddr::new(ip, 0)]).await else {
        // The address is another host's, which passes calls on to the server only.
        return (None, config);
    };
    let port = sockets.addresses().first().map(SocketAddr::port);
    if url.set_port(port).is_ok() {
        config.server.agent_url = Some(url.into());
    }
    (Some(sockets), config)
}
