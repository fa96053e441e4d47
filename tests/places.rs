//! Real jobs at every kind of place: the server, the driver, the agent and kiwi, in virtual machines and in containers.

use std::{collections::BTreeSet, time::Instant};

use crate::support::{
    self, Kiln, Recipe,
    authority::Authority,
    engine::Engine,
    eventually, own_address,
    repository::Repository,
    serve::Server,
    sshd::Sshd,
    wait::{FOR_A_BUILD, within},
};
use serde_json::Value;

pub fn no_qemu() -> Option<String> {
    let program = format!("qemu-system-{}", support::HOST);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|dir| dir.join(&program).exists());
    (!is_there).then(|| format!("{program} is not installed: `.ci/install-packages test`"))
}

/// Waits until a job has made its image and everything of it is cleared away. Returns its status and its log.
#[track_caller]
fn succeeded(server: &Server, job: &str) -> (Value, String) {
    let status = within(FOR_A_BUILD, || {
        let status = server.status(job);
        // The log is kept when all is cleared away.
        if status["log"].is_string() {
            Ok(status)
        } else {
            Err(status)
        }
    });
    let log = server.run(&["jobs", "logs", job]).ok().stdout;
    assert_eq!(status["state"], "success", "{status:#}\n{log}");
    (status, log)
}

/// Builds a small recipe for `arch` several times at once on a server with these variables. Returns the jobs' records,
/// and the recipe script's report on its kernel.
fn builds(
    repository: &Repository,
    arch: &str,
    require_dkms: &str,
    variables: &[(&str, &str)],
    once_it_says: Option<&str>,
    count: usize,
) -> Vec<(Value, String)> {
    let ports = format!("[{}]", repository.port());
    let variables = [&[("KILN__ISOLATION__LOOPBACK_PORTS", ports.as_str())], variables].concat();
    let mut server = Server::start_in(Kiln::new(), &variables);
    if let Some(line) = once_it_says {
        server.started.wait_for(line);
    }
    server.make_key();
    // The script says which kernel it runs on, and tells it apart from the host's.
    let recipe = Recipe::with_script("echo the kernel is $(cat /proc/sys/kernel/osrelease)");
    let recipe = server.recipe(&recipe, repository, &["--require-dkms", require_dkms, "--arch", arch]);
    let begun = Instant::now();
    let jobs: Vec<_> = (0..count).map(|_| server.build(&recipe, &[])).collect();
    let ended = jobs.iter().map(|job| {
        let (status, log) = succeeded(&server, job);
        println!("a build took {:?}: {:#}", begun.elapsed(), status["steps"]);
        assert!(status["used"]["disk_bytes"].as_u64().unwrap() > 0, "{status:#}");
        let said = log.lines().find_map(|line| line.split_once("the kernel is "));
        (status, said.unwrap().1.trim().to_owned())
    });
    let ended = ended.collect();
    server.stop();
    ended
}

#[test]
fn a_foreign_recipe_becomes_an_image_and_the_hosts_kernel_is_not_asked() {
    needs!(support::no_namespaces(), no_qemu());
    let before = support::host_binfmt();
    let (repository, arch) = (Repository::foreign(), support::foreign());
    let [(status, kernel)]: [_; 1] = builds(&repository, arch, "false", &[], None, 1).try_into().unwrap();
    let of_host = fs_err::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(kernel.contains("cloud") && kernel != of_host.trim(), "{kernel}");
    assert_eq!(status["sandbox"]["kernel"], kernel, "{status:#}");
    assert!(
        status["sandbox"]["hypervisor"].as_str().unwrap().contains("QEMU"),
        "{status:#}"
    );
    assert_eq!(
        (&status["driver"], &status["isolation"]),
        (&"microvm".into(), &"vm".into())
    );
    assert_eq!(status["how"], "emulated");
    assert!(
        status["sandbox"]["emulator"].as_str().unwrap().contains("version"),
        "{status:#}"
    );
    assert_eq!(support::host_binfmt(), before);
}

/// Builds a Debian recipe, and perhaps changes its image, with what a recipe and a server have when a user sets nothing:
/// IMS's `require_dkms`, and so a virtual machine.
fn debian(arch: &str, how: &str, is_changed: bool) {
    needs!(support::no_namespaces(), no_qemu());
    let before = support::host_binfmt();
    let repository = Repository::debian();
    let (ports, url) = (format!("[{}]", repository.port()), repository.url());
    let server = Server::start_in(Kiln::new(), &[("KILN__ISOLATION__LOOPBACK_PORTS", &ports)]);
    server.make_key();
    let recipe = Recipe::copy_of("deb-tiny");
    let arguments = [
        "recipes",
        "create",
        "--from",
        recipe.path(),
        "--name",
        "debian",
        "--arch",
        arch,
    ];
    let values = [
        "--template-dictionary-key",
        "deb_repo",
        "--template-dictionary-value",
        &url,
    ];
    let recipe = server.make(&[&arguments[..], &["--linux-distribution", "debian"], &values].concat());

    let of_host = fs_err::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let check = |job: &str| {
        let (status, log) = succeeded(&server, job);
        println!("a job took {:#}", status["steps"]);
        assert_eq!(
            [&status["driver"], &status["isolation"], &status["how"]],
            ["microvm", "vm", how],
            "{status:#}"
        );
        let kernel = status["sandbox"]["kernel"].as_str().unwrap().to_owned();
        assert!(kernel.contains("cloud") && kernel != of_host.trim(), "{status:#}");
        let hypervisor = status["sandbox"]["hypervisor"].as_str().unwrap();
        assert!(hypervisor.contains("QEMU"), "{status:#}");
        (status["image"].as_str().unwrap().to_owned(), log, kernel)
    };
    let (image, log, kernel) = check(&server.build(&recipe, &[]));
    assert!(log.contains(&format!("the kernel is {kernel}\n")), "{log}");
    let debian = if arch == "aarch64" { "arm64" } else { "amd64" };
    assert!(log.contains(&format!("config.sh: {arch}, dpkg says {debian}")), "{log}");
    // The script of a package ran as the image's architecture.
    let noted = server.run(&["images", "files", &image, "/etc/tiny-installed-on", "--output", "-"]);
    assert_eq!(noted.ok().stdout, format!("{arch}\n"));
    if is_changed {
        // The image's own dpkg works when it is changed.
        let change = "set -e; dpkg --status tiny-note; echo changed > /etc/tiny";
        let job = server.make(&["customize", &image, "--run", change]);
        let (changed, ..) = check(&job);
        assert_eq!(server.json(&["images", "describe", &changed])["arch"], arch);
    }
    server.stop();
    assert_eq!(support::host_binfmt(), before);
}

#[test]
fn a_debian_recipe_becomes_an_image_and_is_changed_in_machines() {
    debian(support::HOST, "native", true);
}

#[test]
fn a_foreign_debian_recipe_becomes_an_image_in_a_machine() {
    // An emulator in an emulated machine takes ten minutes for a job, and tests/customize changes foreign images.
    debian(support::foreign(), "emulated", false);
}

#[test]
fn a_container_engine_shares_the_work_with_the_host() {
    needs!(support::no_namespaces(), Engine::lack());
    let engine = Engine::shared().address();
    let repository = Repository::native();
    let ended = builds(
        &repository,
        support::HOST,
        "false",
        &[("KILN__DOCKER__ENGINE", &engine), ("KILN__CAPACITY__JOBS", "2")],
        Some("sandboxes on its own kernel can be had"),
        4,
    );
    let of_host = fs_err::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    // The one that is faster carries out more of them.
    let drivers: BTreeSet<_> = ended
        .iter()
        .map(|(status, _)| status["driver"].as_str().unwrap())
        .collect();
    assert_eq!(Vec::from_iter(drivers), ["docker", "namespace"]);
    for (status, kernel) in &ended {
        assert_eq!(
            (status["how"].as_str(), kernel.as_str()),
            (Some("native"), of_host.trim())
        );
    }
    for (status, _) in &ended {
        Engine::shared().assert_nothing_of(status["id"].as_str().unwrap());
    }
}

#[test]
fn podman_builds_as_docker_does() {
    needs!(support::no_namespaces(), Engine::lack_of_podman());
    let engine = Engine::podman().address();
    let variables = [
        ("KILN__DOCKER__ENGINE", engine.as_str()),
        ("KILN__ISOLATION__DRIVERS", "[\"docker\"]"),
    ];
    let built = builds(&Repository::native(), support::HOST, "false", &variables, None, 1);
    for (status, _) in &built {
        assert_eq!(
            [&status["driver"], &status["how"], &status["isolation"]],
            ["docker", "native", "container"]
        );
    }
    Engine::podman().assert_nothing_of(built[0].0["id"].as_str().unwrap());
}

#[test]
fn a_build_node_with_podman_carries_out_a_job() {
    needs!(support::no_namespaces(), Engine::lack_of_podman(), Sshd::lack());
    let sshd = Sshd::start_beside(Engine::podman().podman_pid());
    sshd.configure_client("host");
    let repository = Repository::native();
    let (ports, socket) = (format!("[{}]", repository.port()), Engine::podman().socket());
    let (user, identity, hosts, ssh) = (
        Sshd::user(),
        sshd.at("identity"),
        sshd.at("known_hosts"),
        sshd.at("ssh_config"),
    );
    let variables = [
        ("KILN__ISOLATION__LOOPBACK_PORTS", ports.as_str()),
        ("KILN__ISOLATION__DRIVERS", "[\"docker\"]"),
        ("KILN__REMOTE_BUILD_NODES__USER", &user),
        ("KILN__REMOTE_BUILD_NODES__IDENTITY_FILE", &identity),
        ("KILN__REMOTE_BUILD_NODES__KNOWN_HOSTS", &hosts),
        ("KILN__REMOTE_BUILD_NODES__SSH_CONFIG", &ssh),
        ("KILN__REMOTE_BUILD_NODES__ENGINE_SOCKET", socket.to_str().unwrap()),
    ];
    let server = Server::start_in(Kiln::new(), &variables);
    server.make_key();
    server.run(&["remote-build-nodes", "create", "--xname", "here"]).ok();
    let seen = server.json(&["remote-build-nodes", "status", "describe", "here"]);
    assert_eq!(seen["ableToRunJobs"], true, "{seen:#}");
    assert!(
        seen["podmanStatus"].as_str().unwrap().starts_with("Podman present at "),
        "{seen:#}"
    );
    let recipe = server.recipe(&Recipe::with_script("true"), &repository, &["--require-dkms", "false"]);
    let (status, _) = succeeded(&server, &server.build(&recipe, &[]));
    assert_eq!(
        [&status["place"], &status["driver"], &status["how"]],
        ["here", "docker", "native"]
    );
    let record = server.json(&["jobs", "describe", status["id"].as_str().unwrap()]);
    assert_eq!(record["remote_build_node"], "here");
    // The doctor tries out each node, and says why one cannot be used.
    server.run(&["remote-build-nodes", "create", "--xname", "nowhere"]).ok();
    let mut doctor = server.kiln.command(["doctor", "--json"]);
    doctor.envs(variables);
    let findings: Value = serde_json::from_str(&support::run(doctor).stdout).unwrap();
    let nodes = findings
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["what"] == "build node");
    let said: Vec<_> = nodes
        .map(|one| (&one["state"], one["detail"].as_str().unwrap()))
        .collect();
    assert_eq!(said.len(), 2, "{findings:#}");
    assert_eq!(said[0].0, "ok");
    assert!(
        said[0].1.starts_with("here, ") && said[0].1.ends_with(": a container ran"),
        "{said:?}"
    );
    assert!(said[1].0 == "broken" && said[1].1.contains("nowhere: "), "{said:?}");
    server.stop();
    Engine::podman().assert_nothing_of(status["id"].as_str().unwrap());
}

/// Builds on an engine behind TLS, from where agents come over the network, until the job's status is `wanted` or it has
/// ended. The server has a certificate, perhaps with that of its authority, and these variables.
fn comes_over_the_network(with_authority: bool, names_authority: bool, wanted: fn(&Value) -> bool) -> (Value, String) {
    let kiln = Kiln::new();
    let authority = Authority::new();
    let at = |name: &str| kiln.data().join(name).to_str().unwrap().to_owned();
    let (certificate, key, ca) = (at("tls.pem"), at("tls.key"), at("ca.pem"));
    let own = own_address().unwrap().to_string();
    authority.write_for(&["127.0.0.1", &own], certificate.as_ref(), key.as_ref());
    fs_err::write(&ca, &authority.pem).unwrap();
    if with_authority {
        let chain = fs_err::read_to_string(&certificate).unwrap() + &authority.pem;
        fs_err::write(&certificate, chain).unwrap();
    }
    let port = std::net::TcpListener::bind((own.as_str(), 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let listen = format!("[\"127.0.0.1:0\", \"{own}:{port}\"]");
    let url = format!("https://{own}:{port}");
    let (engine, certificates) = Engine::shared().over_tls();
    // Agents that do not trust the server never call.
    let heartbeat = if with_authority || names_authority { "5m" } else { "8s" };
    let mut variables = vec![
        ("KILN__SERVER__LISTEN", listen.as_str()),
        ("KILN__SERVER__TLS_CERTIFICATE", &certificate),
        ("KILN__SERVER__TLS_KEY", &key),
        ("KILN__SERVER__AGENT_URL", &url),
        ("KILN__AUTH__MODE", "required"),
        ("KILN__DOCKER__ENGINE", &engine),
        ("KILN__DOCKER__CERTIFICATES", certificates.to_str().unwrap()),
        ("KILN__ISOLATION__DRIVERS", "[\"docker\"]"),
        ("KILN__WATCH__HEARTBEAT", heartbeat),
        ("KILN__WATCH__ATTEMPTS", "1"),
    ];
    if names_authority {
        variables.push(("KILN__SERVER__AGENT_CA_BUNDLE", &ca));
    }
    let mut server = Server::start_in(kiln, &variables);
    let told = server.started.wait_for("its agent_url");
    server.environment = vec![("KILN_TOKEN", server.token("admin")), ("KILN_CA_FILE", ca.clone())];
    server.make_key();
    let recipe = server.recipe(
        &Recipe::with_script("true"),
        &Repository::native(),
        &["--require-dkms", "false"],
    );
    let job = server.build(&recipe, &[]);
    let status = within(FOR_A_BUILD, || {
        let status = server.status(&job);
        if wanted(&status) || status["error"].is_object() {
            Ok(status)
        } else {
            Err(status)
        }
    });
    server.run(&["jobs", "cancel", &job]);
    eventually(|| server.status(&job)["log"].is_string());
    server.stop();
    (status, told)
}

/// Embedded S3 is out of an engine's reach, so a job that comes this far is enough.
fn agent_has_called(status: &Value) -> bool {
    status["sandbox"].is_object()
}

#[test]
fn agents_trust_the_server_at_its_agent_url_and_say_why_where_they_cannot() {
    needs!(support::no_namespaces(), Engine::lack());
    for (with_authority, names_authority) in [(true, false), (false, true)] {
        let (status, told) = comes_over_the_network(with_authority, names_authority, agent_has_called);
        assert!(agent_has_called(&status), "{status:#}");
        assert_eq!(
            (&status["driver"], &status["place"]),
            (&"docker".into(), &"docker".into())
        );
        assert!(told.contains("agents find this server"), "{told}");
    }
    let (status, told) = comes_over_the_network(false, false, agent_has_called);
    assert!(
        told.contains("agents do not find this server") && told.contains("UnknownIssuer"),
        "{told}"
    );
    let error = &status["error"];
    assert_eq!(error["code"], "agent_unreachable", "{status:#}");
    assert!(
        error["detail"].as_str().unwrap().contains("UnknownIssuer"),
        "{status:#}"
    );
    assert!(
        error["hint"].as_str().unwrap().contains("agent_ca_bundle"),
        "{status:#}"
    );
}
