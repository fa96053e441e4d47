//! Equal inputs give equal images, to the last byte.

use std::path::{Path, PathBuf};

use kiln_agent::verify::tree;

use crate::equality::{lines, unpacked};
use crate::support::{self, HOST, Kiln, Recipe, foreign, repository::Repository, squashfs};

/// The date of the images: 14 November 2023.
const EPOCH: &str = "1700000000";

/// Leaves in a root what no two builds have in common.
const SCRIPT: &str = r#"#!/bin/sh
set -eu
random=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
echo "$random" > /etc/machine-id
mkdir -p /etc/ssh /var/log/app /var/lib/systemd /var/lib/dbus
echo "$random" > /etc/ssh/ssh_host_ed25519_key
echo "$random" > /etc/ssh/ssh_host_ed25519_key.pub
echo "$random" > /var/lib/dbus/machine-id
echo "$random" > /var/lib/systemd/random-seed
date +%s.%N > /var/log/app/app.log
echo "the date is $SOURCE_DATE_EPOCH" > /etc/dated
"#;

/// Builds a recipe with these arguments; its root file system.
fn build(kiln: &Kiln, recipe: &Recipe, arch: &str, arguments: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let output = tempfile::tempdir().unwrap();
    let mut all = vec!["build", recipe.path(), "--arch", arch, "--output"];
    all.push(output.path().to_str().unwrap());
    all.extend(arguments);
    kiln.run(all).ok();
    let rootfs = output.path().join(arch).join("rootfs");
    (output, rootfs)
}

#[track_caller]
fn assert_equal(one: &Path, other: &Path) {
    if fs_err::read(one).unwrap() != fs_err::read(other).unwrap() {
        let differ = tree::differences(&unpacked(one), &unpacked(other), &[]);
        panic!("the images differ: {}", lines(&differ).join("\n"));
    }
}

#[test]
fn a_build_is_repeated_to_the_last_byte() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::debian());
    let recipe = Recipe::copy_of("deb-tiny")
        .with_config("{{ deb_repo }}", &repository.url())
        .with("config.sh", SCRIPT);
    let dated = ["--source-date-epoch", EPOCH];
    let (_first, one) = build(&kiln, &recipe, HOST, &dated);
    let (_second, other) = build(&kiln, &recipe, HOST, &dated);
    assert_equal(&one, &other);

    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    squashfs::unpack(&one, &root, &[]);
    let read = |path: &str| fs_err::read_to_string(root.join(path)).unwrap();
    assert_eq!(read("etc/dated"), format!("the date is {EPOCH}\n"));
    assert_eq!((&*read("etc/machine-id"), &*read("var/log/app/app.log")), ("", ""));
    for gone in ["etc/ssh/ssh_host_ed25519_key", "var/lib/dbus/machine-id"] {
        assert!(!root.join(gone).exists(), "{gone}");
    }
    let job = &kiln.jobs()[0];
    let log = kiln.log(job);
    assert!(log.contains("have the date 2023-11-14T22:13:20Z"), "{log}");
    assert!(
        log.contains("/etc/machine-id: emptied, for each machine gets its own"),
        "{log}"
    );
}

#[test]
fn a_foreign_root_of_rpms_is_repeated_with_twins_and_without() {
    needs!(support::no_namespaces(), support::no_emulation());
    let (kiln, repository) = (Kiln::new(), Repository::shell().of(foreign()));
    let recipe = Recipe::copy_of("rpm-shell");
    let set = repository.set();
    let (_first, one) = build(&kiln, &recipe, foreign(), &["--reproducible", &set]);
    let (_second, other) = build(&kiln, &recipe, foreign(), &["--reproducible", &set, "--twins", "off"]);
    assert_equal(&one, &other);
}
