//! An image that was built with native twins is the image that plain emulation builds, to the last byte.

use std::path::Path;

use crate::support::{
    self, Kiln, Recipe, foreign,
    repository::Repository,
    squashfs, tool,
    tree::{self, Tree, Unlike},
};
use serde_json::Value;

/// The differences between any two builds of these recipes, each with its reason. Such a file must still exist with the
/// same type, mode, owner and attributes.
const UNLIKE: &[Unlike] = &[
    Unlike {
        path: "/var/cache/ldconfig/aux-cache",
        why: "has inode numbers and times of the libraries",
    },
    Unlike {
        path: "/var/lib/dbus/machine-id",
        why: "is a random number",
    },
    Unlike {
        path: "/var/log/alternatives.log",
        why: "has the time in each line",
    },
    Unlike {
        path: "/var/lib/rpm/rpmdb.sqlite",
        why: "has the time at which each package was installed",
    },
    Unlike {
        path: "/var/lib/rpm/rpmdb.sqlite-shm",
        why: "is about a journal with a random number",
    },
    Unlike {
        path: "/var/lib/dnf/history.sqlite",
        why: "has the time of each transaction",
    },
    Unlike {
        path: "/var/lib/dnf/history.sqlite-wal",
        why: "has a random number",
    },
    Unlike {
        path: "/var/lib/dnf/history.sqlite-shm",
        why: "is about a journal with a random number",
    },
    Unlike {
        path: "/var/log/dnf.log",
        why: "has the time in each line",
    },
    Unlike {
        path: "/var/log/dnf.librepo.log",
        why: "has the time in each line",
    },
    Unlike {
        path: "/var/log/dnf.rpm.log",
        why: "has the time in each line",
    },
    Unlike {
        path: "/var/log/hawkey.log",
        why: "has the time in each line",
    },
    Unlike {
        path: "/var/lib/zypp/AutoInstalled",
        why: "has the time in its first line",
    },
    Unlike {
        path: "/var/log/zypp/history",
        why: "has the time in each line",
    },
];

/// An image's tree, and what ran how while it was built.
fn build(recipe: &Recipe, arguments: &[&str]) -> (Tree, Value) {
    let (kiln, output) = (Kiln::new(), tempfile::tempdir().unwrap());
    let mut all = vec!["build", recipe.path(), "--arch", foreign(), "--output"];
    all.push(output.path().to_str().unwrap());
    all.extend(arguments);
    kiln.run(all).ok();
    let root = output.path().join("root");
    squashfs::unpack(&output.path().join(foreign()).join("rootfs"), &root, &[]);
    (tree::read(&root), kiln.jobs()[0]["execs"].clone())
}

/// Builds a recipe by plain emulation and with twins, and compares the trees. Returns how many programs ran as twins.
#[track_caller]
fn compare(recipe: &Recipe, arguments: &[&str]) -> u64 {
    let count = |execs: &Value, kind| execs[kind].as_u64().unwrap();
    let (emulated, execs) = build(recipe, &[arguments, &["--twins", "off"]].concat());
    assert_eq!(count(&execs, "twins"), 0, "{execs:#}");
    assert!(count(&execs, "emulated") > 0, "{execs:#}");
    let (twinned, execs) = build(recipe, arguments);
    let differences = tree::differences(&emulated, &twinned, UNLIKE);
    assert!(differences.is_empty(), "{execs:#}\n{}", differences.join("\n"));
    count(&execs, "twins")
}

#[test]
fn debian_minimal_is_the_same_with_twins() {
    needs!(support::no_namespaces(), support::no_emulation(), support::not_root());
    let twins = compare(&Recipe::copy_of("debian-minimal"), &[]);
    assert!(twins > 1000, "only {twins} programs ran as twins");
}

/// An RPM root by this package manager.
fn rpm_root(manager: &str) {
    let (recipe, repository) = (Recipe::copy_of("rpm-shell"), Repository::shell().of(foreign()));
    let twins = compare(
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
    let twins = compare(&Recipe::copy_of("debian-compute"), &[]);
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
    let unlike = [Unlike {
        path: "/etc/machine-id",
        why: "is random",
    }];
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    small_tree(one.path());
    small_tree(other.path());
    let one = tree::read(one.path());
    assert_eq!(one.len(), 11);
    assert_eq!(tree::differences(&one, &tree::read(other.path()), &unlike), [""; 0]);
    for (change, path) in [
        ("printf abd > etc/passwd", "/etc/passwd: has Bytes"),
        ("printf abcd > etc/passwd", "/etc/passwd: has Bytes"),
        ("chmod 4644 etc/passwd", "/etc/passwd: has mode 4644 instead of 644"),
        ("chown 0:1 etc/passwd", "/etc/passwd: belongs to (0, 1)"),
        ("chown -h 1:0 usr/bin/link", "/usr/bin/link: belongs to (1, 0)"),
        (
            "setfattr -n user.note -v hallo etc/passwd",
            "/etc/passwd: has the attributes",
        ),
        ("setcap -r usr/bin/ping", "/usr/bin/ping: has the attributes"),
        ("ln -sfn true usr/bin/link", "/usr/bin/link: has Target"),
        ("rm null; mknod null c 1 5", "/null: has Device"),
        (
            "rm null; mknod null b 1 3",
            "/null: is a block device instead of a character device",
        ),
        (
            "cp -a usr/bin/ping x; mv x usr/bin/ping6",
            "/usr/bin/ping6: is the same file as None",
        ),
        ("rm pipe", "/pipe: is missing"),
        ("mkdir empty", "/empty: is there besides"),
        ("chmod 600 etc/machine-id", "/etc/machine-id: has mode 600"),
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
        let found = tree::differences(&one, &tree::read(changed.path()), &unlike);
        assert!(found.iter().any(|line| line.starts_with(path)), "{change}: {found:?}");
    }
    fs_err::write(other.path().join("etc/machine-id"), "other").unwrap();
    assert_eq!(tree::differences(&one, &tree::read(other.path()), &unlike), [""; 0]);
}
