//! Images that are built in pods: the whole way of a job from `kiln serve` through a cluster into S3.
//!
//! `KILN_TEST_KUBERNETES_RUN` names the directory of a cluster that `.ci/kubernetes-rig up` has started. Its class of pretended
//! machines has no kernels of its own, but user namespaces: programs of other architectures are emulated in these.

use std::{
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{LazyLock, OnceLock},
    time::{Duration, Instant},
};

use kiln::artifacts::S3Settings;
use kiln_s3::EmbeddedS3;
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{
    self, Kiln, Recipe,
    authority::Authority,
    cluster::{self, NAMESPACE, kubectl},
    host_binfmt, postgres,
    repository::Repository,
    s3_proxy::S3Proxy,
    serve::Server,
};

/// The repository of the tests' images, which no registry has.
const IMAGE: &str = "rig.invalid/kiln-toolbox";

/// An emulated job takes this long at most, beside others.
const PATIENCE: Duration = Duration::from_mins(10);

/// What several servers share, and agents reach from pods: records, S3, and the address at which they find a server.
struct Shared {
    dir: TempDir,
    /// The service is on loopback only.
    _s3: (EmbeddedS3, S3Proxy),
    variables: Vec<(&'static str, String)>,
    token: OnceLock<String>,
}

impl Shared {
    async fn new() -> Self {
        // The node has the image of pods before the first job: no registry has it.
        static IMPORTED: LazyLock<()> = LazyLock::new(|| {
            let kiln = Kiln::new();
            let archive = kiln.data().join("image.tar");
            let mut command = kiln.command(["toolbox", "image", "--vm"]);
            command.arg(&archive).env("KILN__KUBERNETES__IMAGE", IMAGE);
            support::run(command).ok();
            cluster::import(&archive);
        });
        tokio::task::block_in_place(|| LazyLock::force(&IMPORTED));
        let dir = tempfile::tempdir().unwrap();
        let own = cluster::address();
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
        let said = cluster::said();
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
                cluster::account(dir.path()).to_str().unwrap().to_owned(),
            ),
            ("KILN__KUBERNETES__NAMESPACE", NAMESPACE.to_owned()),
            ("KILN__KUBERNETES__IMAGE", IMAGE.to_owned()),
            ("KILN__KUBERNETES__IMAGE_PULL_POLICY", "Never".to_owned()),
            ("KILN__KUBERNETES__VM_RUNTIME", said["KILN_RIG_MACHINE"].clone()),
            // A record of a node of another architecture may be there: nothing runs on it.
            (
                "KILN__KUBERNETES__NODE_SELECTOR",
                format!("{{\"kubernetes.io/hostname\" = \"{}\"}}", said["KILN_RIG_NODE"]),
            ),
            ("KILN__ISOLATION__DRIVERS", "[\"kubernetes-vm\"]".to_owned()),
            ("KILN__WATCH__ATTEMPTS", "1".to_owned()),
        ];
        Self {
            dir,
            _s3: (s3, way),
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
    fn server(&self) -> Server {
        self.server_with(&[])
    }

    fn server_with(&self, more: &[(&'static str, &str)]) -> Server {
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
fn no_machine() -> Option<String> {
    let cpu = fs_err::read_to_string("/proc/cpuinfo").unwrap();
    (!cpu.contains(" hypervisor"))
        .then(|| "this host is no virtual machine, so its pods are in none that can be seen".to_owned())
}

/// Waits until a job is so. Returns its status.
#[track_caller]
fn until(server: &Server, job: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let status = server.status(job);
        if is_so(&status) {
            return status;
        }
        assert!(begun.elapsed() < PATIENCE && !status["error"].is_object(), "{status:#}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The image of a job, which has ended well and whose remains are gone.
#[track_caller]
fn image_of(server: &Server, job: &str) -> (Value, Value) {
    let status = until(server, job, |status| status["log"].is_string());
    assert_eq!(status["state"], "success", "{status:#}");
    assert_eq!(status["driver"], "kubernetes-vm", "{status:#}");
    let left = kubectl(&[
        "get",
        "jobs,pods,secrets,networkpolicies,services,endpoints",
        "--selector",
        &format!("kiln.job={job}"),
        "--output",
        "name",
    ]);
    assert_eq!(left, "");
    let image = server.json(&["images", "describe", status["image"].as_str().unwrap()]);
    (status, image)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_foreign_recipe_becomes_an_image_in_a_pod() {
    needs!(
        cluster::lack(),
        no_machine(),
        support::no_namespaces(),
        support::no_emulation()
    );
    let before = host_binfmt();
    let shared = Shared::new().await;
    let server = shared.server();
    server.make_key();
    let repository = Repository::foreign_at(cluster::address());
    let arch = support::foreign();
    let script = Recipe::with_script("echo the machine is $(uname -m)");
    let recipe = server.recipe(&script, &repository, &["--arch", arch]);
    let job = server.build(&recipe, &[]);
    let (status, image) = image_of(&server, &job);
    assert_eq!(status["how"], "emulated", "{status:#}");
    assert_eq!(image["arch"], arch);
    let log = server.run(&["jobs", "logs", &job]).ok().stdout;
    assert!(log.contains(&format!("the machine is {arch}")), "{log}");
    let pulled = shared.dir.path().join("image");
    let mut get = server
        .kiln
        .command(["artifacts", "get", image["id"].as_str().unwrap(), "--output"]);
    get.arg(&pulled)
        .envs(shared.variables.iter().map(|(name, value)| (name, value)));
    support::run(get).ok();
    let kept = fs_err::read_dir(&pulled).unwrap().count();
    assert!(kept >= 2, "the root and its manifest: {kept}");
    server.stop();
    assert_eq!(host_binfmt(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_build_in_a_pod_outlives_its_server() {
    needs!(cluster::lack(), no_machine(), support::no_namespaces());
    let shared = Shared::new().await;
    let first = shared.server();
    first.make_key();
    let repository = Repository::native_at(cluster::address());
    // Long enough for another server to notice that the first is gone.
    let recipe = first.recipe(&Recipe::with_script("sleep 45"), &repository, &[]);
    let job = first.build(&recipe, &[]);
    until(&first, &job, |status| status["step"] == "build");
    let pods = || {
        kubectl(&[
            "get",
            "pods",
            "--selector",
            &format!("kiln.job={job}"),
            "--output",
            "jsonpath={.items[*].metadata.uid}",
        ])
    };
    let pod = pods();
    assert!(!pod.is_empty());
    first.started.signal(Signal::SIGKILL);
    first.started.end();
    let second = shared.server();
    until(&second, &job, |status| {
        // It goes when the job has its image, and no other comes.
        let now = pods();
        assert!(now == pod || now.is_empty(), "{now} instead of {pod}");
        status["step"] != "build"
    });
    let (status, _) = image_of(&second, &job);
    assert_eq!(status["attempt"], 1, "{status:#}");
    second.stop();
}

/// A user's key, and logins to the address to which a Service leads: the rig has no kube-proxy, which would lead there.
struct User {
    home: TempDir,
    service: String,
}

impl User {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("key");
        support::tool(
            "ssh-keygen",
            &["-q", "-t", "ed25519", "-N", "", "-f", file.to_str().unwrap()],
        );
        Self {
            home,
            service: String::new(),
        }
    }

    fn file(&self, name: &str) -> String {
        self.home.path().join(name).to_str().unwrap().to_owned()
    }

    fn leads_to(&self, part: &str) -> String {
        let path = format!("jsonpath={{.subsets[0].{part}}}");
        kubectl(&["get", "endpoints", &self.service, "--output", &path])
    }

    /// Runs a command in the shell. Returns what it wrote.
    #[track_caller]
    fn run(&self, script: &str) -> String {
        let options = [
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "IdentitiesOnly=yes",
            "ConnectTimeout=30",
        ];
        let mut ssh = Command::new("ssh");
        ssh.args(options.iter().flat_map(|option| ["-o", option]));
        ssh.args(["-i", &self.file("key"), "-p", &self.leads_to("ports[0].port")]);
        ssh.arg(format!("root@{}", self.leads_to("addresses[0].ip")));
        let output = ssh.arg(script).stdin(Stdio::null()).output().unwrap();
        assert!(
            output.status.success(),
            "{ssh:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_shell_of_a_pod_has_a_service_that_leads_to_whatever_server_has_it() {
    needs!(cluster::lack(), no_machine(), support::no_namespaces());
    let shared = Shared::new().await;
    let own = cluster::address().to_string();
    let dns = "external-dns.alpha.kubernetes.io/hostname";
    let annotations = format!("{{\"{dns}\" = \"{{job}}.ims.example.com\"}}");
    let with_services = [
        ("KILN__KUBERNETES__SHELL_SERVICE", "NodePort"),
        ("KILN__KUBERNETES__SHELL_ANNOTATIONS", annotations.as_str()),
        ("KILN__SHELL__LISTEN", own.as_str()),
        // The rig's API is on this host's loopback, which says nothing about the way from the cluster.
        ("KILN__KUBERNETES__SHELL_ENDPOINT", own.as_str()),
    ];
    let first = shared.server_with(&with_services);
    let mut user = User::new();
    let key = user.file("key.pub");
    first.make(&["public-keys", "create", "--name", "me", "--public-key", &key]);
    let repository = Repository::native_at(cluster::address());
    let recipe = first.recipe(&Recipe::with_script("echo whole > /whole"), &repository, &[]);
    let job = first.build(&recipe, &["--enable-debug", "true"]);
    until(&first, &job, |status| status["shell"]["status"] == "ready");

    let selector = format!("kiln.job={job}");
    let service = kubectl(&["get", "services", "--selector", &selector, "--output", "json"]);
    let service: Value = serde_json::from_str(&service).unwrap();
    let service = &service["items"][0];
    user.service = service["metadata"]["name"].as_str().unwrap().to_owned();
    assert_eq!(
        service["metadata"]["annotations"][dns],
        format!("{job}.ims.example.com")
    );
    assert_eq!(service["spec"]["selector"], Value::Null);
    let record = first.json(&["jobs", "describe", &job]);
    let told = &record["ssh_containers"][0]["connection_info"];
    let node = kubectl(&[
        "get",
        "node",
        &cluster::said()["KILN_RIG_NODE"],
        "--output",
        "jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}",
    ]);
    assert_eq!(told["customer_access"]["host"], node);
    assert_eq!(told["customer_access"]["port"], service["spec"]["ports"][0]["nodePort"]);
    assert_eq!(
        told["cluster.local"]["host"],
        format!("{}.{NAMESPACE}.svc", user.service)
    );
    let whole = "cat /mnt/image/image-root/whole";
    assert_eq!(user.run(whole), "whole\n");

    // The way leads to another server as soon as that one has the job, and its address stays.
    first.started.signal(Signal::SIGKILL);
    first.started.end();
    let second = shared.server_with(&[&with_services[..], &[("KILN__SHELL__PORTS", "23000-23099")]].concat());
    let begun = Instant::now();
    while user.leads_to("ports[0].port").parse::<u16>().unwrap() < 23000 {
        assert!(begun.elapsed() < Duration::from_mins(2), "{}", second.status(&job));
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(user.run(whole), "whole\n");
    let after = second.json(&["jobs", "describe", &job]);
    assert_eq!(&after["ssh_containers"][0]["connection_info"], told);
    user.run("touch /mnt/image/complete");
    image_of(&second, &job);
    second.stop();
}
