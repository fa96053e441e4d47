//! Shells wherever a sandbox is: they are reached in the same way.

use std::{os::unix::fs::symlink, path::PathBuf, process::Command};

use super::site::{Shell, Site, changed, paths};
use crate::support::{self, HOST, engine::Engine, tool};

/// A root with one shell, which a machine with an emulated CPU unpacks in no time.
fn small(site: &Site) -> PathBuf {
    let root = site.home.path().join("small");
    for dir in ["bin", "dev", "etc", "proc", "root", "sys", "tmp"] {
        fs_err::create_dir_all(root.join(dir)).unwrap();
    }
    let program = root.join("bin/busybox");
    if !program.exists() {
        fs_err::copy("/bin/busybox", program).unwrap();
        for name in ["sh", "cat", "touch", "uname"] {
            symlink("busybox", root.join("bin").join(name)).unwrap();
        }
    }
    fs_err::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    let image = site.home.path().join("small.squashfs");
    let mut command = Command::new("mksquashfs");
    command
        .args([&root, &image])
        .args(["-quiet", "-no-progress", "-all-root", "-noappend"]);
    support::succeed(&mut command);
    image
}

/// Changes the small image by hand, in a sandbox that this is true of. Ends those others, too. Returns its job.
fn change(mut site: Site, others: &[String], require_dkms: &str, is_so: impl Fn(&serde_json::Value, &Shell)) -> String {
    let image = small(&site);
    site.image = site.upload(&image, HOST);
    let job = site.customize(&["--ssh-containers-jail", "true", "--require-dkms", require_dkms]);
    let shell = site.open(&job);
    let first = shell.try_run("true");
    assert!(
        first.status.success(),
        "{}{}",
        String::from_utf8_lossy(&first.stderr),
        site.log(&job)
    );
    is_so(&site.status(&job), &shell);
    shell.run("echo here > /root/mark");
    let stranger = shell.with_key(&site.key_file("other")).try_run("true");
    assert_eq!(stranger.status.code(), Some(255));
    site.json(&["jobs", "complete", &job]);
    let (_, after) = site.succeeded(&job);
    let mut differing = changed(&image, &after);
    differing.remove("/root");
    assert_eq!(differing, paths(&["/root/mark"]));
    for job in others {
        site.json(&["jobs", "fail", job]);
        site.failed(job);
    }
    site.stop();
    job
}

#[test]
fn a_shell_in_a_virtual_machine() {
    let qemu = format!("qemu-system-{HOST}");
    let no_qemu = Command::new(&qemu)
        .arg("--version")
        .output()
        .err()
        .map(|error| format!("{qemu}: {error}"));
    needs!(support::no_namespaces(), support::not_root(), no_qemu);
    let site = Site::empty(&[("KILN__ISOLATION__FOREIGN", "vm")]);
    let of_host = tool("uname", &["-r"]);
    change(site, &[], "true", |status, shell| {
        assert_eq!(
            (&status["driver"], &status["isolation"]),
            (&"microvm".into(), &"vm".into())
        );
        assert_ne!(shell.run("uname -r"), of_host);
        // Builds of modules depend on the kernel's own information.
        let events: u64 = shell.run("cat /sys/kernel/uevent_seqnum").trim().parse().unwrap();
        assert!(events > 0);
    });
}

#[test]
fn a_shell_in_a_container() {
    needs!(support::no_namespaces(), support::not_root(), Engine::lack());
    in_a_container_of(Engine::shared());
}

#[test]
fn a_shell_in_a_container_of_podman() {
    needs!(support::no_namespaces(), support::not_root(), Engine::lack_of_podman());
    in_a_container_of(Engine::podman());
}

fn in_a_container_of(at: &Engine) {
    let engine = at.address();
    let mut site = Site::empty(&[("KILN__DOCKER__ENGINE", &engine)]);
    site.server.started.wait_for("sandboxes on its own kernel can be had");
    site.image = site.upload(&small(&site), HOST);
    // While this one is on the host, the engine is less busy.
    let elsewhere = site.customize(&["--ssh-containers-jail", "true"]);
    site.open(&elsewhere);
    let others = [elsewhere];
    let job = change(site, &others, "false", |status, _| {
        assert_eq!(
            (&status["driver"], &status["isolation"]),
            (&"docker".into(), &"container".into())
        );
    });
    for job in [&job, &others[0]] {
        at.assert_nothing_of(job);
    }
}
