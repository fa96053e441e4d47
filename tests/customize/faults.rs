//! Tests faults of shells, images and their users.

use std::{io::Read, net::TcpStream, process::Stdio, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::site::{Site, changed, paths, rootfs};
use crate::support;

#[test]
fn a_user_who_goes_away_comes_back_even_when_the_server_was_killed() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[]);
    let job = site.customize(&["--ssh-containers-jail", "true"]);
    let shell = site.open(&job);
    // One whose connection breaks in the middle of something.
    let mut session = shell
        .ssh(&["root@127.0.0.1", "echo one > /root/mark; sleep 1000"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    support::eventually(|| shell.try_run("cat /root/mark").status.success());
    session.kill().unwrap();
    session.wait().unwrap();
    let site = site.crash();
    let same = site.open(&job);
    assert_eq!((same.port, same.host.as_str()), (shell.port, "127.0.0.1"));
    support::eventually(|| same.try_run("cat /root/mark").stdout == b"one\n");
    same.run("echo two >> /root/mark; touch /tmp/complete");
    let (_, after) = site.succeeded(&job);
    assert_eq!(changed(rootfs(), &after), paths(&["/root", "/root/mark", "/tmp"]));
    site.stop();
}

#[test]
fn strangers_do_not_get_in_and_a_flood_of_them_keeps_nobody_out_for_long() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[]);
    let job = site.customize(&["--ssh-containers-jail", "true"]);
    let shell = site.open(&job);
    let output = shell.with_key(&site.key_file("other")).try_run("true");
    assert_eq!(output.status.code(), Some(255));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("Permission denied (publickey)"), "{said}");
    let mut other_user = shell.ssh(&["nobody@127.0.0.1", "true"]);
    assert_eq!(
        other_user.stdin(Stdio::null()).output().unwrap().status.code(),
        Some(255)
    );

    // More silent connections than the server accepts.
    let flood: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(("127.0.0.1", shell.port)).unwrap())
        .collect();
    let turned_away = flood.iter().filter(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        matches!((&mut &**stream).read(&mut [0; 64]), Ok(0))
    });
    assert!(turned_away.count() >= 100 - 64 - 1, "everybody is let in");
    // The server answers others meanwhile, and the job is as it was.
    assert_eq!(site.status(&job)["shell"]["status"], "ready");
    drop(flood);
    support::eventually(|| shell.try_run("true").status.success());
    site.json(&["jobs", "fail", &job]);
    assert_eq!(site.failed(&job), "shell_failed");
    site.stop();
}

#[test]
fn with_both_files_the_changes_failed() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[]);
    let job = site.customize(&[]);
    let shell = site.open(&job);
    shell.run("touch /mnt/image/failed; touch /mnt/image/complete");
    assert_eq!(site.failed(&job), "shell_failed");
    let images = site.json(&["images", "list"]);
    assert_eq!(images.as_array().unwrap().len(), 1);
    site.stop();
}

#[test]
fn a_shell_that_nobody_uses_ends_and_one_that_is_used_does_not() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[("KILN__SHELL__IDLE", "6s")]);
    let job = site.customize(&["--ssh-containers-jail", "true"]);
    let shell = site.open(&job);
    // Used, it stays open for longer than that.
    shell.run("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 1; done");
    assert_eq!(site.status(&job)["shell"]["status"], "ready");
    assert_eq!(site.failed(&job), "shell_timeout");
    assert!(site.log(&job).contains("it was not used for 6 s"), "{}", site.log(&job));
    site.stop();
}

#[test]
fn a_sandbox_that_dies_under_its_user_is_the_end_of_the_job() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[]);
    let job = site.customize(&[]);
    let shell = site.open(&job);
    let session = shell
        .ssh(&["root@127.0.0.1", "echo here; sleep 1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let agents = site.server.kiln.processes();
    let agent = agents.iter().find(|(_, name)| *name == "agent").map(|(pid, _)| *pid);
    kill(Pid::from_raw(agent.expect("no agent runs")), Signal::SIGKILL).unwrap();
    // Not retried: the user's work is lost.
    assert_eq!(site.failed(&job), "sandbox_lost");
    assert_eq!(site.status(&job)["attempt"], 1);
    assert_eq!(session.wait_with_output().unwrap().status.code(), Some(255));
    site.stop();
}

#[test]
fn an_image_that_is_not_what_its_manifest_says_is_refused() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[]);
    // The object was changed by another program.
    let object = &site.pieces(&format!("{}/rootfs", site.image))[0];
    let mut bytes = fs_err::read(object).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs_err::write(object, bytes).unwrap();
    let job = site.customize(&[]);
    assert_eq!(site.failed(&job), "image_corrupt");
    site.stop();

    let mut site = Site::empty(&[]);
    let text = site.home.path().join("text");
    fs_err::write(&text, "this is no squashfs\n").unwrap();
    site.image = site.upload(&text, support::HOST);
    let job = site.customize(&[]);
    assert_eq!(site.failed(&job), "image_corrupt");
    assert!(site.log(&job).contains("superblock"), "{}", site.log(&job));
    site.stop();
}

#[test]
fn a_key_that_lets_nobody_in_is_said_to_be_one() {
    needs!(support::no_namespaces(), support::not_root());
    let site = Site::start(&[]);
    let key = site.home.path().join("nonsense");
    fs_err::write(&key, "ssh-ed25519 nonsense me@here\n").unwrap();
    site.json(&[
        "public-keys",
        "create",
        "--name",
        "bad",
        "--public-key",
        key.to_str().unwrap(),
    ]);
    let made = site.json(&[
        "jobs",
        "create",
        "--job-type",
        "customize",
        "--artifact-id",
        &site.image,
        "--public-key-id",
        "bad",
        "--image-root-archive-name",
        "changed",
    ]);
    assert_eq!(site.failed(made["id"].as_str().unwrap()), "bad_public_key");
    site.stop();
}
