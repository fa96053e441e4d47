//! Joins the parts of `kiln serve` into a server. It locks the data directory, opens the sockets and runs everything.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use axum::{Extension, Router};
use kiln_records::{Clock, Code, Failure, Moment};
use kiln_s3::EmbeddedS3;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{
    descriptors::Descriptors,
    jobs::JobService,
    objects::served_artifact_store,
    records::open_store,
    sandboxes::{namespace_driver, node_login},
};
use crate::{
    api::{
        self, Api, Shared,
        auth::{Auth, Trust, oidc::Oidc, sign_in::SignIn},
        connections::ApiPlaces,
        limits::Limits,
        orphans,
        serve::{self, Sockets},
        tls::Certificate,
        turns::Turns,
    },
    config::{Access, Config},
    orchestrate::{
        AgentAddress, Met,
        ask::Asker,
        sets::{Booter, Sets},
    },
    retention::Retention,
    store::{LogFeed, SharedStore},
    web::Dashboard,
    webhooks::Webhooks,
};

/// The interval between searches for objects that no record names any more.
const SWEEP_EVERY: Duration = Duration::from_secs(67);

/// The most connections to the addresses of metrics: these must answer when those of the API have no place left.
const METRICS_CONNECTIONS: usize = 32;

/// A server with open sockets. It answers once it runs.
#[derive(Debug)]
pub struct Server {
    store: SharedStore,
    joined: Joined,
    stop: CancellationToken,
    /// Excludes other servers from the data directory.
    _lock: std::fs::File,
}

/// The parts that need an open store.
#[derive(Debug)]
struct Joined {
    sockets: Sockets,
    /// The sockets whose callers need no token.
    trusted: Sockets,
    /// The sockets that serve metrics alone, and what they serve.
    metrics: (Sockets, Router),
    certificate: Option<Certificate>,
    oidc: Option<Arc<Oidc>>,
    embedded: Option<EmbeddedS3>,
    jobs: Option<JobService>,
    webhooks: Arc<Webhooks>,
    booter: Option<Booter>,
    api: Api,
    app: Router,
}

impl Server {
    /// Makes all parts and opens the sockets. The server ends when `stop` fires.
    ///
    /// # Errors
    ///
    /// `already_served` when another server uses the data directory; or else the failure of a part.
    pub async fn open(config: &Config, stop: CancellationToken) -> Result<Self, Failure> {
        let lock = lock(&config.data_dir)?;
        let store = open_store(config).await?;
        match Joined::over(config, &store, &stop).await {
            Ok(joined) => Ok(Self {
                store,
                joined,
                stop,
                _lock: lock,
            }),
            Err(failure) => {
                store.close().await;
                Err(failure)
            }
        }
    }

    /// The addresses that it listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.joined.sockets.addresses()
    }

    /// The addresses where callers need no token.
    pub fn trusted_addresses(&self) -> &[SocketAddr] {
        self.joined.trusted.addresses()
    }

    /// The addresses that serve metrics alone.
    pub fn metrics_addresses(&self) -> &[SocketAddr] {
        self.joined.metrics.0.addresses()
    }

    /// The address of the embedded S3 service, if used.
    pub fn embedded_s3(&self) -> Option<String> {
        self.joined.embedded.as_ref().map(EmbeddedS3::endpoint)
    }

    /// The store of records.
    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    ///
    /// When it can no longer listen.
    pub async fn run(self, config: &Config) -> Result<(), Failure> {
        let outcome = Box::pin(self.joined.run(config, &self.stop)).await;
        self.store.close().await;
        outcome
    }
}

impl Joined {
    async fn over(config: &Config, store: &SharedStore, stop: &CancellationToken) -> Result<Self, Failure> {
        let oidc = Oidc::new(&config.oidc)?.map(Arc::new);
        let certificate = certificate(config)?;
        let sockets = Sockets::open(&config.server.listen.0).await?;
        let trusted = Sockets::open(&config.trusted_listener.listen.0).await?;
        let metrics = Sockets::open(&config.metrics.listen.0).await?;
        let (artifacts, embedded) = served_artifact_store(config).await?;
        let hosts = config.server.hosts.clone();
        let auth = match config.access() {
            Access::Open => Auth::open(hosts, &config.limits),
            Access::Authenticated => Auth::guarded(Arc::clone(store), oidc.clone(), hosts, &config.limits)
                .with_public_catalogue(config.catalogue.public),
        };
        let feed = Arc::new(LogFeed::default());
        let jobs = if config.jobs.run {
            let endpoint = seen_s3_endpoint(config, embedded.as_ref());
            let site = store.site_id().await?;
            let (store, artifacts) = (Arc::clone(store), artifacts.clone());
            Some(JobService::new(
                config,
                store,
                artifacts,
                endpoint.as_deref(),
                Arc::clone(&feed),
                (site, None),
            )?)
        } else {
            None
        };
        let reachable = |jobs: &JobService| api::agent::router(jobs.orchestrator.desk.clone());
        let agents = jobs
            .as_ref()
            .filter(|_| config.server.agent_url.is_some() || config.server.peer_url.is_some())
            .map(reachable);
        let orchestrator = jobs.as_ref().map(|jobs| Arc::clone(&jobs.orchestrator));
        let boots = config.boot_checks.run && !config.isolation.is_cluster_only();
        let webhooks = Arc::new(Webhooks::new(
            &config.webhooks,
            config.server.public_url.as_deref(),
            Arc::clone(store),
        ));
        let asker = Arc::new(Asker {
            store: Arc::clone(store),
            artifacts: artifacts.clone(),
            jobs: config.jobs.clone(),
            most_records: (&config.limits).into(),
            webhooks: Arc::clone(&webhooks),
            met: Met::default(),
            channels: config.catalogue.channels.clone(),
            boots: orchestrator.as_ref().filter(|_| boots).map(|one| one.claim.id()),
            orchestrator: orchestrator.clone(),
        });
        let booter = match orchestrator.clone().filter(|_| boots) {
            Some(orchestrator) => Some(Booter::new(
                Sets::new(Arc::clone(&asker)),
                orchestrator,
                namespace_driver(config)?,
                config.data_dir.clone(),
                config.boot_checks.clone(),
            )),
            None => None,
        };
        let clock = Clock::default();
        let api = Api::new(Shared {
            store: Arc::clone(store),
            artifacts: artifacts.clone(),
            orchestrator,
            asker,
            data_dir: config.data_dir.clone(),
            started: Moment::now(),
            streams: Turns::of_streams(),
            most_records: (&config.limits).into(),
            upload_bytes: config.limits.upload_bytes.0,
            public_url: config.server.public_url.clone(),
            remote_nodes: node_login(config),
            retention: Retention {
                store: Arc::clone(store),
                artifacts: artifacts.clone(),
                settings: config.retention.clone(),
                clock: clock.clone(),
            },
            feed,
            stop: stop.clone(),
            schedule_changed: Arc::default(),
        });
        let public_url = config.server.public_url.as_deref();
        let sign_in = oidc
            .as_ref()
            .and_then(|oidc| SignIn::new(oidc, &config.oidc, public_url));
        let dashboard = Dashboard::new(api.clone(), is_reached_over_tls(config), sign_in, clock);
        let routes = api.clone().router().merge(dashboard.router());
        let limits = Limits::from(&config.limits);
        let app = dashboard.before(serve::app(routes, agents, auth, limits));
        let metrics_auth = match &config.metrics.token_file {
            Some(path) => Auth::token_file(path.clone(), &config.limits),
            // The configuration is refused with other addresses than those of this host.
            None => Auth::open(config.server.hosts.clone(), &config.limits),
        };
        let metrics_app = serve::metrics_app(api.clone().metrics_router(), metrics_auth, Limits::from(&config.limits));
        Ok(Self {
            sockets,
            trusted,
            metrics: (metrics, metrics_app),
            certificate,
            oidc,
            embedded,
            jobs,
            booter,
            webhooks,
            api,
            app,
        })
    }

    async fn run(self, config: &Config, stop: &CancellationToken) -> Result<(), Failure> {
        let Self {
            sockets,
            trusted,
            metrics: (metrics, metrics_app),
            certificate,
            oidc,
            embedded,
            jobs,
            booter,
            webhooks,
            api,
            app,
        } = self;
        let carries_out = jobs.is_some();
        let carrying_out = async {
            match jobs {
                Some(jobs) => jobs.run(config, stop).await,
                None => std::future::pending().await,
            }
        };
        let following = async {
            match &oidc {
                Some(oidc) => oidc.follow().await,
                None => std::future::pending().await,
            }
        };
        let booting = async {
            match &booter {
                Some(booter) => booter.run().await,
                None => std::future::pending().await,
            }
        };
        let trying_out = async {
            if let Some(address) = AgentAddress::of(&config.server).filter(|_| carries_out) {
                address.try_out().await;
            }
            std::future::pending::<()>().await;
        };
        let (scheduler, sets) = (api.scheduler(), api.sets());
        tracing::info!(addresses = ?sockets.addresses(), "ready");
        let rule = Arc::new(Trust::from(&config.trusted_listener));
        if !trusted.addresses().is_empty() {
            let settings = &config.trusted_listener;
            let (addresses, networks) = (trusted.addresses(), &settings.networks);
            tracing::warn!(
                ?addresses,
                ?networks,
                role = settings.role.name(),
                "callers need no token there"
            );
        }
        let metrics_certificate = if config.metrics.listen.are_loopback() {
            None
        } else {
            self::certificate(config)?
        };
        let serving = async {
            let places = Descriptors::of_this_process().api();
            let open = trusted.serve(app.clone().layer(Extension(rule)), None, &places, stop);
            let metrics_places = ApiPlaces::new(METRICS_CONNECTIONS);
            let metrics = metrics.serve(metrics_app, metrics_certificate, &metrics_places, stop);
            futures::future::try_join3(sockets.serve(app, certificate, &places, stop), open, metrics)
                .await
                .map(drop)
        };
        let served = tokio::select! {
            served = Box::pin(serving) => served,
            () = following => Ok(()),
            () = sweep(&api) => Ok(()),
            () = prune(&api) => Ok(()),
            () = scheduler.run() => Ok(()),
            () = sets.run() => Ok(()),
            () = booting => Ok(()),
            () = webhooks.run() => Ok(()),
            () = trying_out => Ok(()),
            // Ends when stopped, like the API, which may have requests to finish.
            () = async { carrying_out.await; std::future::pending().await } => Ok(()),
        };
        tracing::info!("stopped");
        if let Some(embedded) = embedded {
            embedded.shutdown().await;
        }
        served.map_err(|error| Failure::io("the server broke", &error))
    }
}

/// The address of S3 as sandboxes see it.
pub(super) fn seen_s3_endpoint(config: &Config, embedded: Option<&EmbeddedS3>) -> Option<String> {
    let configured = || {
        let s3 = config.s3.as_ref()?;
        s3.public_endpoint.clone().or_else(|| s3.endpoint.clone())
    };
    embedded.map(EmbeddedS3::endpoint).or_else(configured)
}

/// Whether browsers reach the server over TLS, its own or a gateway's.
fn is_reached_over_tls(config: &Config) -> bool {
    let server = &config.server;
    let of_gateway = server
        .public_url
        .as_ref()
        .is_some_and(|url| url.starts_with("https://"));
    server.tls_certificate.is_some() || of_gateway
}

/// The configured certificate of the server, if it has one.
///
/// # Errors
///
/// When it cannot be used.
pub(super) fn certificate(config: &Config) -> Result<Option<Certificate>, Failure> {
    let (Some(certificate), Some(key)) = (&config.server.tls_certificate, &config.server.tls_key) else {
        return Ok(None);
    };
    let certificate = Certificate::read(certificate, key);
    certificate
        .map(Some)
        .map_err(|error| Failure::io("cannot use the certificate", &error))
}

/// Regularly removes objects whose removal failed when the last record forgot them; never ends.
async fn sweep(api: &Api) {
    let mut ticks = interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        orphans::remove(api).await;
    }
}

/// Removes what the settings give up, again and again. A server that has just started leaves its operator time to look first.
async fn prune(api: &Api) {
    let every = api.retention.settings.every.duration();
    if every.is_zero() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(every).await;
        match api.retention.prune(false, None).await {
            Ok(pruned) => tracing::info!(
                removed = pruned.count(),
                freed_bytes = pruned.freed_bytes(),
                "pruned what [retention] gives up"
            ),
            Err(failure) => tracing::warn!(
                code = failure.code.name(),
                hint = failure.hint,
                "nothing is pruned until the next time: {failure}"
            ),
        }
    }
}

/// Excludes other servers from the data directory while the returned file is open.
fn lock(data_dir: &Path) -> Result<std::fs::File, Failure> {
    fs_err::create_dir_all(data_dir).map_err(|error| Failure::io("cannot make the data directory", &error))?;
    let path = data_dir.join("serve.lock");
    let file = fs_err::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|error| Failure::io("cannot lock the data directory", &error))?;
    let file = file.into_file();
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Failure::new(
            Code::AlreadyServed,
            format_args!("another `kiln serve` uses {}", data_dir.display()),
        )
        .hint("stop that one, or give this one a directory of its own with --data-dir")),
        Err(std::fs::TryLockError::Error(error)) => Err(Failure::io("cannot lock the data directory", &error)),
    }
}
