//! A real job in a virtual machine: the server, the driver, the agent and kiwi, with a kernel of the job's own.

#![cfg(all(feature = "server", feature = "agent"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says how long it took"
)]

mod support;

use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Kiln, Recipe, repository::Repository, serve::Server};

/// An emulated CPU takes this long at most, on a host that does other things too.
const PATIENCE: Duration = Duration::from_mins(20);

fn no_qemu() -> Option<String> {
    let program = format!("qemu-system-{}", support::HOST);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|dir| dir.join(&program).exists());
    (!is_there).then(|| format!("{program} is not installed"))
}

/// Has a server build a small recipe for `arch`; what the job's record says then.
fn build(repository: &Repository, arch: &str, require_dkms: &str) -> Value {
    let ports = format!("[{}]", repository.port());
    let server = Server::start_in(Kiln::new(), &[("KILN__ISOLATION__LOOPBACK_PORTS", &ports)]);
    let run = |args: &[&str]| {
        let mut command = server.kiln.command(args);
        command.env("KILN_SERVER", &server.url);
        support::run(command)
    };
    let json = |args: &[&str]| -> Value {
        let ran = run(&[args, &["--format", "json"]].concat()).ok();
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let key = server.kiln.data().join("key.pub");
    fs_err::write(&key, "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me@here\n").unwrap();
    let key = json(&[
        "public-keys",
        "create",
        "--name",
        "key",
        "--public-key",
        key.to_str().unwrap(),
    ]);
    // The script says which kernel it runs on, and tells it apart from the host's.
    let recipe = Recipe::with_script("echo the kernel is $(cat /proc/sys/kernel/osrelease)");
    let url = repository.url();
    let recipe = json(&[
        "recipes",
        "create",
        "--from",
        recipe.path(),
        "--name",
        "own",
        "--linux-distribution",
        "sles15",
        "--template-dictionary-key",
        "rpm_repo",
        "--template-dictionary-value",
        &url,
        "--require-dkms",
        require_dkms,
        "--arch",
        arch,
    ]);
    let begun = Instant::now();
    let job = json(&[
        "jobs",
        "create",
        "--job-type",
        "create",
        "--artifact-id",
        recipe["id"].as_str().unwrap(),
        "--public-key-id",
        key["id"].as_str().unwrap(),
        "--image-root-archive-name",
        "image",
    ]);
    let job = job["id"].as_str().unwrap();
    let status = loop {
        let status = json(&["jobs", "status", job]);
        // The log is kept when all is cleared away.
        if status["log"].is_string() {
            break status;
        }
        assert!(begun.elapsed() < PATIENCE, "{status:#}");
        std::thread::sleep(Duration::from_secs(2));
    };
    let log = run(&["jobs", "logs", job]).ok().stdout;
    assert_eq!(status["state"], "success", "{status:#}\n{log}");
    println!("a build in a machine took {:?}: {:#}", begun.elapsed(), status["steps"]);
    let kernel = log
        .lines()
        .find_map(|line| line.split_once("the kernel is "))
        .unwrap()
        .1;
    let of_host = fs_err::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(kernel.contains("cloud") && kernel.trim() != of_host.trim(), "{kernel}");
    assert!(status["used"]["disk_bytes"].as_u64().unwrap() > 0, "{status:#}");
    server.stop();
    status
}

#[test]
fn a_recipe_that_needs_a_kernel_of_its_own_becomes_an_image() {
    needs!(support::no_namespaces(), no_qemu());
    let status = build(&Repository::native(), support::HOST, "true");
    assert_eq!(
        (&status["how"], &status["driver"]),
        (&"native".into(), &"microvm".into())
    );
}

#[test]
fn a_foreign_recipe_becomes_an_image_and_the_hosts_kernel_is_not_asked() {
    needs!(support::no_namespaces(), no_qemu());
    let before = support::host_binfmt();
    let status = build(&Repository::foreign(), support::foreign(), "false");
    assert_eq!(
        (&status["how"], &status["driver"]),
        (&"emulated".into(), &"microvm".into())
    );
    assert!(
        status["sandbox"]["kernel"].as_str().unwrap().contains("cloud"),
        "{status:#}"
    );
    assert_eq!(support::host_binfmt(), before);
}
