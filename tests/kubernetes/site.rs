//! A site whose jobs run in pods of a cluster: `kiln serve`, as many as a test starts, with one PostgreSQL and one S3.
//!
//! The rig's class of pretended machines has no kernels of its own, but user namespaces: programs of other architectures are
//! emulated in these.

use std::{os::unix::fs::PermissionsExt, path::PathBuf, sync::OnceLock};

use kiln::artifacts::{ArtifactStore, S3Settings};
use kiln_s3::EmbeddedS3;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    self, Kiln,
    authority::Authority,
    cluster::{self, Cluster, NAMESPACE},
    eventually, postgres,
    s3_proxy::S3Proxy,
    serve::Server,
};

/// The repository of the tests' images, which no registry has.
const IMAGE: &str = "rig.invalid/kiln-toolbox";

/// What several servers share, and agents reach from pods: records, S3, and the address at which they find a server.
pub struct Site<'c> {
    pub cluster: &'c Cluster,
    pub dir: TempDir,
    /// The service is on loopback only.
    s3: (EmbeddedS3, S3Proxy),
    pub variables: Vec<(&'static str, String)>,
    token: OnceLock<String>,
}

impl<'c> Site<'c> {
    /// A site with the cluster that tests share.
    pub async fn new() -> Self {
        Self::with(cluster::shared()).await
    }

    /// A site with this cluster.
    pub async fn with(cluster: &'c Cluster) -> Self {
        // The node has the image of pods before the first job: no registry has it.
        let import = || {
            cluster.import_once(|archive| {
                let mut command = Kiln::new().command(["toolbox", "image", "--vm"]);
                command.arg(archive).env("KILN__KUBERNETES__IMAGE", IMAGE);
                support::run(command).ok();
            });
        };
        tokio::task::block_in_place(import);
        let dir = tempfile::tempdir().unwrap();
        let own = cluster.address();
        let s3 = EmbeddedS3::start(dir.path(), "127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let settings = S3Settings::from(&s3);
        let endpoint = settings.endpoint.as_deref().unwrap().strip_prefix("http://").unwrap();
        let way = S3Proxy::start_at(own, endpoint.parse().unwrap()).await;
        let port = std::net::TcpListener::bind((own, 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let authority = Authority::new();
        authority.write_for(
            &["127.0.0.1", &own.to_string()],
            at("tls.pem").as_ref(),
            at("tls.key").as_ref(),
        );
        fs_err::write(at("ca.pem"), &authority.pem).unwrap();
        let variables = vec![
            (
                "KILN__STORE__URL",
                tokio::task::block_in_place(|| postgres::Server::shared().new_database()),
            ),
            ("KILN__S3__ENDPOINT", format!("http://{}", way.address)),
            ("KILN__S3__ACCESS_KEY", settings.access_key.unwrap()),
            ("KILN__S3__SECRET_KEY", settings.secret_key.unwrap().expose().to_owned()),
            ("KILN__SERVER__LISTEN", format!("[\"127.0.0.1:0\", \"{own}:{port}\"]")),
            ("KILN__SERVER__TLS_CERTIFICATE", at("tls.pem")),
            ("KILN__SERVER__TLS_KEY", at("tls.key")),
            ("KILN__SERVER__AGENT_URL", format!("https://{own}:{port}")),
            ("KILN__SERVER__AGENT_CA_BUNDLE", at("ca.pem")),
            ("KILN__AUTH__MODE", "required".to_owned()),
            ("KILN__KUBERNETES__ENABLED", "true".to_owned()),
            (
                "KILN__KUBERNETES__KUBECONFIG",
                cluster.account(dir.path(), None).to_str().unwrap().to_owned(),
            ),
            ("KILN__KUBERNETES__NAMESPACE", NAMESPACE.to_owned()),
            ("KILN__KUBERNETES__IMAGE", IMAGE.to_owned()),
            ("KILN__KUBERNETES__IMAGE_PULL_POLICY", "Never".to_owned()),
            (
                "KILN__KUBERNETES__VM_RUNTIME",
                cluster.said("KILN_RIG_MACHINE").to_owned(),
            ),
            // A record of a node of another architecture may be there: nothing runs on it.
            (
                "KILN__KUBERNETES__NODE_SELECTOR",
                format!("{{\"kubernetes.io/hostname\" = \"{}\"}}", cluster.said("KILN_RIG_NODE")),
            ),
            ("KILN__ISOLATION__DRIVERS", "[\"kubernetes-vm\"]".to_owned()),
            ("KILN__WATCH__ATTEMPTS", "1".to_owned()),
        ];
        Self {
            cluster,
            dir,
            s3: (s3, way),
            variables,
            token: OnceLock::new(),
        }
    }

    /// An administrator's token, the same for all servers.
    fn token(&self, kiln: &Kiln) -> String {
        let made = || {
            let mut command = kiln.command(["tokens", "create", "--name", "me", "--role", "admin"]);
            command.envs(self.variables.iter().map(|(name, value)| (name, value)));
            support::run(command).ok().stdout.trim().to_owned()
        };
        self.token.get_or_init(made).clone()
    }

    /// A server with a data directory of its own.
    pub fn server(&self) -> Server {
        self.server_with(&[])
    }

    pub fn server_with(&self, more: &[(&'static str, &str)]) -> Server {
        let variables: Vec<_> = self
            .variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .chain(more.iter().copied())
            .collect();
        // Without a toolbox: the cluster has its image.
        let kiln = Kiln::bare();
        let program = elsewhere(&kiln);
        let mut server = Server::start_in(kiln.with_program(&program), &variables);
        server.environment = vec![
            ("KILN_TOKEN", self.token(&server.kiln)),
            (
                "KILN_CA_FILE",
                self.dir.path().join("ca.pem").to_str().unwrap().to_owned(),
            ),
        ];
        server
    }

    /// The site's S3.
    pub async fn artifacts(&self) -> ArtifactStore {
        ArtifactStore::connect(&(&self.s3.0).into()).await.unwrap()
    }

    /// Everything in the cluster that belongs to a job.
    pub fn left_of(&self, job: &str) -> String {
        let all = "jobs,pods,secrets,networkpolicies,services,endpoints";
        let of = format!("kiln.job={job}");
        self.cluster
            .kubectl(&["get", all, "--selector", &of, "--output", "name"])
    }

    /// The image of a job, which has ended well and whose remains are gone.
    #[track_caller]
    pub fn image_of(&self, server: &Server, job: &str) -> (Value, Value) {
        let status = until_settled(server, job);
        assert_eq!(status["state"], "success", "{status:#}");
        assert_eq!(status["driver"], "kubernetes-vm", "{status:#}");
        assert_eq!(self.left_of(job), "");
        let image = server.json(&["images", "describe", status["image"].as_str().unwrap()]);
        (status, image)
    }
}

/// A program that starts kiln as on another host than the node's, which says another boot. A server refuses jobs that say its own.
fn elsewhere(kiln: &Kiln) -> PathBuf {
    let at = |name: &str| kiln.data().with_file_name(name);
    let (boot, program) = (at("boot_id"), at("kiln"));
    fs_err::copy("/proc/sys/kernel/random/uuid", &boot).unwrap();
    let script = format!(
        "#!/bin/sh\n\
         [ \"$1\" = serve ] || exec {kiln} \"$@\"\n\
         exec unshare --mount sh -c 'mount --bind {boot} /proc/sys/kernel/random/boot_id && exec {kiln} \"$@\"' sh \"$@\"\n",
        kiln = support::kiln_program().display(),
        boot = boot.display(),
    );
    fs_err::write(&program, script).unwrap();
    fs_err::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    program
}

/// Why no job that needs a machine can run here, if so: the machine in which this host itself is stands for that of the pod.
pub fn no_machine() -> Option<String> {
    let cpu = fs_err::read_to_string("/proc/cpuinfo").unwrap();
    (!cpu.contains(" hypervisor"))
        .then(|| "this host is no virtual machine, so its pods are in none that can be seen".to_owned())
}

/// Waits until a job is so. Returns its status.
#[track_caller]
pub fn until(server: &Server, job: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(|| {
        let status = server.status(job);
        if is_so(&status) {
            return Ok(status);
        }
        assert!(!status["error"].is_object(), "{status:#}");
        Err(status)
    })
}

/// Waits until nothing is left of a job. Returns its status.
#[track_caller]
pub fn until_settled(server: &Server, job: &str) -> Value {
    eventually(|| {
        let status = server.status(job);
        if status["log"].is_string() {
            Ok(status)
        } else {
            Err(status)
        }
    })
}
