//! Lock files: what `kiln lock` writes, `kiln build --locked` demands.

use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::{self, HOST, Kiln, Ran, Recipe, foreign, repository::Repository, tool};

/// What the recipe's script says.
const LATE: &str = "the script of the recipe runs";

fn recipe(repository: &Repository) -> Recipe {
    let script = format!("#!/bin/sh\necho '{LATE}'\n");
    Recipe::copy_of("deb-tiny")
        .with_config("{{ deb_repo }}", &repository.url())
        .with("config.sh", &script)
}

fn read(recipe: &Recipe) -> String {
    fs_err::read_to_string(Path::new(recipe.path()).join("kiln.lock")).unwrap()
}

/// Builds the recipe as it is locked.
fn locked(kiln: &Kiln, recipe: &Recipe, more: &[&str]) -> Ran {
    let mut arguments = vec!["build", recipe.path(), "--locked"];
    arguments.extend(more);
    kiln.run(arguments)
}

/// The log of the latest job.
fn log(kiln: &Kiln) -> String {
    kiln.log(kiln.jobs().last().unwrap())
}

#[test]
fn a_locked_build_has_the_locked_packages_or_fails() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::debian());
    let recipe = recipe(&repository);
    kiln.run(["lock", recipe.path(), "--cache", "packages"]).ok();
    let lock = read(&recipe);
    let file = repository.file("pool/tiny-note_1.0_all.deb");
    let sha256 = hex::encode(Sha256::digest(file));
    let entry = format!("name = \"tiny-note\"\nversion = \"1.0\"\narch = \"all\"\nsha256 = \"{sha256}\"");
    assert!(lock.contains(&entry), "{lock}");
    assert_eq!(lock.matches("package]]").count(), 3, "{lock}");

    // From the layer of the first build, whose digests come with it.
    let output = tempfile::tempdir().unwrap();
    let arguments = ["--cache", "packages", "--output", output.path().to_str().unwrap()];
    let image = locked(&kiln, &recipe, &arguments).ok().values("image").remove(0);
    let said = log(&kiln);
    for line in ["is reused", "3 packages are installed, each with a known digest", LATE] {
        assert!(said.contains(line), "{line}\n{said}");
    }
    let statement = fs_err::read(output.path().join(HOST).join("provenance.json")).unwrap();
    let statement: Value = serde_json::from_slice(&statement).unwrap();
    let sources = &statement["predicate"]["buildDefinition"]["resolvedDependencies"];
    let note = sources
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "tiny-note");
    assert_eq!(note.unwrap()["digest"]["sha256"], *sha256, "{sources}");
    let documents = fs_err::read_to_string(output.path().join(HOST).join("sbom.cdx.json")).unwrap();
    assert!(documents.contains(&sha256), "{documents}");

    // Other packages are refused before the script runs, wherever they come from.
    let other = lock.replacen(
        "name = \"tiny-note\"\nversion = \"1.0\"",
        "name = \"tiny-note\"\nversion = \"0.9\"",
        1,
    );
    let recipe = recipe.with("kiln.lock", &other);
    let expected = "tiny-note all is locked at 0.9, and 1.0 is there";
    for reuse in [["--cache", "none"], ["--cache", "packages"]] {
        let refused = locked(&kiln, &recipe, &reuse);
        assert!(refused.failed().contains(expected), "{}", refused.last());
        assert!(refused.stderr.contains("kiln lock --update"), "{}", refused.last());
        let said = log(&kiln);
        assert!(
            said.contains(&format!("kiln.lock: {expected}")) && !said.contains(LATE),
            "{said}"
        );
        assert_eq!(kiln.jobs().last().unwrap()["state"]["error"]["code"], "lock_mismatch");
    }

    // What an image has can be locked without a build.
    let image = image.split_whitespace().next().unwrap();
    let again = |more: &[&str]| {
        let mut command = kiln.command(["lock", recipe.path(), "--image", image]);
        command.args(more).env("KILN_SERVER", "local");
        support::run(command)
    };
    assert!(again(&[]).failed().contains("has a kiln.lock with packages for"));
    let updated = again(&["--update"]).ok().stdout;
    assert!(updated.contains("~ tiny-note all 0.9 -> 1.0\n"), "{updated}");
    assert_eq!(read(&recipe), lock);
}

#[test]
fn nothing_is_run_without_a_lock_that_can_be_used() {
    let kiln = Kiln::bare();
    let recipe = Recipe::copy_of("deb-tiny");
    let refused = |recipe: &Recipe| locked(&kiln, recipe, &["--arch", foreign()]).failed();
    assert!(refused(&recipe).ends_with("has no kiln.lock"));
    let section = format!("version = 1\n[arch.{HOST}]\npackage = []\n");
    let recipe = recipe.with("kiln.lock", &section);
    assert_eq!(refused(&recipe), format!("kiln.lock has no packages for {}", foreign()));
    let recipe = recipe.with("kiln.lock", "what");
    assert!(refused(&recipe).starts_with("kiln.lock cannot be used: TOML parse error"));
    assert!(!kiln.data().join("records.sqlite").exists(), "a job was made");
}

#[test]
fn an_archive_without_a_lock_is_refused_once_it_is_fetched() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::debian());
    let (recipe, dir) = (recipe(&repository), tempfile::tempdir().unwrap());
    let archive = dir.path().join("recipe.tar.gz");
    let archive = archive.to_str().unwrap();
    tool("tar", &["-czf", archive, "-C", recipe.path(), "."]);
    let refused = kiln.run(["build", archive, "--locked"]);
    let expected = "the recipe has no kiln.lock beside its description (step fetch)";
    assert_eq!(refused.failed(), expected);
    assert_eq!(kiln.failure_code(), "lock_missing");
}
