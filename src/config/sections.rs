//! The sections of the configuration except `[s3]`, which is [`S3Settings`](super::S3Settings). Pure: no I/O.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use ipnet::IpNet;
use kiln_records::{CacheDepth, CheckLevel, CheckLevels, Code, Role, Secret, TwinLevel, run::DriverKind};
use serde::{Deserialize, Serialize, Serializer};

use super::{ChannelRule, ProxyUrl, Receiver};
use crate::{
    settings,
    settings::{Addresses, Destination, Period, Ports, Size},
};

settings! {
    /// The embedded S3 service of `kiln serve`, used where there is no `[s3]`.
    ["embedded_s3"]
    pub struct EmbeddedS3Settings {
        /// The address to listen on. It must be a loopback address, because connections are not encrypted.
        listen: std::net::SocketAddr = ([127, 0, 0, 1], 9001).into();
    }
}

settings! {
    /// The database that holds the records.
    ["store"]
    pub struct StoreSettings {
        /// The URL of a PostgreSQL database. Default: SQLite, in `records.sqlite` in the data directory.
        url: Option<DatabaseUrl> = None, like "\"postgresql://kiln@db.example.org/kiln\"";
        /// The database password, if `url` does not contain it. `KILN__STORE__PASSWORD` keeps it out of files.
        password: Option<Secret> = None, like "\"…\"";
        /// A file that contains the password, such as a mounted secret.
        password_file: Option<PathBuf> = None, like "\"/run/secrets/kiln-database\"";
    }
}

settings! {
    /// The addresses and the certificate of `kiln serve`.
    ["server"]
    pub struct ServerSettings {
        /// The address to listen on, or a list of addresses. Addresses other than loopback require authentication and
        /// TLS.
        listen: Addresses = Addresses(vec![([127, 0, 0, 1], 9000).into()]);
        /// The certificate and its intermediate certificates, PEM. The file is reloaded when it changes.
        tls_certificate: Option<PathBuf> = None, like "\"/etc/kiln/tls.pem\"";
        /// The private key of the certificate, PEM.
        tls_key: Option<PathBuf> = None, like "\"/etc/kiln/tls.key\"";
        /// Allow plain HTTP on addresses other than loopback, for example behind a gateway that terminates TLS.
        insecure_http: bool = false;
        /// The URL of this server for agents on other hosts and in virtual machines of a container engine. It is served
        /// on every address of `listen`. Default: none, so jobs cannot run there.
        agent_url: Option<String> = None, like "\"https://kiln.example.org:9000\"";
        /// A PEM file of the certificate authorities that agents trust at `agent_url`. Default: those of this host, or
        /// the certificates in `tls_certificate` if none of those issued it.
        agent_ca_bundle: Option<PathBuf> = None, like "\"/etc/ssl/certs/site.pem\"";
        /// The URL of this server alone, for the other servers on the same database: needed where `agent_url` leads to any of
        /// them, so that lines into the shells of jobs can be passed on. Agents' calls are served there, too. Default:
        /// `agent_url`.
        peer_url: Option<String> = None, like "\"https://kiln-1.example.org:9000\"";
        /// Names of this server that requests without a token may use, beside its addresses: those that clients or a
        /// proxy on this host send as `Host`. Any other name is refused, since a web page can have its own domain point
        /// at this server.
        hosts: Vec<String> = vec![], like "[\"cray-ims\", \"cray-ims.services.svc.cluster.local\"]";
        /// The URL of this server for its users. Default: the first address of `listen`.
        public_url: Option<String> = None, like "\"https://kiln.example.org\"";
    }
}

settings! {
    /// Addresses, plain HTTP, whose callers need no token: for services that send none, as IMS's clients inside a
    /// cluster. Whoever can send from one of the networks has the role. See docs/auth.md.
    ["trusted_listener"]
    pub struct TrustedListenerSettings {
        /// The address to listen on, or a list of addresses. Default: none.
        listen: Addresses = Addresses(vec![]), like "\"10.252.1.9:80\"";
        /// The networks of the callers, each with its length: `10.32.0.0/12`. Others are refused there, with a token or
        /// without.
        networks: Vec<IpNet> = vec![], like "[\"10.32.0.0/12\"]";
        /// The role of a caller without a token: `read`, `write` or `admin`.
        role: Role = Role::Write;
    }
}

settings! {
    /// The catalogue of complete image sets. See docs/image-sets.md.
    ["catalogue"]
    pub struct CatalogueSettings {
        /// Let callers without a token read the catalogue and its files, and nothing else: firmware and boot loaders have
        /// none. Whoever reaches the server can then read every image of a complete set.
        public: bool = false;
        /// Rules for channels, such as `{ channel = "stable", name = "compute*", requires = ["boot", "signature"], follows =
        /// true }`. `requires`: each image of a set needs a boot check of its present content, or provenance signed with
        /// this site's key, before the channel may lead to the set. `follows`: the channel moves on by itself to the
        /// newest complete set that has all this. The first rule for a channel and name decides. Default: none.
        channels: Vec<ChannelRule> = Vec::new();
    }
}

settings! {
    /// Webhooks: the services that are told when jobs end and image sets become complete. See docs/webhooks.md.
    ["webhooks"]
    pub struct WebhookSettings {
        /// The receivers, such as `{ name = "chat", url = "https://chat.example.org/kiln", secret_file =
        /// "/run/secrets/kiln-chat", events = ["job.failed"] }`. `events`: `job.succeeded`, `job.failed`, `job.cancelled`,
        /// `set.complete`, `set.incomplete`; all of them by default. `allow_local = true` for a receiver on this host or on
        /// the local link. Default: none.
        receivers: Vec<Receiver> = Vec::new();
    }
}

settings! {
    /// Traces of jobs for OpenTelemetry. See docs/metrics.md.
    ["traces"]
    pub struct TraceSettings {
        /// The base URL of a collector that takes OTLP over HTTP. Each job that ends is sent there as a trace. Default: none.
        endpoint: Option<String> = None, like "\"http://otel-collector.example.org:4318\"";
    }
}

settings! {
    /// Addresses that serve `/metrics` alone, for Prometheus. The addresses of `[server]` serve it too, to callers that may
    /// read. See docs/metrics.md.
    ["metrics"]
    pub struct MetricsSettings {
        /// The address to listen on, or a list of addresses. Addresses other than loopback require `token_file`, and TLS as
        /// in `[server]`. Default: none.
        listen: Addresses = Addresses(vec![]), like "\"127.0.0.1:9002\"";
        /// A file with the token that callers there need: one line of at least 16 characters. It is read anew for each
        /// request. Default: callers on this host need none.
        token_file: Option<PathBuf> = None, like "\"/etc/kiln/metrics.token\"";
    }
}

settings! {
    /// Limits on the requests of one caller.
    ["limits"]
    pub struct LimitSettings {
        /// The maximum size of a JSON body whose contents are kept in S3. Any other has 64 KiB at most.
        body_bytes: Size = Size(1 << 20);
        /// The maximum size of a file uploaded through the API: a recipe archive or an artifact of an image.
        upload_bytes: Size = Size(20 << 30);
        /// The number of records of each kind that a caller may have made, deleted ones among them: recipes, images, public
        /// keys, jobs, schedules, image sets, changes of channels and remote build nodes. What a schedule, an image set or a job
        /// makes counts for whoever has made that; no job is made without room for an image. 0 means no limit.
        records_of_caller: u32 = 100_000;
        /// The number of records of each kind beyond which no caller makes more; 0 means no limit.
        records: u32 = 1_000_000;
        /// The average number of requests per second allowed for a token or, without a token, for an address; 0 means
        /// no limit.
        requests_per_second: u32 = 500;
        /// The number of requests allowed at once.
        burst: u32 = 2000;
        /// The number of wrong tokens allowed from one address per minute; 0 means no limit.
        failed_logins_per_minute: u32 = 20;
        /// The time limit for reading a request, and again for answering it.
        request_timeout: Period = Period::seconds(60);
    }
}

settings! {
    /// The log of `kiln serve` on standard error. `KILN_LOG` sets its level: `info`, `kiln=debug,warn`.
    ["log"]
    pub struct LogSettings {
        /// The format of the log: `text`, or `json` with one object per line.
        format: LogFormat = LogFormat::Text;
    }
}

settings! {
    /// Authentication of API callers. See docs/auth.md.
    ["auth"]
    pub struct AuthSettings {
        /// `required`: every request needs a token. `auto`: the same if `[oidc]` is present; otherwise no token is
        /// needed, and the server starts on loopback addresses only.
        mode: AuthMode = AuthMode::Auto;
    }
}

settings! {
    /// An OpenID Connect issuer, such as Keycloak, whose tokens are accepted in addition to Kiln's own.
    ["oidc"]
    pub struct OidcSettings {
        /// The URL of the issuer, exactly as in the claim `iss` of its tokens.
        issuer: Option<String> = None, like "\"https://keycloak.example.org/realms/site\"";
        /// The value that the claim `aud` of a token must contain.
        audience: Option<String> = None, like "\"kiln\"";
        /// The claim that holds the caller's roles, as member names separated by dots.
        role_claim: String = "realm_access.roles".to_owned();
        /// Roles that may read everything.
        read_roles: Vec<String> = vec!["kiln-read".to_owned()];
        /// Roles that may also create, change and delete single records.
        write_roles: Vec<String> = vec!["kiln-write".to_owned()];
        /// Roles that may do everything.
        admin_roles: Vec<String> = vec!["kiln-admin".to_owned()];
        /// A PEM file of certificate authorities to trust for the issuer, in addition to the system's.
        ca_bundle: Option<PathBuf> = None, like "\"/etc/ssl/certs/site.pem\"";
        /// The interval at which the issuer's keys are refreshed. An unknown key triggers a refresh at once, at most
        /// once a minute.
        jwks_refresh: Period = Period::seconds(3600);
        /// The id of the client as which the dashboard signs people in at the issuer. There, its redirect URI is
        /// `public_url` of `[server]` and `/ui/login/callback`. Default: none, so the dashboard only asks for a token.
        client_id: Option<String> = None, like "\"kiln-dashboard\"";
        /// A file that contains the secret of that client, if it has one.
        client_secret_file: Option<PathBuf> = None, like "\"/run/secrets/kiln-dashboard\"";
        /// The scopes that the dashboard asks for, beside `openid`.
        scopes: Vec<String> = vec!["profile".to_owned()];
    }
}

settings! {
    /// Jobs: whether this server runs them, and the defaults of their options.
    ["jobs"]
    pub struct JobSettings {
        /// Whether this server runs jobs. `false`: it only keeps their records, and another system runs them.
        run: bool = true;
        /// The default of `build_env_size`: the disk limit of a job, in GiB.
        default_image_size_gib: u32 = 60;
        /// The default of `job_mem_size`: the memory limit of a job, in GiB.
        default_mem_size_gib: u32 = 8;
        /// The default of `cache`: how much of earlier jobs a create job may reuse. `packages`: the root as it is once all
        /// packages are installed, if it would be the same. `none`: nothing. `similar`, the root of a similar recipe, and
        /// `image`, the whole image, can only be said by a recipe or a request.
        cache: CacheDepth = CacheDepth::Packages;
        /// The default of `require_dkms` for customize jobs for x86_64: whether the job gets its own kernel.
        enable_dkms: bool = true;
        /// The network through which users reach the shell of a job.
        access_subnet: String = "cmn".to_owned();
        /// The domain of that network.
        access_domain: String = "shasta.local".to_owned();
        /// The Kubernetes namespace in the records of jobs.
        namespace: String = "ims".to_owned();
    }
}

settings! {
    /// The SSH shells of jobs; each has its own port.
    ["shell"]
    pub struct ShellSettings {
        /// The address that shells listen on. Default: the first address of `listen` in `[server]`.
        listen: Option<IpAddr> = None, like "\"0.0.0.0\"";
        /// The host name of shells in the records of jobs. Default: the address that shells listen on or, if that is
        /// the wildcard address, the name of this host.
        host: Option<String> = None, like "\"build.example.org\"";
        /// The range of ports. A job with a shell occupies one port from its start to its end.
        ports: Ports = Ports { first: 22000, last: 22999 };
        /// The time after which an unused shell is closed.
        idle: Period = Period::seconds(12 * 3600);
        /// The time after which a shell is closed in any case.
        longest: Period = Period::seconds(7 * 86_400);
    }
}

settings! {
    /// The isolation of jobs.
    ["isolation"]
    pub struct IsolationSettings {
        /// The isolation of jobs that are for an architecture other than the host's or have `require_dkms`. `vm`: a
        /// virtual machine; without one, the job is refused. `namespace`: the host's kernel, as for other jobs.
        foreign: ForeignIsolation = ForeignIsolation::Vm;
        /// The kinds of sandboxes that jobs may run in, the preferred ones first: `kubernetes-vm`, `kata`, `microvm`,
        /// `kubernetes`, `docker`, `namespace`. Where the first cannot be had, a job takes the next, and its record says
        /// why (`passed_over`). Default: all, and no more isolation than a job needs.
        drivers: Vec<DriverKind> = Vec::new();
        /// Ports of the host's loopback interface that jobs may reach, for example the port of a package repository.
        /// The port of S3 is among them in any case; they cannot reach any other.
        loopback_ports: Vec<u16> = Vec::new();
    }
}

impl IsolationSettings {
    /// Whether jobs may run in such sandboxes.
    pub fn allows(&self, driver: DriverKind) -> bool {
        self.drivers.is_empty() || self.drivers.contains(&driver)
    }

    /// Whether all jobs run in a cluster: this host then needs neither a toolbox nor ids for sandboxes.
    pub fn is_cluster_only(&self) -> bool {
        let in_cluster = |driver: &DriverKind| matches!(driver, DriverKind::Kubernetes | DriverKind::KubernetesVm);
        !self.drivers.is_empty() && self.drivers.iter().all(in_cluster)
    }
}

settings! {
    /// The network access of jobs. They can always reach the server, S3 and the DNS resolver, and never other jobs or,
    /// except for `loopback_ports`, the host's loopback interface.
    ["network"]
    pub struct NetworkSettings {
        /// Hosts, addresses and networks that jobs may reach, such as package repositories. Default: everything that is
        /// not denied. Names are resolved when a job starts.
        allow: Vec<Destination> = Vec::new();
        /// Hosts, addresses and networks that jobs may never reach. Default: the metadata services of clouds, which
        /// hand out credentials, and `this-host`: all addresses of this host, but those of the server and S3. A single
        /// port of this host is opened by `loopback_ports`.
        deny: Vec<Destination> = denied();
        /// The HTTP proxy that jobs and the making of toolboxes ask for addresses that begin with `http:`. The same rules
        /// hold for what it is asked for. See docs/proxy.md.
        http_proxy: Option<ProxyUrl> = None, like "\"http://proxy.example.org:3128\"";
        /// The HTTP proxy for addresses that begin with `https:`. Default: `http_proxy`.
        https_proxy: Option<ProxyUrl> = None, like "\"http://proxy.example.org:3128\"";
        /// Hosts and domains that are reached without the proxy, beside loopback, the server and S3.
        no_proxy: Vec<Destination> = Vec::new();
        /// A file with the login for the proxy: one line, `user:password`. Jobs do not see it.
        proxy_credentials: Option<PathBuf> = None, like "\"/etc/kiln/proxy-credentials\"";
    }
}

/// This host, and the addresses at which clouds describe a machine and hand out its credentials: link-local ones for
/// most, and one each for AWS over IPv6, and Alibaba.
fn denied() -> Vec<Destination> {
    let of = |network: [u8; 4], length| Destination::Network(IpNet::new_assert(Ipv4Addr::from(network).into(), length));
    let aws = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    vec![
        Destination::ThisHost,
        of([169, 254, 0, 0], 16),
        of([100, 100, 100, 200], 32),
        Destination::Network(IpNet::new_assert(aws.into(), 128)),
    ]
}

settings! {
    /// A container engine for jobs. Without it, jobs run on this host, in namespaces and virtual machines that Kiln
    /// makes itself. See docs/docker.md.
    ["docker"]
    pub struct DockerEngineSettings {
        /// The address of the engine, Docker or Podman, as in `DOCKER_HOST`: `unix:///var/run/docker.sock`,
        /// `tcp://host:2376` (with TLS), `ssh://user@host`.
        engine: Option<String> = None, like "\"unix:///var/run/docker.sock\"";
        /// The directory with `key.pem`, `cert.pem` and `ca.pem` for `tcp://`.
        certificates: Option<PathBuf> = None, like "\"/etc/kiln/docker\"";
        /// The engine's runtime that runs each container in a virtual machine, such as `kata`. See kata/README.md.
        vm_runtime: Option<String> = None, like "\"kata\"";
        /// The name servers of jobs in those machines, which cannot use the engine's own. Default: those of the
        /// engine's host.
        dns: Vec<IpAddr> = Vec::new();
    }
}

settings! {
    /// Builds of images for architectures other than the host's.
    ["emulation"]
    pub struct EmulationSettings {
        /// The tools of an image that may run as native twins during its build: `off`, `tools`, `shell` or `full`.
        /// Recipes and jobs can override it. See docs/emulation.md.
        twins: TwinLevel = TwinLevel::Full;
        /// The percentage of the server's builds with native twins that are verified afterwards: another job makes the
        /// root with twins and without, when no job waits, and compares. 0 means none. See docs/emulation.md.
        verify_percent: u32 = 0;
    }
}

settings! {
    /// What findings in a finished root mean: `"fail"`, `"warn"` or `"off"` for each check. A recipe can choose for itself in its
    /// `kiln-recipe.toml`, except what is `"fail"` here. See docs/errors.md.
    ["root_checks"]
    pub struct RootCheckSettings {
        /// The shell or the first process cannot be started. Default: `"fail"`.
        root_loader: Option<CheckLevel> = None, like "\"fail\"";
        /// Not everybody can enter `/`, `/etc` or `/usr`, or everybody can write there. Default: `"warn"`.
        root_modes: Option<CheckLevel> = None, like "\"fail\"";
        /// Regular files in the places of devices. Default: `"warn"`.
        root_devices: Option<CheckLevel> = None, like "\"fail\"";
        /// Directories in the places of the distribution's links. Default: `"warn"`.
        root_links: Option<CheckLevel> = None, like "\"fail\"";
        /// A kernel without modules, modules without a kernel, and modules for another kernel. Default: `"warn"`.
        root_modules: Option<CheckLevel> = None, like "\"fail\"";
        /// An initrd that lacks modules for mounting the image's squashfs. Default: `"warn"`.
        root_initrd: Option<CheckLevel> = None, like "\"fail\"";
        /// An initrd of which that cannot be found out. Default: `"warn"`.
        root_initrd_unread: Option<CheckLevel> = None, like "\"off\"";
        /// Accounts with ids that the sandbox does not have. Default: `"warn"`.
        root_accounts: Option<CheckLevel> = None, like "\"fail\"";
        /// Packages that are not installed completely. Default: `"warn"`.
        root_packages: Option<CheckLevel> = None, like "\"fail\"";
        /// Programs with the rights of their owner that no package owns. Default: `"warn"`.
        root_setuid: Option<CheckLevel> = None, like "\"off\"";
        /// Access control lists, which an image cannot have. Default: `"warn"`.
        root_attributes: Option<CheckLevel> = None, like "\"off\"";
        /// Keys and ids that all machines with the image would share. They are removed, unless this is `"off"`. Default:
        /// `"warn"`.
        root_identity: Option<CheckLevel> = None, like "\"off\"";
    }
}

impl RootCheckSettings {
    /// The levels that were chosen.
    pub fn levels(&self) -> CheckLevels {
        let chosen = [
            (Code::RootLoader, self.root_loader),
            (Code::RootModes, self.root_modes),
            (Code::RootDevices, self.root_devices),
            (Code::RootLinks, self.root_links),
            (Code::RootModules, self.root_modules),
            (Code::RootInitrd, self.root_initrd),
            (Code::RootInitrdUnread, self.root_initrd_unread),
            (Code::RootAccounts, self.root_accounts),
            (Code::RootPackages, self.root_packages),
            (Code::RootSetuid, self.root_setuid),
            (Code::RootAttributes, self.root_attributes),
            (Code::RootIdentity, self.root_identity),
        ];
        chosen
            .into_iter()
            .filter_map(|(code, level)| Some((code, level?)))
            .collect()
    }
}

settings! {
    /// The capacity of this host for jobs. A job waits until the resources that it needs are free.
    ["capacity"]
    pub struct CapacitySettings {
        /// The maximum number of concurrent jobs. Default: the number of CPUs.
        jobs: Option<u32> = None, like "4";
        /// Memory for all jobs together. Default: 90 % of the host's memory.
        memory: Option<Size> = None, like "\"48GiB\"";
        /// Memory reserved for the first build of a recipe, unless the job sets `job_mem_size`. Later builds reserve 25
        /// % more than the previous ones used.
        first_memory: Size = Size(2 << 30);
        /// Disk space reserved for the first build of a recipe, unless the job sets `build_env_size`. Later builds
        /// reserve 25 % more than the previous ones used.
        first_disk: Size = Size(10 << 30);
        /// Disk space to keep free. Below half of it, the job that uses the most disk space is ended.
        disk_floor: Size = Size(2 << 30);
        /// The number of inodes to keep free.
        inode_floor: u32 = 20_000;
        /// How long a job waits for disk space or inodes at a place where no job holds any. Then it fails with
        /// `no_capacity`.
        longest_wait: Period = Period::seconds(1800);
        /// The maximum number of CPUs of one job. Default: all.
        cpus_per_job: Option<u32> = None, like "8";
        /// The maximum number of processes and threads of one job.
        processes_per_job: u32 = 16_384;
        /// The maximum number of files of one job.
        files_per_job: u32 = 4_000_000;
    }
}

settings! {
    /// Boot checks by this server, of the images of sets that require one. See docs/image-sets.md.
    ["boot_checks"]
    pub struct BootCheckSettings {
        /// Whether this server boots images, one at a time. Otherwise `kiln check boot` does, from another host.
        run: bool = true;
        /// The memory of the machine. It is taken from what this host has for jobs.
        memory: Size = Size(2 << 30);
        /// How long a boot may take.
        timeout: Period = Period::seconds(600);
    }
}

settings! {
    /// Time limits and retries of jobs.
    ["watch"]
    pub struct WatchSettings {
        /// The time limit without any message from the agent of a job; agents send one every 10 seconds.
        heartbeat: Period = Period::seconds(60);
        /// The time limit without progress: neither a new step nor a log line that differs from all earlier ones.
        silence: Period = Period::seconds(3600);
        /// The time limit of an attempt.
        wall: Period = Period::seconds(4 * 3600);
        /// The factor by which `silence` and `wall` are longer for emulated jobs.
        emulated_factor: u32 = 10;
        /// The maximum number of attempts that fail because of the place, and of those that fail because of S3 or the
        /// database. Only failures of the infrastructure are retried, not those of the recipe.
        attempts: u32 = 3;
        /// The maximum number of attempts that end because a process of Kiln, a virtual machine or an engine was
        /// killed. They are not the fault of the job and count for nothing else.
        interruptions: u32 = 10;
        /// The pause before the second attempt, so that the infrastructure can recover. It doubles with each further
        /// attempt.
        retry_pause: Period = Period::seconds(5);
        /// The maximum size of the log of a job, over all its attempts: each may fill half of what is left, and always a
        /// sixteenth of it. A line counts its text and 100 bytes. Lines beyond it are dropped, and the log says so.
        log_bytes: Size = Size(64 << 20);
        /// The time for which the files of a failed job are kept, so that `kiln jobs retry --from` can resume from
        /// them.
        keep_failed: Period = Period::seconds(3600);
    }
}

settings! {
    /// SSH access to remote build nodes.
    ["remote_build_nodes"]
    pub struct RemoteBuildNodeSettings {
        /// The user to log in as.
        user: String = "root".to_owned();
        /// The private key. Default: the choice of ssh.
        identity_file: Option<PathBuf> = None, like "\"/etc/kiln/id_ed25519\"";
        /// The file of the nodes' host keys. Default: the choice of ssh.
        known_hosts: Option<PathBuf> = None, like "\"/etc/kiln/known_hosts\"";
        /// A configuration file for ssh. Default: the choice of ssh.
        ssh_config: Option<PathBuf> = None, like "\"/etc/kiln/ssh_config\"";
        /// The container engine's socket on a node: Podman's, or Docker's `/var/run/docker.sock`.
        engine_socket: PathBuf = "/run/podman/podman.sock".into();
        /// The time limit for connecting.
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
    use kiln_records::root_check::ROOT_CHECKS;

    use super::*;

    #[test]
    fn every_check_of_a_root_can_be_set() {
        let settings = RootCheckSettings::SECTION;
        let names: Vec<&str> = settings.keys.iter().map(|key| key.name).collect();
        let checks: Vec<&str> = ROOT_CHECKS.iter().map(|(code, _)| code.name()).collect();
        assert_eq!(names, checks);
        for (key, (_, level)) in settings.keys.iter().zip(ROOT_CHECKS) {
            let about = key.about.join(" ");
            assert!(about.contains(&format!("`\"{level}\"`.")), "{}: {about}", key.name);
        }
        let all: RootCheckSettings = toml::from_str(
            &checks
                .iter()
                .map(|name| format!("{name} = 'off'"))
                .collect::<Vec<_>>()
                .join("\n"),
        )
        .unwrap();
        assert_eq!(all.levels().len(), ROOT_CHECKS.len());
    }

    #[test]
    fn a_database_url_is_printed_without_its_secrets() {
        let url = DatabaseUrl("postgresql://kiln:hunter2@db/kiln?password=hunter2".to_owned());
        assert_eq!(url.to_string(), "postgresql://kiln:REDACTED@db/kiln?REDACTED");
        assert!(!format!("{url:?}").contains("hunter2"));
        assert_eq!(DatabaseUrl("hunter2".to_owned()).to_string(), "…");
    }
}
