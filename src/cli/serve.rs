//! `kiln serve`: the API, and the embedded S3 service where no other is configured.

use std::{io::IsTerminal, path::Path, sync::Arc, time::Duration};

use clap::Args;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::{printer::Printer, serve_jobs::JobService};
use crate::{
    api::{
        self, Api, Shared,
        auth::{Auth, oidc::Oidc},
        limits::Limits,
        orphans,
        serve::{self, Sockets},
        tls::Certificate,
    },
    artifacts::{ArtifactStore, embedded::EmbeddedS3},
    config::{self, Access, Config, LogFormat},
    records::{Code, Failure},
    store::{LogFeed, SharedStore},
};

/// How often objects are looked for that no record names any more.
const SWEEP_EVERY: Duration = Duration::from_secs(67);

/// Threads that answer requests, at most: each costs memory, and they wait for the database and S3 most of the time.
const MOST_THREADS: usize = 8;

/// Threads for what blocks: files of the embedded S3 service, and hashing.
const MOST_BLOCKING_THREADS: usize = 64;

/// Run the server until Ctrl-C or SIGTERM.
#[derive(Debug, Args)]
pub(super) struct ServeArguments {}

/// The threads of a process that serves.
pub(super) fn runtime() -> tokio::runtime::Builder {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    builder
        .worker_threads(cpus.min(MOST_THREADS))
        .max_blocking_threads(MOST_BLOCKING_THREADS);
    builder
}

impl ServeArguments {
    pub(super) async fn run(self, config: &Config, printer: &Printer) -> Result<(), Failure> {
        if let Some(failure) = config::first_of(config.problems()) {
            return Err(failure);
        }
        start_log(config.log.format);
        let stop = super::build::cancel_on_signal()?;
        let _lock = lock(&config.data_dir)?;
        allow_many_connections();
        let store = config.open_store().await?;
        let outcome = serve(config, printer, Arc::clone(&store), &stop).await;
        store.close().await;
        outcome
    }
}

async fn serve(
    config: &Config,
    printer: &Printer,
    store: SharedStore,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let oidc = Oidc::new(&config.oidc)?.map(Arc::new);
    let certificate = match (&config.server.tls_certificate, &config.server.tls_key) {
        (Some(certificate), Some(key)) => Some(
            Certificate::read(certificate, key).map_err(|error| Failure::io("cannot use the certificate", &error))?,
        ),
        _ => None,
    };
    let sockets = Sockets::open(&config.server.listen.0).await?;
    let (artifacts, embedded) = artifacts(config).await?;
    let auth = match config.access() {
        Access::Open => Auth::open(&config.limits),
        Access::Authenticated => Auth::guarded(Arc::clone(&store), oidc.clone(), &config.limits),
    };
    introduce(config, printer, &sockets, embedded.as_ref(), &store).await;

    let feed = Arc::new(LogFeed::default());
    let jobs = if config.jobs.run {
        let endpoint = embedded.as_ref().map(EmbeddedS3::endpoint);
        // As sandboxes see it.
        let seen = config
            .s3
            .as_ref()
            .and_then(|s3| s3.public_endpoint.clone().or_else(|| s3.endpoint.clone()));
        let endpoint = endpoint.or(seen);
        let (store, artifacts) = (Arc::clone(&store), artifacts.clone());
        Some(JobService::new(
            config,
            store,
            artifacts,
            endpoint.as_deref(),
            Arc::clone(&feed),
        )?)
    } else {
        None
    };
    let reachable = |jobs: &JobService| api::agent::router(jobs.orchestrator.clone());
    let agents = jobs
        .as_ref()
        .filter(|_| config.server.agent_url.is_some())
        .map(reachable);
    let api = Api::new(Shared {
        store,
        artifacts,
        orchestrator: jobs.as_ref().map(|jobs| Arc::clone(&jobs.orchestrator)),
        jobs: config.jobs.clone(),
        upload_bytes: config.limits.upload_bytes.0,
        remote_nodes: config.node_login(),
        feed,
        stop: stop.clone(),
        schedule_changed: Arc::default(),
    });
    let carrying_out = async {
        match jobs {
            Some(jobs) => jobs.run(config, stop).await,
            None => std::future::pending().await,
        }
    };
    let app = serve::app(api.clone().router(), agents, auth, Limits::from(&config.limits));
    let following = async {
        match &oidc {
            Some(oidc) => oidc.follow().await,
            None => std::future::pending().await,
        }
    };
    let scheduler = api.scheduler();
    printer.result("ready");
    tracing::info!(addresses = ?sockets.addresses(), "ready");
    let served = tokio::select! {
        served = sockets.serve(app, certificate, stop) => served,
        () = following => Ok(()),
        () = sweep(&api) => Ok(()),
        () = scheduler.run() => Ok(()),
        // It ends when told to stop, as the API does, which may have requests to finish.
        () = async { carrying_out.await; std::future::pending().await } => Ok(()),
    };
    tracing::info!("stopped");
    if let Some(embedded) = embedded {
        embedded.shutdown().await;
    }
    served.map_err(|error| Failure::io("the server broke", &error))
}

/// Removes, now and then, objects that could not be removed when the last record forgot them; never ends.
async fn sweep(api: &Api) {
    let mut ticks = interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        orphans::remove(api).await;
    }
}

/// The S3 service to use, and the embedded one if it is that.
async fn artifacts(config: &Config) -> Result<(ArtifactStore, Option<EmbeddedS3>), Failure> {
    if let Some(settings) = &config.s3 {
        return Ok((ArtifactStore::connect(settings).await?, None));
    }
    let embedded = config.embedded_s3_at(config.embedded_s3.listen).await.map_err(|failure| {
        let failed_address = failure.code == Code::S3EmbeddedAddress;
        let hint = "something else listens there; stop it, or set another address as `listen` in [embedded_s3] or as \
                    KILN__EMBEDDED_S3__LISTEN";
        if failed_address { failure.hint(hint) } else { failure }
    })?;
    Ok((ArtifactStore::connect(&embedded.settings()).await?, Some(embedded)))
}

/// Says where everything is and how to use it.
async fn introduce(
    config: &Config,
    printer: &Printer,
    sockets: &Sockets,
    embedded: Option<&EmbeddedS3>,
    store: &SharedStore,
) {
    let scheme = if config.server.tls_certificate.is_some() {
        "https"
    } else {
        "http"
    };
    for address in sockets.addresses() {
        printer.result(format_args!("server     {scheme}://{address}"));
    }
    let first = sockets
        .addresses()
        .first()
        .map(|address| format!("{scheme}://{address}"));
    let url = config.server.public_url.clone().or(first).unwrap_or_default();
    let records = match &config.store.url {
        Some(url) => url.to_string(),
        None => config.records_file().display().to_string(),
    };
    printer.result(format_args!("records    {records}"));
    match (embedded, &config.s3) {
        (Some(embedded), _) => {
            printer.result(format_args!("s3         {}", embedded.endpoint()));
            let keys = config.data_dir.join("s3/credentials.json");
            printer.result(format_args!("s3 keys    {}", keys.display()));
        }
        (None, Some(s3)) => {
            let endpoint = s3.endpoint.as_deref().unwrap_or("Amazon's");
            printer.result(format_args!("s3         {endpoint}"));
        }
        (None, None) => {}
    }
    match config.access() {
        Access::Open => {
            printer.result("auth       off: only this host can reach the server");
            printer.result(format_args!("try        kiln images list --server {url}"));
        }
        Access::Authenticated => {
            let oidc = config.oidc.issuer.as_deref();
            let also = oidc
                .map(|issuer| format!(", of Kiln and of {issuer}"))
                .unwrap_or_default();
            printer.result(format_args!("auth       tokens{also}"));
            // Whether there are any is only a courtesy here.
            if oidc.is_none() && store.tokens().await.is_ok_and(|tokens| tokens.is_empty()) {
                printer.result("           there is none yet: `kiln tokens create --name NAME --role admin` makes one");
            }
            printer.result(format_args!("try        KILN_TOKEN=… kiln images list --server {url}"));
        }
    }
}

/// Sees to it that no other server uses the data directory, as long as what is returned lives.
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

/// The usual limit of 1024 open files is meant for programs of another kind.
fn allow_many_connections() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// From here on, what happens is logged.
fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_env("KILN_LOG").unwrap_or_else(|_| "warn,kiln=info".into());
    let log = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).with_span_list(false).init(),
    }
}
