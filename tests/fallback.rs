//! A build that fails with native twins is tried once more without them.

use serde_json::Value;

use crate::support::{self, HOST, Kiln, Ran, Recipe, foreign, repository::Repository, run};

/// A recipe for an RPM root with this script.
fn recipe(script: &str) -> Recipe {
    let recipe = Recipe::copy_of("rpm-shell");
    recipe.with("config.sh", &format!("#!/bin/bash\necho 'fact tried'\n{script}\n"))
}

/// Builds it with twins.
fn build_recipe(kiln: &Kiln, recipe: &Recipe) -> Ran {
    let repository = Repository::shell().of(foreign());
    kiln.run(["build", recipe.path(), "--arch", foreign(), &repository.set()])
}

/// Builds an RPM root with this script, and with twins.
fn build(kiln: &Kiln, script: &str) -> Ran {
    build_recipe(kiln, &recipe(script))
}

/// What `kiln jobs explain` says of a job.
fn explain(kiln: &Kiln, id: &str, arguments: &[&str]) -> String {
    let mut command = kiln.command([&["jobs", "explain", id], arguments].concat());
    command.env("KILN_SERVER", "local");
    run(command).ok().stdout
}

/// The only job, as its users see it, and its log.
fn job(kiln: &Kiln) -> (Value, String) {
    let jobs = kiln.jobs();
    assert_eq!(jobs.len(), 1, "{jobs:#?}");
    (kiln.status(&jobs[0]), kiln.log(&jobs[0]))
}

#[test]
fn a_build_that_only_twins_fail_succeeds_without_them() {
    needs!(support::no_namespaces(), support::no_emulation());
    let kiln = Kiln::new();
    let built = build(&kiln, "if [ -e /.kiln ]; then ls /no-such-file || exit; fi").ok();
    let told = built.values("fallback").concat();
    assert!(told.starts_with("try 1, with native twins, failed: "), "{told}");
    let (status, log) = job(&kiln);
    let of_job = ["state", "attempt", "twins", "twins_in_force"].map(|name| status[name].to_string());
    assert_eq!(of_job, [r#""success""#, "2", r#""full""#, r#""off""#], "{status:#}");
    assert_eq!(status["execs"]["twins"], 0, "{status:#}");
    let fallback = &status["twins_fallback"];
    assert_eq!(fallback["attempt"], 1, "{status:#}");
    let error = [&fallback["error"]["code"], &fallback["error"]["step"]];
    assert_eq!(error, ["script_failed", "build"], "{status:#}");
    assert!(log.contains("the job is tried again without native twins"), "{log}");
    assert_eq!(log.matches("fact tried\n").count(), 2, "{log}");
    // Only the script was repeated.
    assert!(log.contains("its root after them is reused"), "{log}");
    kiln.assert_clean();
}

#[test]
fn a_script_whose_twin_gives_up_is_emulated_when_the_root_is_made_again() {
    needs!(support::no_namespaces(), support::no_emulation());
    let kiln = Kiln::new();
    let recipe = recipe("[ \"$(printf %.2f 1.115)\" = 1.11 ]; test -e /.kiln || exit 0");
    let built = build_recipe(&kiln, &recipe).ok();
    assert_eq!(built.values("fallback").concat(), "");
    let (status, log) = job(&kiln);
    let of_job = ["state", "attempt", "twins_in_force"].map(|name| status[name].to_string());
    assert_eq!(of_job, [r#""success""#, "1", r#""full""#], "{status:#}");
    assert!(status["execs"]["twins"].as_u64().unwrap() > 0, "{status:#}");
    assert!(
        log.contains("the root is made once more, with commands under the emulator"),
        "{log}"
    );
    assert!(log.contains("long double has another format"), "{log}");

    // The next build of the recipe knows it, and makes one root.
    let before = kiln.jobs();
    build_recipe(&kiln, &recipe).ok();
    let next = kiln.jobs().into_iter().find(|job| !before.contains(job)).unwrap();
    let log = kiln.log(&next);
    assert_eq!(log.matches("fact tried\n").count(), 1, "{log}");
    assert!(!log.contains("the root is made once more"), "{log}");
    kiln.assert_clean();
}

/// A script in which bash dies, but only as a twin, which has mapped its libraries.
const DIES_AS_TWIN: &str = r"IFS= read -r -d '' maps < /proc/$$/maps
case $maps in */.kiln/lib/*) kill -SEGV $$ ;; esac";

#[test]
fn a_twin_that_failed_is_not_used_again() {
    needs!(support::no_namespaces(), support::no_emulation());
    let kiln = Kiln::new();
    let built = build(&kiln, DIES_AS_TWIN).ok();
    let told = built.values("fallback").concat();
    assert!(told.contains("was ended by SIGSEGV as a native twin"), "{told}");
    let (first, _) = job(&kiln);
    let pair = &first["twins_fallback"]["twin"];
    let of_pair = ["package", "path", "target", "host"].map(|name| pair[name].as_str().unwrap());
    assert_eq!(of_pair, ["bash", "/usr/bin/bash", foreign(), HOST], "{first:#}");
    let id = first["id"].as_str().unwrap();
    let note = explain(&kiln, id, &[]);
    assert!(note.contains("try 1, which this shows, failed"), "{note}");

    // The next job needs no second try.
    let before = kiln.jobs();
    build(&kiln, DIES_AS_TWIN).ok();
    let next = kiln.jobs().into_iter().find(|job| !before.contains(job)).unwrap();
    assert_eq!(next["attempt"], 1, "{next:#}");
    assert!(next["execs"]["twins"].as_u64().unwrap() > 0, "{next:#}");
    let why = explain(&kiln, next["id"].as_str().unwrap(), &["--program", "bash"]);
    assert!(
        why.contains(&format!("its twin failed: in job {id} (emulator_fault)")),
        "{why}"
    );

    // The list is shown, and can be cleared.
    let doctor = |arguments: &[&str]| run(kiln.command([&["doctor"], arguments].concat())).stdout;
    let listed = doctor(&[]);
    assert!(listed.contains("1 of them failed"), "{listed}");
    assert!(listed.contains(&format!("--use-twin {id}")), "{listed}");
    doctor(&["--use-twin", id]);
    assert!(doctor(&[]).contains("none has failed"));
    kiln.assert_clean();
}

#[test]
fn a_build_that_always_fails_is_tried_twice_and_no_more() {
    needs!(support::no_namespaces(), support::no_emulation());
    let kiln = Kiln::new();
    let built = build(&kiln, "if [ -e /.kiln ]; then ls /no-such-file || exit; fi; exit 8");
    let words = built.failed();
    let told = built
        .stderr
        .contains("fallback   try 1, with native twins, failed too: ");
    assert!(told, "{}", built.stderr);
    assert_eq!(kiln.failure_code(), "script_failed", "{words}");
    let (status, log) = job(&kiln);
    assert_eq!(
        (&status["attempt"], &status["twins_in_force"]),
        (&2.into(), &"off".into())
    );
    assert_eq!(status["twins_fallback"]["error"]["code"], "script_failed", "{status:#}");
    assert_eq!(log.matches("fact tried\n").count(), 2, "{log}");
    let last = log.lines().rev().take(2).collect::<Vec<_>>();
    assert!(last[0].contains("error: "), "{log}");
    assert!(last[1].contains("try 1, with native twins, failed too: "), "{log}");
    kiln.assert_clean();
}
