//! The configuration: one TOML file with strict keys, and variables that override it. Reads the file and the
//! environment; no network.

mod catalogue;
mod check;
mod containers;
mod engine;
mod keys;
mod kubernetes;
mod metrics;
mod near;
mod problem;
mod proxy;
mod reference;
mod retention;
mod s3;
mod sections;
mod signing;
mod source;
mod trust;
mod webhooks;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use kiln_records::{Code, Failure};
use serde::Deserialize;

pub(crate) use self::check::is_private;
pub use self::{
    catalogue::ChannelRule,
    check::Access,
    containers::{ContainerSettings, RegistryLogin, SecretSource, SiteRegistry, SiteSecret},
    engine::{DEFAULT_SOCKET, EngineUrl},
    kubernetes::{KubernetesSettings, PullPolicy, ServiceType, Toleration},
    metrics::is_token,
    problem::{Origin, Problem, first_of},
    proxy::ProxyUrl,
    reference::{reference, reference_tables},
    retention::{ImageRule, RetentionSettings, Series},
    s3::{ForeignBuckets, S3Settings},
    sections::{
        AuthMode, AuthSettings, BootCheckSettings, CapacitySettings, CatalogueSettings, DatabaseUrl,
        DockerEngineSettings, EmbeddedS3Settings, EmulationSettings, ForeignIsolation, IsolationSettings, JobSettings,
        LimitSettings, LogFormat, LogSettings, MetricsSettings, NetworkSettings, OidcSettings, RemoteBuildNodeSettings,
        RootCheckSettings, ServerSettings, ShellSettings, StoreSettings, TraceSettings, TrustedListenerSettings,
        WatchSettings, WebhookSettings,
    },
    signing::SigningSettings,
    trust::TrustSettings,
    webhooks::Receiver,
};

/// All settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory of Kiln's files.
    pub data_dir: PathBuf,
    /// The S3 service to use; none means the embedded one.
    pub s3: Option<S3Settings>,
    /// The embedded S3 service.
    pub embedded_s3: EmbeddedS3Settings,
    /// The database of records.
    pub store: StoreSettings,
    /// The server's addresses.
    pub server: ServerSettings,
    /// The addresses whose callers need no token.
    pub trusted_listener: TrustedListenerSettings,
    /// Signatures of images.
    pub signing: SigningSettings,
    /// What builds trust.
    pub trust: TrustSettings,
    /// What builds of Containerfiles get.
    pub containers: ContainerSettings,
    /// The addresses of metrics.
    pub metrics: MetricsSettings,
    /// Limits on requests.
    pub limits: LimitSettings,
    /// The catalogue.
    pub catalogue: CatalogueSettings,
    /// The receivers of webhooks.
    pub webhooks: WebhookSettings,
    /// Traces of jobs.
    pub traces: TraceSettings,
    /// The log.
    pub log: LogSettings,
    /// Authentication.
    pub auth: AuthSettings,
    /// The OpenID Connect issuer.
    pub oidc: OidcSettings,
    /// The resources and options of jobs.
    pub jobs: JobSettings,
    /// The shells of jobs.
    pub shell: ShellSettings,
    /// The isolation of jobs.
    pub isolation: IsolationSettings,
    /// The network of jobs.
    pub network: NetworkSettings,
    /// A container engine for jobs.
    pub docker: DockerEngineSettings,
    /// A cluster for jobs.
    pub kubernetes: KubernetesSettings,
    /// Emulation of other architectures.
    pub emulation: EmulationSettings,
    /// The checks of finished roots.
    pub root_checks: RootCheckSettings,
    /// This host's capacity for jobs.
    pub capacity: CapacitySettings,
    /// Boot checks of images.
    pub boot_checks: BootCheckSettings,
    /// The limits that end a job.
    pub watch: WatchSettings,
    /// The login to remote build nodes.
    pub remote_build_nodes: RemoteBuildNodeSettings,
    /// What the server removes by itself.
    pub retention: RetentionSettings,
    /// The file that was read, if any.
    file: Option<PathBuf>,
    /// The origin of each value that was set.
    origins: BTreeMap<(&'static str, &'static str), Origin>,
}

/// The configuration, in the form of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Values {
    data_dir: Option<PathBuf>,
    s3: Option<S3Settings>,
    embedded_s3: EmbeddedS3Settings,
    store: StoreSettings,
    server: ServerSettings,
    trusted_listener: TrustedListenerSettings,
    signing: SigningSettings,
    trust: TrustSettings,
    containers: ContainerSettings,
    metrics: MetricsSettings,
    limits: LimitSettings,
    catalogue: CatalogueSettings,
    webhooks: WebhookSettings,
    traces: TraceSettings,
    log: LogSettings,
    auth: AuthSettings,
    oidc: OidcSettings,
    jobs: JobSettings,
    shell: ShellSettings,
    isolation: IsolationSettings,
    network: NetworkSettings,
    docker: DockerEngineSettings,
    kubernetes: KubernetesSettings,
    emulation: EmulationSettings,
    root_checks: RootCheckSettings,
    capacity: CapacitySettings,
    boot_checks: BootCheckSettings,
    watch: WatchSettings,
    remote_build_nodes: RemoteBuildNodeSettings,
    retention: RetentionSettings,
}

impl Config {
    /// Forgets that keys of these sections were set, for a configuration whose sections were put back to their defaults.
    pub fn forget_origins(&mut self, sections: &[&str]) {
        self.origins.retain(|(section, _), _| !sections.contains(section));
    }

    /// The address that shells listen on.
    pub fn shells_listen(&self) -> IpAddr {
        let first = self.server.listen.0.first().map(SocketAddr::ip);
        self.shell.listen.or(first).unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    /// Reads the file (`path`, or the user's default file if it exists) and the environment. `data_dir` from the
    /// command line overrides both.
    ///
    /// # Errors
    ///
    /// `config_invalid` with the file and line, or with the variable.
    pub fn load(path: Option<&Path>, data_dir: Option<PathBuf>) -> Result<Self, Failure> {
        Self::read(path, data_dir)?
            .map_err(|problems| first_of(problems).unwrap_or_else(|| Failure::new(Code::ConfigInvalid, "it is wrong")))
    }

    /// Like [`Config::load`], but returns every problem of single keys.
    pub fn read(path: Option<&Path>, data_dir: Option<PathBuf>) -> Result<Result<Self, Vec<Problem>>, Failure> {
        let file = match path {
            Some(path) => Some(path.to_owned()),
            None => default_file()?,
        };
        let mut source = source::Source::default();
        if let Some(path) = &file {
            let text = fs_err::read_to_string(path)
                .map_err(|error| Failure::new(Code::ConfigUnreadable, error).hint("check --config and KILN_CONFIG"))?;
            source.add_file(path, &text);
        }
        source.add_environment(std::env::vars_os());
        if !source.problems.is_empty() {
            return Ok(Err(source.problems));
        }
        let values = Values::deserialize(source.values).map_err(|error| Failure::new(Code::ConfigInvalid, error))?;
        let mut origins = source.origins;
        if data_dir.is_some() {
            origins.insert(("", "data_dir"), Origin::CommandLine);
        }
        let data_dir = data_dir
            .or(values.data_dir)
            .or_else(|| under_home("XDG_DATA_HOME", ".local/share"));
        let data_dir = data_dir.ok_or_else(|| {
            Failure::new(Code::NoDataDir, "there is no data directory: HOME is not set").hint("use --data-dir DIR")
        })?;
        let data_dir = std::path::absolute(data_dir).map_err(|error| Failure::io("data directory", &error))?;
        Ok(Ok(Self {
            data_dir,
            s3: values.s3,
            embedded_s3: values.embedded_s3,
            store: values.store,
            server: values.server,
            trusted_listener: values.trusted_listener,
            signing: values.signing,
            trust: values.trust,
            containers: values.containers,
            metrics: values.metrics,
            limits: values.limits,
            catalogue: values.catalogue,
            webhooks: values.webhooks,
            traces: values.traces,
            log: values.log,
            auth: values.auth,
            oidc: values.oidc,
            jobs: values.jobs,
            shell: values.shell,
            isolation: values.isolation,
            network: values.network,
            docker: values.docker,
            kubernetes: values.kubernetes,
            emulation: values.emulation,
            root_checks: values.root_checks,
            capacity: values.capacity,
            boot_checks: values.boot_checks,
            watch: values.watch,
            remote_build_nodes: values.remote_build_nodes,
            retention: values.retention,
            file,
            origins,
        }))
    }

    /// The file that was read, if any.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// SQLite's file of records.
    pub fn records_file(&self) -> PathBuf {
        self.data_dir.join("records.sqlite")
    }
}

/// Kiln's directory: from a variable, or else by default below the user's home directory.
fn under_home(variable: &str, default: &str) -> Option<PathBuf> {
    let set = std::env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from);
    let dir = set.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(default)));
    dir.map(|dir| dir.join("kiln"))
}

/// The user's default file, if it exists. A file that cannot be examined does not count as missing: it may be the one
/// that requires authentication.
fn default_file() -> Result<Option<PathBuf>, Failure> {
    let Some(path) = under_home("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("kiln.toml")) else {
        return Ok(None);
    };
    match path.try_exists() {
        Ok(exists) => Ok(exists.then_some(path)),
        Err(error) => {
            let detail = format!("cannot look for {}: {error}", path.display());
            Err(Failure::new(Code::ConfigUnreadable, detail).hint("check --config and KILN_CONFIG"))
        }
    }
}
