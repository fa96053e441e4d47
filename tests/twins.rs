//! A root of another architecture is built by native twins of its programs, and nothing of them is in the image.

use crate::support::{self, HOST, Kiln, Recipe, foreign, repository::Repository, squashfs};

/// A script of the recipe that reports facts about the twins, one per line.
const SCRIPT: &str = r#"#!/bin/bash
set -eu
before=$(ls /.kiln/bin | wc -l)
if touch /.kiln/bin/mine 2>/dev/null; then echo "fact writable"; fi
# The recipe leaves no sources in the image; kiwi's are there until the end.
kiwi=/var/cache/kiwi/apt-get
apt-get -q -y -o "Dir::State=$kiwi" -o Dir::State::status=/var/lib/dpkg/status -o "Dir::Cache=$kiwi" \
    -o "Dir::Etc=$kiwi" install ed
# The agent looks several times a second.
for second in 1 2 3 4 5 6 7 8 9 10; do
    after=$(ls /.kiln/bin | wc -l)
    [ "$after" = "$before" ] || break
    sleep 1
done
echo "fact grown $((after - before))"
printf 'a\nfact edited\n.\n,p\nQ\n' | ed -s
echo "fact machine $(uname -m)"
apt-get clean
rm -rf /var/lib/apt/lists/*
"#;

#[test]
fn a_foreign_root_is_built_by_twins_and_holds_nothing_of_them() {
    needs!(support::no_namespaces(), support::no_emulation());
    let recipe = Recipe::copy_of("debian-minimal").with("config.sh", SCRIPT);
    let (kiln, out) = (Kiln::new(), tempfile::tempdir().unwrap());
    let output = out.path().to_str().unwrap();
    kiln.run([
        "build",
        recipe.path(),
        "--arch",
        foreign(),
        "--twins",
        "full",
        "--output",
        output,
    ])
    .ok();

    let job = &kiln.jobs()[0];
    let log = kiln.log(job);
    let count = |kind: &str| job["execs"][kind].as_u64().unwrap();
    assert!(count("twins") > 10 * count("emulated"), "{}", job["execs"]);
    for fact in ["fact edited".to_owned(), format!("fact machine {}", foreign())] {
        assert!(log.contains(&fact), "{fact}: {log}");
    }
    assert!(
        !log.contains("fact writable"),
        "the root's programs can change the twins"
    );
    // One program: `ed` is a script's own installation.
    assert!(log.contains("fact grown 1\n"), "{log}");
    assert!(!log.contains("no native twins"), "{log}");

    let list = squashfs::list(&out.path().join(foreign()).join("rootfs"));
    let left: Vec<_> = list.keys().filter(|path| path.starts_with("/.kiln")).collect();
    assert!(left.is_empty(), "{left:?}");
    kiln.assert_clean();
}

#[test]
fn a_job_takes_packages_that_another_has_fetched() {
    needs!(support::no_namespaces(), support::no_emulation());
    let (recipe, kiln) = (Recipe::copy_of("rpm-shell"), Kiln::new());
    let twins = |repository: &Repository| {
        let set = format!("{}/{}", repository.set(), foreign());
        kiln.run(["build", recipe.path(), "--arch", foreign(), &set]).ok();
        let job = kiln.jobs().pop().unwrap();
        (job["execs"]["twins"].as_u64().unwrap(), kiln.log(&job))
    };
    let (first, log) = twins(&Repository::shell());
    assert!(log.contains(", 0 of them from other jobs"), "{log}");
    // The repository does not have them any more: they can only come from the first job.
    let dir = tempfile::tempdir().unwrap();
    let (second, log) = twins(&Repository::shell_without_hosts(dir.path()));
    assert!(log.contains("of 19 packages, 19 of them from other jobs"), "{log}");
    assert!(
        first > 200 && second > 200,
        "{first} and {second} programs ran as twins"
    );
}

#[test]
fn a_package_without_the_signature_that_the_recipe_asks_for_has_no_twins() {
    needs!(support::no_namespaces(), support::no_emulation());
    let dir = tempfile::tempdir().unwrap();
    let (repository, key) = Repository::signed_but_for_bash(dir.path());
    let config = fs_err::read_to_string(support::source_dir().join("recipes/rpm-shell/config.xml")).unwrap();
    let config = config.replace("_gpgcheck=\"false\"", "_gpgcheck=\"true\"").replace(
        "rpm_repo }}\"/>",
        "rpm_repo }}\"><signing key=\"file:///scratch/recipe/key.asc\"/></source>",
    );
    let recipe = Recipe::copy_of("rpm-shell")
        .with("config.xml", &config)
        .with("key.asc", &key);
    let kiln = Kiln::new();
    let set = format!("{}/{}", repository.set(), foreign());
    let build = || {
        kiln.run(["build", recipe.path(), "--arch", foreign(), &set]).ok();
        let job = kiln.jobs().pop().unwrap();
        (job["execs"]["twins"].as_u64().unwrap(), kiln.log(&job))
    };
    let (twins, log) = build();
    assert!(log.contains("no equal package: bash 0:5"), "{log}");
    assert!(twins > 200, "only {twins} programs ran as twins");

    // An index with a wrong signature.
    let index = dir.path().join(HOST).join("repodata/repomd.xml");
    let text = fs_err::read_to_string(&index).unwrap();
    fs_err::write(index, format!("{text}<!-- changed -->")).unwrap();
    let (twins, log) = build();
    assert!(log.contains("no native twins"), "{log}");
    assert_eq!(twins, 0);
}

#[test]
fn a_native_root_has_no_twins() {
    needs!(support::no_namespaces());
    let recipe = Recipe::copy_of("debian-minimal");
    let kiln = Kiln::new();
    kiln.run(["build", recipe.path(), "--arch", HOST, "--twins", "full"])
        .ok();
    let job = &kiln.jobs()[0];
    assert!(job["execs"].is_null(), "{job}");
    assert!(!kiln.log(job).contains("twins"));
}
