//! The sections of the configuration except `[s3]`, which is [`S3Settings`](super::S3Settings). Pure: no I/O.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize, Serializer};

use crate::{
    records::{Secret, TwinLevel},
    settings,
    settings::{Addresses, Destination, Period, Ports, Size},
};

settings! {
    /// The embedded S3 service of `kiln serve`, used where there is no `[s3]`.
    ["embedded_s3"]
    pub struct EmbeddedS3Settings {
        /// Where it listens. Only loopback addresses are possible: the protocol is not encrypted here.
        listen: std::net::SocketAddr = ([127, 0, 0, 1], 9001).into();
    }
}

settings! {
    /// Where records are kept.
    ["store"]
    pub struct StoreSettings {
        /// The PostgreSQL database. Default: SQLite, in `records.sqlite` in the data directory.
        url: Option<DatabaseUrl> = None, like "\"postgresql://kiln@db.example.org/kiln\"";
        /// The database's password, if it is not in `url`. `KILN__STORE__PASSWORD` keeps it out of files.
        password: Option<Secret> = None, like "\"…\"";
        /// A file with the password, as secret managers make them.
        password_file: Option<PathBuf> = None, like "\"/run/secrets/kiln-database\"";
    }
}

settings! {
    /// Where `kiln serve` listens.
    ["server"]
    pub struct ServerSettings {
        /// The address, or a list of them. Others than loopback ones need authentication and TLS.
        listen: Addresses = Addresses(vec![([127, 0, 0, 1], 9000).into()]);
        /// The certificate, with those of intermediate authorities, as PEM. Read again when it changes.
        tls_certificate: Option<PathBuf> = None, like "\"/etc/kiln/tls.pem\"";
        /// The private key that belongs to it, as PEM.
        tls_key: Option<PathBuf> = None, like "\"/etc/kiln/tls.key\"";
        /// Listen without TLS on addresses that others can reach, as behind a gateway that has the certificate.
        insecure_http: bool = false;
        /// Where agents find this server that are on other hosts, or in virtual machines of a container engine. It is
        /// served on all of `listen`. Default: there are no such.
        agent_url: Option<String> = None, like "\"https://kiln.example.org:9000\"";
        /// The server's address as its users see it. Default: the first of `listen`.
        public_url: Option<String> = None, like "\"https://kiln.example.org\"";
    }
}

settings! {
    /// What one caller may ask for.
    ["limits"]
    pub struct LimitSettings {
        /// The largest JSON body.
        body_bytes: Size = Size(1 << 20);
        /// The largest file that is taken over the API: a recipe's archive, an artifact of an image.
        upload_bytes: Size = Size(20 << 30);
        /// Requests per second that a token or, without one, an address may make on average; 0 means any number.
        requests_per_second: u32 = 500;
        /// Requests that it may make at once.
        burst: u32 = 2000;
        /// Wrong tokens per minute from one address before it is told to wait; 0 means any number.
        failed_logins_per_minute: u32 = 20;
        /// How long a request may take to be read, and then to be answered.
        request_timeout: Period = Period::seconds(60);
    }
}

settings! {
    /// What `kiln serve` says of its work on standard error. `KILN_LOG` says how much: `info`, `kiln=debug,warn`.
    ["log"]
    pub struct LogSettings {
        /// `text` for people, `json` for machines.
        format: LogFormat = LogFormat::Text;
    }
}

settings! {
    /// Who may use the API. docs/auth.md says more.
    ["auth"]
    pub struct AuthSettings {
        /// `required`: every request needs a token. `auto`: likewise if `[oidc]` is there; without it nobody needs one,
        /// and the server starts on loopback addresses only.
        mode: AuthMode = AuthMode::Auto;
    }
}

settings! {
    /// An OpenID Connect issuer, such as Keycloak, whose tokens are accepted besides Kiln's own.
    ["oidc"]
    pub struct OidcSettings {
        /// The issuer's address, exactly as its tokens have it in `iss`.
        issuer: Option<String> = None, like "\"https://keycloak.example.org/realms/site\"";
        /// What tokens must have in `aud`.
        audience: Option<String> = None, like "\"kiln\"";
        /// The claim with the caller's roles: names of members with dots between them.
        role_claim: String = "realm_access.roles".to_owned();
        /// Roles there that may look at everything.
        read_roles: Vec<String> = vec!["kiln-read".to_owned()];
        /// Roles that may also create, change and delete single records.
        write_roles: Vec<String> = vec!["kiln-write".to_owned()];
        /// Roles that may do everything.
        admin_roles: Vec<String> = vec!["kiln-admin".to_owned()];
        /// Authorities to trust besides the system's when talking to the issuer, a PEM file.
        ca_bundle: Option<PathBuf> = None, like "\"/etc/ssl/certs/site.pem\"";
        /// How often the issuer's keys are read again. An unknown key makes that happen at once, once a minute at most.
        jwks_refresh: Period = Period::seconds(3600);
    }
}

settings! {
    /// Jobs: whether they are carried out, and what they get that do not say otherwise.
    ["jobs"]
    pub struct JobSettings {
        /// Whether this server carries jobs out. `false`: it keeps their records, and somebody else does.
        run: bool = true;
        /// Space for an image's root, in GiB.
        default_image_size_gib: u32 = 60;
        /// Memory, in GiB.
        default_mem_size_gib: u32 = 8;
        /// Whether a customize job for x86_64 gets a kernel of its own unless it says `require_dkms: false`.
        enable_dkms: bool = true;
        /// The network over which users reach a job's shell.
        access_subnet: String = "cmn".to_owned();
        /// The domain of that network.
        access_domain: String = "shasta.local".to_owned();
        /// The Kubernetes namespace that jobs name.
        namespace: String = "ims".to_owned();
    }
}

settings! {
    /// The shells of jobs: a port for each, for ssh.
    ["shell"]
    pub struct ShellSettings {
        /// The address that they are listened for on. Default: that of the first `listen` of the server.
        listen: Option<IpAddr> = None, like "\"0.0.0.0\"";
        /// The host that jobs say they are reached at. Default: the address that is listened on; if that is every one,
        /// this host's name.
        host: Option<String> = None, like "\"build.example.org\"";
        /// The ports. A job that has a shell keeps one from its beginning to its end.
        ports: Ports = Ports { first: 22000, last: 22999 };
        /// How long a shell that nobody uses stays open. Each use begins it anew.
        idle: Period = Period::seconds(12 * 3600);
        /// How long a shell stays open in any case.
        longest: Period = Period::seconds(7 * 86_400);
    }
}

settings! {
    /// What keeps jobs apart.
    ["isolation"]
    pub struct IsolationSettings {
        /// Where jobs run that are for another architecture than the host's or that have `require_dkms`. `vm`: in a
        /// virtual machine, or not at all. `namespace`: on the host's kernel, as other jobs.
        foreign: ForeignIsolation = ForeignIsolation::Vm;
        /// Ports of the host's loopback that jobs may reach, as for a package repository there. Everything else there is
        /// out of their reach.
        loopback_ports: Vec<u16> = Vec::new();
    }
}

settings! {
    /// What jobs can reach. The server, S3 and the resolver of names they always can; this host's loopback and other
    /// jobs never.
    ["network"]
    pub struct NetworkSettings {
        /// Hosts, addresses and networks, such as those of the package repositories. Default: everything that is not
        /// denied. Names are asked for when a job starts.
        allow: Vec<Destination> = Vec::new();
        /// What they never reach. Default: the addresses where clouds give away credentials.
        deny: Vec<Destination> = metadata_services();
    }
}

/// The addresses at which clouds describe a machine and hand out its credentials: link-local ones for most, and one
/// each for AWS over IPv6, and Alibaba.
fn metadata_services() -> Vec<Destination> {
    let of = |network: [u8; 4], length| Destination::Network(IpNet::new_assert(Ipv4Addr::from(network).into(), length));
    let aws = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    vec![
        of([169, 254, 0, 0], 16),
        of([100, 100, 100, 200], 32),
        Destination::Network(IpNet::new_assert(aws.into(), 128)),
    ]
}

settings! {
    /// A container engine that jobs may run in. Without it they run on this host, in namespaces and virtual machines that
    /// Kiln makes by itself. docs/docker.md says more.
    ["docker"]
    pub struct DockerEngineSettings {
        /// Where it is, as in `DOCKER_HOST`: `unix:///var/run/docker.sock`, `tcp://host:2376` (with TLS),
        /// `ssh://user@host`. Docker or Podman.
        engine: Option<String> = None, like "\"unix:///var/run/docker.sock\"";
        /// The directory with `key.pem`, `cert.pem` and `ca.pem` for `tcp://`.
        certificates: Option<PathBuf> = None, like "\"/etc/kiln/docker\"";
        /// The engine's runtime that gives each container a virtual machine, such as `kata`. kata/README.md shows how to
        /// get there.
        vm_runtime: Option<String> = None, like "\"kata\"";
    }
}

settings! {
    /// How images of other architectures than the host's are built.
    ["emulation"]
    pub struct EmulationSettings {
        /// Which tools of an image may run as native twins while it is built: `off`, `tools`, `shell` or `full`. Recipes
        /// and jobs can say otherwise; docs/emulation.md says more.
        twins: TwinLevel = TwinLevel::Full;
    }
}

settings! {
    /// What this host gives to jobs. A job waits until what it needs is free.
    ["capacity"]
    pub struct CapacitySettings {
        /// Jobs at the same time. Default: one for each CPU.
        jobs: Option<u32> = None, like "4";
        /// Memory for all jobs together. Default: nine tenths of the host's.
        memory: Option<Size> = None, like "\"48GiB\"";
        /// Memory that is set aside for a recipe's first build that does not say `job_mem_size`. Later ones get what the
        /// last ones used, and a quarter more.
        first_memory: Size = Size(2 << 30);
        /// Disk that is set aside for a recipe's first build that does not say `build_env_size`. Later ones likewise.
        first_disk: Size = Size(10 << 30);
        /// Free disk that is left alone. Below half of it, the job with the most is ended.
        disk_floor: Size = Size(2 << 30);
        /// Free inodes that are left alone.
        inode_floor: u32 = 20_000;
        /// CPUs that one job may use. Default: all.
        cpus_per_job: Option<u32> = None, like "8";
        /// Processes and threads that one job may have.
        processes_per_job: u32 = 16_384;
        /// Files that one job may make.
        files_per_job: u32 = 4_000_000;
    }
}

settings! {
    /// When a job is given up.
    ["watch"]
    pub struct WatchSettings {
        /// How long its agent may say nothing at all; it says something every ten seconds.
        heartbeat: Period = Period::seconds(60);
        /// How long it may say nothing new: neither a step, nor a line that it has not said before.
        silence: Period = Period::seconds(3600);
        /// How long it may take.
        wall: Period = Period::seconds(4 * 3600);
        /// How many times as long an emulated job may be silent and take.
        emulated_factor: u32 = 10;
        /// How often it is tried when the place fails and not the recipe.
        attempts: u32 = 3;
        /// How long it rests before it is tried again, so that the place can recover; twice as long each time.
        retry_pause: Period = Period::seconds(5);
        /// How long the files of a failed job are kept, so that `kiln jobs retry --from` can go on from them.
        keep_failed: Period = Period::seconds(3600);
    }
}

settings! {
    /// How remote build nodes are reached.
    ["remote_build_nodes"]
    pub struct RemoteBuildNodeSettings {
        /// Whom to log in as.
        user: String = "root".to_owned();
        /// The private key. Default: what ssh itself finds.
        identity_file: Option<PathBuf> = None, like "\"/etc/kiln/id_ed25519\"";
        /// The file with the nodes' host keys. Default: what ssh itself finds.
        known_hosts: Option<PathBuf> = None, like "\"/etc/kiln/known_hosts\"";
        /// A configuration file for ssh. Default: what ssh itself finds.
        ssh_config: Option<PathBuf> = None, like "\"/etc/kiln/ssh_config\"";
        /// The socket of the container engine on a node: Podman's, or Docker's `/var/run/docker.sock`.
        engine_socket: PathBuf = "/run/podman/podman.sock".into();
        /// How long a connection may take to be made.
        connect_timeout: Period = Period::seconds(10);
    }
}

/// The isolation of jobs that the host's own kernel should not carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForeignIsolation {
    /// A virtual machine.
    Vm,
    /// Namespaces on the host's kernel.
    Namespace,
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines: one object per line.
    Json,
}

/// When callers have to authenticate. There is deliberately no "never".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// Always, if an issuer is configured; otherwise the server stays on loopback addresses.
    Auto,
    /// Always.
    Required,
}

/// The address of a database. It may contain a password, so it is never printed whole.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// The whole address, for the one use that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(mut url) = reqwest::Url::parse(&self.0) else {
            return f.write_str("…");
        };
        if url.password().is_some() && url.set_password(Some("REDACTED")).is_err() {
            return f.write_str("…");
        }
        // The parameters may contain a password, too.
        if url.query().is_some() {
            url.set_query(Some("REDACTED"));
        }
        url.fmt(f)
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

impl Serialize for DatabaseUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_url_is_printed_without_its_secrets() {
        let url = DatabaseUrl("postgresql://kiln:hunter2@db/kiln?password=hunter2".to_owned());
        assert_eq!(url.to_string(), "postgresql://kiln:REDACTED@db/kiln?REDACTED");
        assert!(!format!("{url:?}").contains("hunter2"));
        assert_eq!(DatabaseUrl("hunter2".to_owned()).to_string(), "…");
    }
}
