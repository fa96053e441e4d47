//! `kiln serve`: runs the API, and the embedded S3 service unless another one is configured.

use std::io::IsTerminal;

use clap::Args;
use kiln_records::{Failure, Recipe};
use tokio_util::sync::CancellationToken;

use super::{diagnostics, printer::Printer};
use crate::{
    client,
    config::{self, Access, Config, LogFormat},
    site::{self, Server},
    store::{Collection, Query, Side},
};

/// The most threads for requests: each costs memory, and they mostly wait for the database and S3.
const MOST_THREADS: usize = 8;

/// The most threads for blocking work: files of the embedded S3 service, and hashing.
const MOST_BLOCKING_THREADS: usize = 64;

/// Run the server until Ctrl-C or SIGTERM.
#[derive(Debug, Args)]
pub(super) struct ServeArguments {}

/// The async runtime of a serving process.
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
        start_log(config.log.format);
        let stop = super::signals::cancel_on_signal()?;
        let server = open(config, stop).await?;
        introduce(config, printer, &server).await;
        printer.result("ready");
        server.run(config).await
    }
}

/// Makes all parts of a server and opens its sockets. It answers once it runs, and ends when `stop` fires.
pub(super) async fn open(config: &Config, stop: CancellationToken) -> Result<Server, Failure> {
    if let Some(failure) = config::first_of(config.problems()) {
        return Err(failure);
    }
    site::allow_many_descriptors();
    Server::open(config, stop).await
}

/// The scheme of a server's addresses.
fn scheme(config: &Config) -> &'static str {
    if config.server.tls_certificate.is_some() {
        "https"
    } else {
        "http"
    }
}

/// The address of a server for its users.
pub(super) fn url(config: &Config, server: &Server) -> String {
    let first = || {
        let address = server.addresses().first()?;
        Some(format!("{}://{address}", scheme(config)))
    };
    config.server.public_url.clone().or_else(first).unwrap_or_default()
}

/// The commands that lead from a new site to its first image.
const FIRST_IMAGE: [&str; 3] = [
    "public-keys create --name me --public-key ~/.ssh/id_ed25519.pub",
    "recipes create --from DIRECTORY --name compute --linux-distribution debian",
    "jobs create --job-type create --artifact-id compute --public-key-id me --image-root-archive-name compute --follow",
];

/// Prints the addresses of all parts, and how to use them.
async fn introduce(config: &Config, printer: &Printer, server: &Server) {
    let scheme = scheme(config);
    for address in server.addresses() {
        printer.result(format_args!("server     {scheme}://{address}"));
    }
    let url = url(config, server);
    printer.result(format_args!("dashboard  {url}/ui"));
    let records = match &config.store.url {
        Some(url) => url.to_string(),
        None => config.records_file().display().to_string(),
    };
    printer.result(format_args!("records    {records}"));
    match (server.embedded_s3(), &config.s3) {
        (Some(endpoint), _) => {
            printer.result(format_args!("s3         {endpoint}"));
            let keys = config.data_dir.join("s3/credentials.json");
            printer.result(format_args!("s3 keys    {}", keys.display()));
        }
        (None, Some(s3)) => {
            let endpoint = s3.endpoint.as_deref().unwrap_or("Amazon's");
            printer.result(format_args!("s3         {endpoint}"));
        }
        (None, None) => {}
    }
    let trusted = &config.trusted_listener;
    for address in server.trusted_addresses() {
        let networks: Vec<String> = trusted.networks.iter().map(ToString::to_string).collect();
        let (networks, role) = (networks.join(" and "), trusted.role.name());
        printer.result(format_args!(
            "NO TOKENS  http://{address}: every host in {networks} has the role `{role}`"
        ));
    }
    for address in server.metrics_addresses() {
        let is_plain = config.metrics.listen.are_loopback();
        let scheme = if is_plain { "http" } else { scheme };
        printer.result(format_args!("metrics    {scheme}://{address}/metrics"));
    }
    match config.access() {
        Access::Open => {
            let reach = match config.server.hosts.as_slice() {
                [] => "only this host can reach the server".to_owned(),
                hosts => format!(
                    "this host, and callers whose proxy here asks for {}",
                    hosts.join(" or ")
                ),
            };
            printer.result(format_args!("auth       off: {reach}"));
            show_next(printer, server, &url, "").await;
        }
        Access::Authenticated => {
            let oidc = config.oidc.issuer.as_deref();
            let also = oidc
                .map(|issuer| format!(", of Kiln and of {issuer}"))
                .unwrap_or_default();
            printer.result(format_args!("auth       tokens{also}"));
            // The hint about tokens is only a courtesy, so errors do not matter here.
            if oidc.is_none() && server.store().tokens().await.is_ok_and(|tokens| tokens.is_empty()) {
                printer.result("           none yet: create one with `kiln tokens create --name NAME --role admin`");
            }
            show_next(printer, server, &url, "KILN_TOKEN=… ").await;
        }
    }
}

/// Prints what may be done next: at a new site the way to its first image. `before` comes before each command.
async fn show_next(printer: &Printer, server: &Server, url: &str, before: &str) {
    let first = Query {
        limit: 1,
        ..Query::default()
    };
    let recipes = Collection::<Recipe>::page(&**server.store(), Side::Live, &first).await;
    // It is only a courtesy, so a failure does not matter here.
    if !recipes.is_ok_and(|recipes| recipes.is_empty()) {
        printer.result(format_args!("try        {before}kiln images list --server {url}"));
        return;
    }
    let at = if url == client::Server::DEFAULT {
        String::new()
    } else {
        format!(" --server {url}")
    };
    for (label, command) in ["next", "", ""].iter().zip(FIRST_IMAGE) {
        printer.result(format_args!("{label:10} {before}kiln {command}{at}"));
    }
}

/// Starts the log.
fn start_log(format: LogFormat) {
    let log = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(diagnostics::filter("warn,kiln=info"));
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).with_span_list(false).init(),
    }
}
