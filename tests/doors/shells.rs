//! Shells of jobs: neither strangers nor what users leave in the sandbox cost the work in it.

use std::{
    io::Read,
    net::{Shutdown, TcpStream},
};

use crate::{
    customize::site::{Shell, Site, changed, paths, rootfs},
    support,
};

/// A count that a shell's sandbox says of itself; none if nobody can log in just now.
fn count(shell: &Shell, script: &str) -> Option<u32> {
    let ran = shell.try_run(script);
    String::from_utf8_lossy(&ran.stdout).trim().parse().ok()
}

/// Runs a script, however often the login is refused before.
fn run_in_the_end(shell: &Shell, script: &str) {
    support::eventually(|| shell.try_run(script).status.success());
}

/// Starts processes until no more are allowed. Those go on without their user.
const FILL: &str = "setsid python3 -c '
import os, time
while True:
    try:
        child = os.fork()
    except OSError:
        break
    if child == 0:
        os.setsid()
        time.sleep(10000)
time.sleep(10000)
' > /dev/null 2>&1 < /dev/null & echo started";

#[test]
fn strangers_leave_nothing_and_the_work_is_kept_with_no_process_to_spare() {
    // It waits for several logins to a sandbox without a process to spare.
    let unasked = support::not_asked("it takes minutes on a busy host");
    needs!(support::no_namespaces(), support::not_root(), unasked);
    let site = Site::start(&[("KILN__CAPACITY__PROCESSES_PER_JOB", "150")]);
    let job = site.customize(&["--ssh-containers-jail", "true"]);
    let shell = site.open(&job);
    shell.run("echo work > /root/work");
    let connect = || TcpStream::connect((shell.host.as_str(), shell.port)).unwrap();
    for number in 0..160 {
        let mut stranger = connect();
        if number % 4 == 0 {
            // Some hear who answers.
            let _ = stranger.read(&mut [0; 8]);
        }
        let _ = stranger.shutdown(Shutdown::Both);
    }
    run_in_the_end(&shell, "true");
    // Those that had not logged in end when the server has seen that they are gone.
    support::eventually(|| match count(&shell, "ls -d /proc/[0-9]* | wc -l") {
        Some(processes) if processes < 20 => Ok(()),
        processes => Err(format!("{processes:?} processes")),
    });
    // Each connection has one of its own, as sshd is made.
    support::eventually(|| {
        count(&shell, "grep -ls '^State:.Z' /proc/[0-9]*/status | wc -l").is_some_and(|dead| dead < 3)
    });

    // Who stays without a key does not keep its owner out.
    let held: Vec<_> = (0..40).map(|_| connect()).collect();
    run_in_the_end(&shell, "true");

    // A directory is no verdict.
    run_in_the_end(&shell, "mkdir -p /tmp/complete /tmp/failed && touch /tmp/failed/inside");
    // The login itself may find no process to spare before it says how it went.
    support::eventually(|| {
        let _ = shell.try_run(FILL);
        !shell.try_run("true").status.success()
    });
    site.json(&["jobs", "complete", &job]);
    let (_, after) = site.succeeded(&job);
    drop(held);
    assert_eq!(
        changed(rootfs(), &after),
        paths(&[
            "/root",
            "/root/work",
            "/tmp",
            "/tmp/complete",
            "/tmp/failed",
            "/tmp/failed/inside"
        ])
    );
    site.stop();
}

#[test]
fn the_work_of_a_shell_without_a_verdict_can_still_be_packaged() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[("KILN__SHELL__IDLE", "15s"), ("KILN__WATCH__KEEP_FAILED", "1h")]);
    let job = site.customize(&["--ssh-containers-jail", "true"]);
    site.open(&job).run("echo work > /root/work");
    assert_eq!(site.failed(&job), "shell_timeout");
    let again = site.json(&["jobs", "retry", &job, "--from", "package"]);
    let (_, after) = site.succeeded(again["id"].as_str().unwrap());
    assert_eq!(changed(rootfs(), &after), paths(&["/root", "/root/work"]));
    site.stop();
}

#[test]
fn the_work_of_a_shell_outlives_its_sandbox() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[("KILN__WATCH__KEEP_FAILED", "1h")]);
    let job = site.customize(&["--ssh-containers-jail", "true"]);
    let shell = site.open(&job);
    shell.run("echo work > /root/work; touch /tmp/failed; rm /tmp/failed");
    let killed =
        "for one in /proc/[0-9]*; do case $(cat $one/comm) in agent|kiln-agent) kill -9 ${one#/proc/};; esac; done";
    let _ = shell.try_run(killed);
    assert_eq!(site.failed(&job), "sandbox_lost");
    let again = site.json(&["jobs", "retry", &job, "--from", "package"]);
    let (_, after) = site.succeeded(again["id"].as_str().unwrap());
    assert_eq!(changed(rootfs(), &after), paths(&["/root", "/root/work", "/tmp"]));
    site.stop();
}
