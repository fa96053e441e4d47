//! Settings: one TOML file with strict keys, variables that win over it, and where things are kept.

mod check;
mod drivers;
mod near;
mod reference;
mod sections;
mod source;

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use reqwest::Url;
use serde::Deserialize;

pub(crate) use self::check::{is_private, names_here};
pub use self::{
    check::Access,
    reference::{reference, reference_tables},
    sections::{
        AuthMode, AuthSettings, CapacitySettings, DatabaseUrl, DockerEngineSettings, EmbeddedS3Settings,
        EmulationSettings, ForeignIsolation, IsolationSettings, JobSettings, LimitSettings, LogFormat, LogSettings,
        NetworkSettings, OidcSettings, RemoteBuildNodeSettings, ServerSettings, ShellSettings, StoreSettings,
        WatchSettings,
    },
    source::Origin,
};
use crate::{
    artifacts::{ArtifactStore, S3Settings, embedded::EmbeddedS3},
    records::Failure,
    sandbox::{namespace::make_private_dir, toolboxes::Toolboxes},
    settings::Section,
    store::{PostgresStore, SharedStore, SqliteStore},
};

/// Every section, in the order of the reference.
const SECTIONS: &[Section] = &[
    ServerSettings::SECTION,
    AuthSettings::SECTION,
    OidcSettings::SECTION,
    LimitSettings::SECTION,
    LogSettings::SECTION,
    StoreSettings::SECTION,
    S3Settings::SECTION,
    EmbeddedS3Settings::SECTION,
    JobSettings::SECTION,
    ShellSettings::SECTION,
    IsolationSettings::SECTION,
    NetworkSettings::SECTION,
    DockerEngineSettings::SECTION,
    EmulationSettings::SECTION,
    CapacitySettings::SECTION,
    WatchSettings::SECTION,
    RemoteBuildNodeSettings::SECTION,
];

/// Everything that can be set.
#[derive(Debug)]
pub struct Config {
    /// Where Kiln keeps its files.
    pub data_dir: PathBuf,
    /// The S3 service to use; none means the embedded one.
    pub s3: Option<S3Settings>,
    /// The embedded S3 service.
    pub embedded_s3: EmbeddedS3Settings,
    /// Where records are kept.
    pub store: StoreSettings,
    /// Where the server listens.
    pub server: ServerSettings,
    /// What one caller may ask for.
    pub limits: LimitSettings,
    /// What is logged.
    pub log: LogSettings,
    /// Who may use the API.
    pub auth: AuthSettings,
    /// Whose tokens are accepted.
    pub oidc: OidcSettings,
    /// What jobs get.
    pub jobs: JobSettings,
    /// The shells of jobs.
    pub shell: ShellSettings,
    /// What keeps jobs apart.
    pub isolation: IsolationSettings,
    /// What jobs can reach.
    pub network: NetworkSettings,
    /// A container engine that jobs may run in.
    pub docker: DockerEngineSettings,
    /// How images of other architectures are built.
    pub emulation: EmulationSettings,
    /// What this host gives to jobs.
    pub capacity: CapacitySettings,
    /// When jobs are given up.
    pub watch: WatchSettings,
    /// How remote build nodes are reached.
    pub remote_build_nodes: RemoteBuildNodeSettings,
    /// The file that was read, if there is one.
    file: Option<PathBuf>,
    /// Where each value comes from that somebody set.
    origins: BTreeMap<(&'static str, &'static str), Origin>,
}

/// The configuration, as the file has it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Values {
    data_dir: Option<PathBuf>,
    s3: Option<S3Settings>,
    embedded_s3: EmbeddedS3Settings,
    store: StoreSettings,
    server: ServerSettings,
    limits: LimitSettings,
    log: LogSettings,
    auth: AuthSettings,
    oidc: OidcSettings,
    jobs: JobSettings,
    shell: ShellSettings,
    isolation: IsolationSettings,
    network: NetworkSettings,
    docker: DockerEngineSettings,
    emulation: EmulationSettings,
    capacity: CapacitySettings,
    watch: WatchSettings,
    remote_build_nodes: RemoteBuildNodeSettings,
}

/// Something that is wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file and line, or the variable; none for what nobody set.
    pub origin: Option<Origin>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

impl Problem {
    fn new(origin: impl Into<Option<Origin>>, what: impl fmt::Display) -> Self {
        Self {
            origin: origin.into(),
            what: what.to_string(),
            hint: "`kiln config reference` lists every key".to_owned(),
        }
    }

    fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = hint.to_string();
        self
    }

    /// Its line in the file; what is in none comes after.
    fn line(&self) -> usize {
        match &self.origin {
            Some(Origin::File(_, line)) => *line,
            _ => usize::MAX,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Some(origin) => write!(f, "{origin}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Failure::new("config_invalid", &problem).hint(problem.hint)
    }
}

/// The first problem as a failure that says how many more there are.
pub fn first_of(problems: Vec<Problem>) -> Option<Failure> {
    let more = problems.len().saturating_sub(1);
    let mut failure = Failure::from(problems.into_iter().next()?);
    if more > 0 {
        let hint = failure.hint.take().unwrap_or_default();
        failure = failure.hint(format_args!("{hint}\n      `kiln config check` tells {more} more"));
    }
    Some(failure)
}

impl Config {
    /// Reads the file (`path`, or the user's own if there is one) and the environment. `data_dir` from the command line
    /// wins over both.
    ///
    /// # Errors
    ///
    /// `config_invalid` with file and line, or the variable.
    pub fn load(path: Option<&Path>, data_dir: Option<PathBuf>) -> Result<Self, Failure> {
        Self::read(path, data_dir)?
            .map_err(|problems| first_of(problems).unwrap_or_else(|| Failure::new("config_invalid", "it is wrong")))
    }

    /// As [`Config::load`], with every problem that single keys have.
    pub fn read(path: Option<&Path>, data_dir: Option<PathBuf>) -> Result<Result<Self, Vec<Problem>>, Failure> {
        let file = match path {
            Some(path) => Some(path.to_owned()),
            None => default_file()?,
        };
        let mut source = source::Source::default();
        if let Some(path) = &file {
            let text = fs_err::read_to_string(path)
                .map_err(|error| Failure::new("config_unreadable", error).hint("check --config and KILN_CONFIG"))?;
            source.add_file(path, &text);
        }
        source.add_environment(std::env::vars_os());
        if !source.problems.is_empty() {
            return Ok(Err(source.problems));
        }
        let values = Values::deserialize(source.values).map_err(|error| Failure::new("config_invalid", error))?;
        let mut origins = source.origins;
        if data_dir.is_some() {
            origins.insert(("", "data_dir"), Origin::CommandLine);
        }
        let data_dir = data_dir
            .or(values.data_dir)
            .or_else(|| under_home("XDG_DATA_HOME", ".local/share"));
        let data_dir = data_dir.ok_or_else(|| {
            Failure::new("no_data_dir", "no place for Kiln's files is known: HOME is not set")
                .hint("use --data-dir DIR")
        })?;
        let data_dir = std::path::absolute(data_dir).map_err(|error| Failure::io("data directory", &error))?;
        Ok(Ok(Self {
            data_dir,
            s3: values.s3,
            embedded_s3: values.embedded_s3,
            store: values.store,
            server: values.server,
            limits: values.limits,
            log: values.log,
            auth: values.auth,
            oidc: values.oidc,
            jobs: values.jobs,
            shell: values.shell,
            isolation: values.isolation,
            network: values.network,
            docker: values.docker,
            emulation: values.emulation,
            capacity: values.capacity,
            watch: values.watch,
            remote_build_nodes: values.remote_build_nodes,
            file,
            origins,
        }))
    }

    /// The file that was read, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The directory of this server's sockets for agents. Sandboxes see it; on the host only this user gets to it.
    pub fn doors_dir(&self) -> Result<PathBuf, Failure> {
        let outer = self.data_dir.join("agents");
        make_private_dir(&outer)?;
        let inner = outer.join("doors");
        let failed = |error: std::io::Error| Failure::io("cannot make the agents' directory", &error);
        fs_err::create_dir_all(&inner).map_err(failed)?;
        fs_err::set_permissions(&inner, PermissionsExt::from_mode(0o755)).map_err(failed)?;
        Ok(inner)
    }

    /// Where jobs keep their records and logs.
    pub fn jobs_dir(&self) -> PathBuf {
        self.data_dir.join("jobs")
    }

    /// The S3 service to use, and the embedded one if it is that, which lives as long as what is returned.
    pub async fn artifact_store(&self) -> Result<(ArtifactStore, Option<EmbeddedS3>), Failure> {
        if let Some(settings) = &self.s3 {
            return Ok((ArtifactStore::connect(settings).await?, None));
        }
        let embedded = self.embedded_s3(0).await?;
        Ok((ArtifactStore::connect(&embedded.settings()).await?, Some(embedded)))
    }

    /// Starts the embedded S3 service on a loopback port; 0 means any that is free.
    pub async fn embedded_s3(&self, port: u16) -> Result<EmbeddedS3, Failure> {
        self.embedded_s3_at(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
    }

    /// Starts the embedded S3 service on an address.
    pub async fn embedded_s3_at(&self, address: SocketAddr) -> Result<EmbeddedS3, Failure> {
        Ok(EmbeddedS3::start(&self.data_dir.join("s3"), address).await?)
    }

    /// SQLite's file of records.
    pub fn records_file(&self) -> PathBuf {
        self.data_dir.join("records.sqlite")
    }

    /// Opens the store of records.
    ///
    /// # Errors
    ///
    /// `store_unavailable`; `config_invalid` when the password or the address makes no sense.
    pub async fn open_store(&self) -> Result<SharedStore, Failure> {
        let Some(url) = &self.store.url else {
            fs_err::create_dir_all(&self.data_dir)
                .map_err(|error| Failure::io("cannot make the data directory", &error))?;
            return Ok(Arc::new(SqliteStore::open(&self.records_file()).await?));
        };
        let password = match (&self.store.password, &self.store.password_file) {
            (Some(password), _) => Some(password.expose().to_owned()),
            (None, Some(path)) => {
                let text = fs_err::read_to_string(path).map_err(|error| Failure::new("config_invalid", error))?;
                Some(text.trim_end_matches(['\r', '\n']).to_owned())
            }
            (None, None) => None,
        };
        let url = with_password(url, password.as_deref()).ok_or_else(|| {
            Failure::new("config_invalid", "[store] url is no address of a PostgreSQL database")
                .hint("it looks like postgresql://kiln@db.example.org/kiln")
        })?;
        Ok(Arc::new(PostgresStore::connect(&url).await?))
    }

    /// The agent's program: beside this one, or where `KILN_AGENT` says.
    ///
    /// # Errors
    ///
    /// `no_agent` when it is not there, `agent_not_static` when it would not run in every root file system.
    pub fn agent(&self) -> Result<PathBuf, Failure> {
        let beside = || Some(std::env::current_exe().ok()?.with_file_name("kiln-agent"));
        let path = std::env::var_os("KILN_AGENT")
            .map(PathBuf::from)
            .or_else(beside)
            .unwrap_or_default();
        let program = fs_err::read(&path).map_err(|error| {
            Failure::new("no_agent", format!("the agent is not there: {error}"))
                .hint("`make build` puts it beside kiln; KILN_AGENT names another place")
        })?;
        // A static program names no loader; the name stands near the start of every dynamic one.
        let head = &program[..program.len().min(4096)];
        if head
            .windows(7)
            .any(|window| window == b"/ld-lin" || window == b"/ld64.s")
        {
            return Err(
                Failure::new("agent_not_static", format!("{} is not static", path.display()))
                    .hint("`make build` builds a static one"),
            );
        }
        Ok(path)
    }

    /// The toolboxes of this data directory.
    pub fn toolboxes(&self) -> Result<Toolboxes, Failure> {
        Toolboxes::new(&self.data_dir.join("toolboxes"), self.namespace_driver()?)
    }
}

/// The whole address of a database.
fn with_password(url: &DatabaseUrl, password: Option<&str>) -> Option<String> {
    let mut whole = Url::parse(url.expose()).ok()?;
    if !matches!(whole.scheme(), "postgresql" | "postgres") {
        return None;
    }
    if let Some(password) = password
        && whole.set_password(Some(password)).is_err()
    {
        // Without a host, as for a socket in a directory, there is no other place for it.
        whole.query_pairs_mut().append_pair("password", password);
    }
    Some(whole.into())
}

/// Kiln's directory where a variable says, else where it is by default below the user's own.
fn under_home(variable: &str, default: &str) -> Option<PathBuf> {
    let set = std::env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from);
    let dir = set.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(default)));
    dir.map(|dir| dir.join("kiln"))
}

/// The user's own file, if there is one. One that cannot be looked at is not taken for one that is not there: it may
/// be what asks for authentication.
fn default_file() -> Result<Option<PathBuf>, Failure> {
    let Some(path) = under_home("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("kiln.toml")) else {
        return Ok(None);
    };
    match path.try_exists() {
        Ok(exists) => Ok(exists.then_some(path)),
        Err(error) => {
            let detail = format!("cannot look for {}: {error}", path.display());
            Err(Failure::new("config_unreadable", detail).hint("check --config and KILN_CONFIG"))
        }
    }
}
