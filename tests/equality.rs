//! An image that was built with native twins is the image that plain emulation builds, to the last byte.

use std::path::Path;

use crate::{
    build::both,
    support::{self, Kiln, Recipe, foreign, repository::Repository, squashfs, tool},
};
use kiln_agent::verify::{
    UNLIKE,
    tree::{self, Difference, Tree, Unlike},
};
use serde_json::Value;

/// A root file system, and what ran how while it was built.
type Built = (Tree, Value);

fn build(recipe: &str, arguments: &[&str]) -> Built {
    let (kiln, output) = (Kiln::new(), tempfile::tempdir().unwrap());
    let mut all = vec!["build", recipe, "--arch", foreign(), "--output"];
    all.push(output.path().to_str().unwrap());
    all.extend(arguments);
    kiln.run(all).ok();
    let rootfs = output.path().join(foreign()).join("rootfs");
    (unpacked(&rootfs), kiln.jobs()[0]["execs"].clone())
}

/// What is in a squashfs.
pub fn unpacked(rootfs: &Path) -> Tree {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    squashfs::unpack(rootfs, &root, &[]);
    tree::read(&root).unwrap()
}

/// The differences as users read them.
pub fn lines(differences: &[Difference]) -> Vec<String> {
    differences.iter().map(Difference::to_string).collect()
}

/// Compares what plain emulation built with what was built with twins. Returns how many programs ran as twins.
#[track_caller]
fn compare((emulated, without): Built, (twinned, with): Built) -> u64 {
    let count = |execs: &Value, kind| execs[kind].as_u64().unwrap();
    assert_eq!(count(&without, "twins"), 0, "{without:#}");
    assert!(count(&without, "emulated") > 0, "{without:#}");
    let differences = tree::differences(&emulated, &twinned, UNLIKE);
    assert!(differences.is_empty(), "{with:#}\n{}", lines(&differences).join("\n"));
    count(&with, "twins")
}

/// Builds a recipe in both ways, and compares.
#[track_caller]
fn built_twice(recipe: &Recipe, arguments: &[&str]) -> u64 {
    let emulated = build(recipe.path(), &[arguments, &["--twins", "off"]].concat());
    compare(emulated, build(recipe.path(), arguments))
}

#[test]
fn debian_minimal_is_made_with_twins() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    let twins = both().images[foreign()].job["execs"]["twins"].as_u64().unwrap();
    assert!(twins > 1000, "only {twins} programs ran as twins");
}

#[test]
#[ignore = "takes ten minutes of two CPUs; benches/emulation runs it"]
fn debian_minimal_is_the_same_with_twins() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    let twins = built_twice(&Recipe::copy_of("debian-minimal"), &[]);
    assert!(twins > 1000, "only {twins} programs ran as twins");
}

/// An RPM root by this package manager.
fn rpm_root(manager: &str) {
    let (recipe, repository) = (Recipe::copy_of("rpm-shell"), Repository::shell().of(foreign()));
    let twins = built_twice(
        &recipe,
        &[&repository.set(), "--set", &format!("package_manager={manager}")],
    );
    assert!(twins > 200, "only {twins} programs ran as twins under {manager}");
}

#[test]
fn an_rpm_root_is_the_same_with_twins() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    rpm_root("zypper");
}

#[test]
#[ignore = "takes minutes, and differs from zypper's in who calls scripts only; benches/emulation runs it"]
fn an_rpm_root_by_dnf_is_the_same_with_twins() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    rpm_root("dnf4");
}

#[test]
#[ignore = "takes half an hour; benches/emulation runs it"]
fn debian_compute_is_the_same_with_twins() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    let twins = built_twice(&Recipe::copy_of("debian-compute"), &[]);
    assert!(twins > 5000, "only {twins} programs ran as twins");
}

/// A recipe of Debian 12, with Debian 13: many of its packages were rebuilt for one architecture only.
fn with_debian_13(name: &str) -> Recipe {
    Recipe::copy_of(name)
        .with_config("\"bookworm\"", "\"trixie\"")
        // kiwi sets it by a program that wants to have its file in the root.
        .with_config("<keytable>us</keytable>", "")
}

#[test]
#[ignore = "takes five minutes of two CPUs; benches/emulation runs it"]
fn debian_13_minimal_is_the_same_with_twins() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    let twins = built_twice(&with_debian_13("debian-minimal"), &[]);
    assert!(twins > 1000, "only {twins} programs ran as twins");
}

#[test]
#[ignore = "takes half an hour; benches/emulation runs it"]
fn debian_13_compute_is_the_same_with_twins() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    let twins = built_twice(&with_debian_13("debian-compute"), &[]);
    assert!(twins > 5000, "only {twins} programs ran as twins");
}

/// A tree with something of each kind.
fn small_tree(top: &Path) {
    let script = "cd \"$1\"; umask 022; mkdir -p usr/bin etc; printf program > usr/bin/ping; ln usr/bin/ping usr/bin/ping6; \
        ln -s ping usr/bin/link; mkfifo pipe; mknod null c 1 3; printf abc > etc/passwd; printf seed > etc/machine-id; \
        setfattr -n user.note -v hello etc/passwd; setcap cap_net_raw=ep usr/bin/ping";
    tool("sh", &["-ec", script, "sh", top.to_str().unwrap()]);
}

#[test]
fn whatever_differs_is_found() {
    needs!(support::not_root());
    let differing = |one: &Tree, other: &Path| {
        let unlike = [Unlike {
            path: "/etc/machine-id",
            why: "is random",
        }];
        tree::differences(one, &tree::read(other).unwrap(), &unlike)
    };
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    small_tree(one.path());
    small_tree(other.path());
    let one = tree::read(one.path()).unwrap();
    assert_eq!(one.len(), 11);
    assert_eq!(lines(&differing(&one, other.path())), [""; 0]);
    for (change, path) in [
        (
            "printf abd > etc/passwd",
            "/etc/passwd has 3 bytes (a52d159f262b…) instead of 3 bytes (ba7816bf8f01…)",
        ),
        ("printf abcd > etc/passwd", "/etc/passwd has 4 bytes"),
        ("chmod 4644 etc/passwd", "/etc/passwd has mode 4644 instead of 644"),
        ("chown 0:1 etc/passwd", "/etc/passwd belongs to 0:1 instead of 0:0"),
        (
            "chown -h 1:0 usr/bin/link",
            "/usr/bin/link belongs to 1:0 instead of 0:0",
        ),
        (
            "setfattr -n user.note -v hallo etc/passwd",
            "/etc/passwd has attributes user.note=hallo instead of attributes user.note=hello",
        ),
        (
            "setcap -r usr/bin/ping",
            "/usr/bin/ping has no attributes instead of attributes security.capability=",
        ),
        (
            "ln -sfn true usr/bin/link",
            "/usr/bin/link has target true instead of target ping",
        ),
        (
            "rm null; mknod null c 1 5",
            "/null has number 1:5 instead of number 1:3",
        ),
        (
            "rm null; mknod null b 1 3",
            "/null is a block device instead of a character device",
        ),
        (
            "cp -a usr/bin/ping x; mv x usr/bin/ping6",
            "/usr/bin/ping6 is a file of its own instead of the same file as /usr/bin/ping",
        ),
        ("rm pipe", "/pipe is missing"),
        ("mkdir empty", "/empty is there besides"),
        ("chmod 600 etc/machine-id", "/etc/machine-id has mode 600"),
    ] {
        let changed = tempfile::tempdir().unwrap();
        small_tree(changed.path());
        tool(
            "sh",
            &[
                "-ec",
                &format!("cd \"$1\"; {change}"),
                "sh",
                changed.path().to_str().unwrap(),
            ],
        );
        let found = lines(&differing(&one, changed.path()));
        assert!(found.iter().any(|line| line.starts_with(path)), "{change}: {found:?}");
    }
    fs_err::write(other.path().join("etc/machine-id"), "other").unwrap();
    assert_eq!(lines(&differing(&one, other.path())), [""; 0]);
}
