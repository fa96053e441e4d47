//! Builds that start from what an earlier one kept after its packages.

use std::path::{Path, PathBuf};

use kiln_agent::verify::{UNLIKE, tree};

use crate::equality::{lines, unpacked};
use crate::support::{self, HOST, Kiln, Recipe, foreign, repository::Repository};

/// A script that leaves its own words, and what the root had before it.
fn script(words: &str) -> String {
    format!("#!/bin/sh\nset -eu\necho '{words}' > /etc/words\nls /image > /etc/recipe-files\n")
}

/// Builds with these arguments. The root file system, and what the log says of layers.
fn build(kiln: &Kiln, recipe: &Recipe, arch: &str, arguments: &[&str]) -> (tempfile::TempDir, PathBuf, String) {
    let output = tempfile::tempdir().unwrap();
    let mut all = vec!["build", recipe.path(), "--arch", arch, "--output"];
    all.push(output.path().to_str().unwrap());
    all.extend(arguments);
    kiln.run(all).ok();
    let rootfs = output.path().join(arch).join("rootfs");
    let log = kiln.log(kiln.jobs().last().unwrap());
    (output, rootfs, log)
}

const REUSED: &str = "its root after them is reused";
const NONE_YET: &str = "there is no layer with them yet";

/// Whatever is changed: a root from a layer is what it would be without.
fn is_never_wrong(kiln: &Kiln, repository: &Repository, arch: &str, recipe: impl Fn() -> Recipe) {
    let set = repository.set();
    let cached = |recipe: &Recipe| build(kiln, recipe, arch, &["--cache", "packages", &set]);
    let (_one, _, log) = cached(&recipe().with("config.sh", &script("first")));
    assert!(log.contains(NONE_YET), "{log}");
    // Late files may change.
    let late = || {
        recipe()
            .with("config.sh", &script("second"))
            .with("root/etc/overlay", "new")
    };
    let (_other, reused, log) = cached(&late());
    assert!(log.contains(REUSED), "{log}");
    assert!(log.contains("are unchanged"), "{log}");
    let (_plain, made, log) = build(kiln, &late(), arch, &["--no-cache", &set]);
    assert!(!log.contains(REUSED), "{log}");
    let mut differ = tree::differences(&unpacked(&reused), &unpacked(&made), UNLIKE);
    // Each line of a log has its time.
    differ.retain(|difference| !difference.path.starts_with("/var/log"));
    assert!(differ.is_empty(), "{}", lines(&differ).join("\n"));
    // Others may not.
    let (_early, _, log) = cached(&late().with("extra.txt", "part of the key"));
    assert!(log.contains(NONE_YET), "{log}");
}

#[test]
fn a_root_of_debs_is_the_same_from_a_layer() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::debian());
    let recipe = || Recipe::copy_of("deb-tiny").with_config("{{ deb_repo }}", &repository.url());
    is_never_wrong(&kiln, &repository, HOST, recipe);

    // A damaged layer is noticed by its digest, and made anew.
    let mut damaged = 0;
    for body in files(&kiln.data().join("s3/bodies")) {
        let mut bytes = fs_err::read(&body).unwrap();
        if bytes.starts_with(b"hsqs") {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs_err::write(&body, bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "there is no layer");
    let changed = recipe().with("config.sh", &script("third"));
    let (_third, rootfs, log) = build(&kiln, &changed, HOST, &["--cache", "packages"]);
    assert!(
        !log.contains(REUSED) && log.contains("packages are installed: "),
        "{log}"
    );
    assert!(unpacked(&rootfs).keys().any(|path| path.ends_with("words")));
}

#[test]
fn a_foreign_root_of_rpms_is_the_same_from_a_layer() {
    needs!(support::no_namespaces(), support::no_emulation());
    let (kiln, repository) = (Kiln::new(), Repository::shell().of(foreign()));
    is_never_wrong(&kiln, &repository, foreign(), || Recipe::copy_of("rpm-shell"));
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir(dir).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}
