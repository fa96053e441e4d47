//! Images that are built in pods: the whole way of a job from `kiln serve` through a cluster into S3.
//!
//! `KILN_TEST_KUBERNETES_RUN` names the directory of a cluster that `.ci/kubernetes-rig up` has started.

use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::site::{Site, no_machine, until, until_settled};
use crate::support::{
    self, KILN_AGENT, Kiln, Recipe,
    cluster::{self, NAMESPACE},
    eventually, host_binfmt,
    repository::Repository,
};

#[test(threads = 4)]
async fn a_foreign_recipe_becomes_an_image_in_a_pod() {
    needs!(
        cluster::lack(),
        no_machine(),
        support::no_namespaces(),
        support::no_emulation()
    );
    let before = host_binfmt();
    let site = Site::new().await;
    let server = site.server();
    server.make_key();
    let repository = Repository::foreign_at(site.cluster.address());
    let arch = support::foreign();
    let script = Recipe::with_script("echo the machine is $(uname -m)");
    let recipe = server.recipe(&script, &repository, &["--arch", arch]);
    let job = server.build(&recipe, &[]);
    let (status, image) = site.image_of(&server, &job);
    assert_eq!(status["how"], "emulated", "{status:#}");
    assert_eq!(image["arch"], arch);
    let log = server.run(&["jobs", "logs", &job]).ok().stdout;
    assert!(log.contains(&format!("the machine is {arch}")), "{log}");
    let pulled = site.dir.path().join("image");
    let mut get = server
        .kiln
        .command(["artifacts", "get", image["id"].as_str().unwrap(), "--output"]);
    get.arg(&pulled)
        .envs(site.variables.iter().map(|(name, value)| (name, value)));
    support::run(get).ok();
    let kept = fs_err::read_dir(&pulled).unwrap().count();
    assert!(kept >= 2, "the root and its manifest: {kept}");
    server.stop();
    assert_eq!(host_binfmt(), before);
}

/// An image of the rig with nothing but the agent.
const BASE: &str = "rig.invalid/kiln:agent-only";

#[test(threads = 4)]
async fn a_pod_fetches_its_toolbox_where_no_registry_has_it() {
    needs!(cluster::lack(), no_machine(), support::no_namespaces());
    let mut site = Site::new().await;
    let agent = support::kiln_program().with_file_name(KILN_AGENT);
    site.cluster.import_file(BASE, "usr/bin/kiln-agent", &agent);
    site.variables.retain(|(name, _)| *name != "KILN__KUBERNETES__IMAGE");
    site.variables.push(("KILN__KUBERNETES__BASE_IMAGE", BASE.to_owned()));
    let pusher = Kiln::new();
    let push = |more: &[&str]| {
        let mut command = pusher.command(["toolbox", "push", "--vm"]);
        command
            .args(more)
            .envs(site.variables.iter().map(|(name, value)| (name, value)));
        support::run(command).ok()
    };
    let server = site.server();
    server.make_key();
    let repository = Repository::native_at(site.cluster.address());
    let recipe = server.recipe(&Recipe::with_script("echo whole > /whole"), &repository, &[]);
    let fails = |code: &str| {
        let job = server.build(&recipe, &[]);
        let status = until_settled(&server, &job);
        assert_eq!(status["error"]["code"], code, "{status:#}");
        assert_eq!(site.left_of(&job), "");
        status["error"]["detail"].as_str().unwrap().to_owned()
    };
    let doctor = || {
        let mut command = server.kiln.command(["doctor"]);
        command.envs(site.variables.iter().map(|(name, value)| (name, value)));
        support::run(command).stdout
    };
    let findings = doctor();
    assert!(findings.contains("kiln toolbox push --vm --arch"), "{findings}");
    let why = fails("image_missing");
    assert!(why.contains("there is no s3://"), "{why}");

    let name = push(&[]).stdout.trim().to_owned();
    assert!(why.ends_with(&name), "{why}, and {name} was pushed");
    let findings = doctor();
    assert!(findings.contains(&name), "{findings}");
    let again = push(&[]);
    assert!(again.stderr.contains("has this toolbox already"), "{}", again.stderr);
    assert_eq!(again.stdout.trim(), name);

    // Another toolbox than the server says would run with all rights of the pod.
    let artifacts = site.artifacts().await;
    let bucket = artifacts.recipes_bucket();
    let objects = artifacts.list(bucket, "toolboxes/").await.unwrap();
    let layer = objects.iter().find(|object| object.key.ends_with(".tar.gz")).unwrap();
    artifacts.put_bytes(bucket, &layer.key, "x", "x").await.unwrap();
    let why = fails("toolbox_fetch");
    assert!(why.contains("is damaged"), "{why}");

    assert_eq!(push(&["--again"]).stdout.trim(), name);
    let job = server.build(&recipe, &[]);
    site.image_of(&server, &job);
    server.stop();
}

#[test(threads = 4)]
async fn a_build_in_a_pod_outlives_its_server() {
    needs!(cluster::lack(), no_machine(), support::no_namespaces());
    let site = Site::new().await;
    let first = site.server();
    first.make_key();
    let repository = Repository::native_at(site.cluster.address());
    // Long enough for another server to notice that the first is gone.
    let recipe = first.recipe(&Recipe::with_script("sleep 45"), &repository, &[]);
    let job = first.build(&recipe, &[]);
    until(&first, &job, |status| status["step"] == "build");
    let pods = || {
        site.cluster.kubectl(&[
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
    let second = site.server();
    until(&second, &job, |status| {
        // It goes when the job has its image, and no other comes.
        let now = pods();
        assert!(now == pod || now.is_empty(), "{now} instead of {pod}");
        status["step"] != "build"
    });
    let (status, _) = site.image_of(&second, &job);
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
        cluster::shared().kubectl(&["get", "endpoints", &self.service, "--output", &path])
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

#[test(threads = 4)]
async fn a_shell_of_a_pod_has_a_service_that_leads_to_whatever_server_has_it() {
    needs!(cluster::lack(), no_machine(), support::no_namespaces());
    let site = Site::new().await;
    let own = site.cluster.address().to_string();
    let dns = "external-dns.alpha.kubernetes.io/hostname";
    let annotations = format!("{{\"{dns}\" = \"{{job}}.ims.example.com\"}}");
    let with_services = [
        ("KILN__KUBERNETES__SHELL_SERVICE", "NodePort"),
        ("KILN__KUBERNETES__SHELL_ANNOTATIONS", annotations.as_str()),
        ("KILN__SHELL__LISTEN", own.as_str()),
        // The rig's API is on this host's loopback, which says nothing about the way from the cluster.
        ("KILN__KUBERNETES__SHELL_ENDPOINT", own.as_str()),
    ];
    let first = site.server_with(&with_services);
    let mut user = User::new();
    let key = user.file("key.pub");
    first.make(&["public-keys", "create", "--name", "me", "--public-key", &key]);
    let repository = Repository::native_at(site.cluster.address());
    let recipe = first.recipe(&Recipe::with_script("echo whole > /whole"), &repository, &[]);
    let job = first.build(&recipe, &["--enable-debug", "true"]);
    until(&first, &job, |status| status["shell"]["status"] == "ready");

    let selector = format!("kiln.job={job}");
    let service = site
        .cluster
        .kubectl(&["get", "services", "--selector", &selector, "--output", "json"]);
    let service: Value = serde_json::from_str(&service).unwrap();
    let service = &service["items"][0];
    service["metadata"]["name"]
        .as_str()
        .unwrap()
        .clone_into(&mut user.service);
    assert_eq!(
        service["metadata"]["annotations"][dns],
        format!("{job}.ims.example.com")
    );
    assert_eq!(service["spec"]["selector"], Value::Null);
    let record = first.json(&["jobs", "describe", &job]);
    let told = &record["ssh_containers"][0]["connection_info"];
    let node = site.cluster.kubectl(&[
        "get",
        "node",
        site.cluster.said("KILN_RIG_NODE"),
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
    let second = site.server_with(&[&with_services[..], &[("KILN__SHELL__PORTS", "23000-23099")]].concat());
    eventually(|| {
        let leads = user.leads_to("ports[0].port").parse::<u16>().unwrap() >= 23000;
        if leads { Ok(()) } else { Err(second.status(&job)) }
    });
    assert_eq!(user.run(whole), "whole\n");
    let after = second.json(&["jobs", "describe", &job]);
    assert_eq!(&after["ssh_containers"][0]["connection_info"], told);
    user.run("touch /mnt/image/complete");
    site.image_of(&second, &job);
    second.stop();
}
