//! Tests `kiln demo --tmp`: two architectures of a tiny recipe, a build that fails, and Ctrl-C. Nothing may be left.

use std::{path::PathBuf, process::Command};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::{self, HOST, Kiln, Recipe, Started, foreign, repository::Repository, serve::MODEST};

/// A kiln, the recipe's repository, and the directory for temporary files.
struct Site {
    kiln: Kiln,
    repository: Repository,
    temporary: TempDir,
}

impl Site {
    fn new() -> Self {
        Self {
            kiln: Kiln::new(),
            repository: Repository::debian(),
            temporary: tempfile::tempdir().unwrap(),
        }
    }

    /// The recipe, with this `config.sh`.
    fn recipe(&self, script: &str) -> Recipe {
        Recipe::copy_of("deb-tiny")
            .with_config("{{ deb_repo }}", &self.repository.url())
            .with("config.sh", &format!("#!/bin/sh\n{script}\n"))
    }

    fn command(&self, recipe: &Recipe, more: &[&str]) -> Command {
        let mut command = self.kiln.command([&["demo", recipe.path(), "--tmp"], more].concat());
        command
            .envs(MODEST)
            .env(
                "KILN__ISOLATION__LOOPBACK_PORTS",
                format!("[{}]", self.repository.port()),
            )
            // A site with a login and a database: neither is for a demonstration.
            .env("KILN__OIDC__ISSUER", "https://keycloak.example.org/realms/site")
            .env("KILN__OIDC__AUDIENCE", "kiln")
            .env("KILN__STORE__URL", "postgresql://kiln@db.example.org/kiln")
            .env("KILN__STORE__PASSWORD", "secret")
            .env("KILN__SERVER__PUBLIC_URL", "https://kiln.example.org")
            .env("TMPDIR", self.temporary.path());
        command
    }

    /// Nothing is left: no file, and no process that had the data directory in its environment.
    #[track_caller]
    fn assert_clean(&self) {
        let left: Vec<PathBuf> = fs_err::read_dir(self.temporary.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(!self.kiln.data().join("records.sqlite").exists());
        self.kiln.assert_clean();
    }
}

#[test]
fn a_demonstration_builds_for_two_architectures_and_leaves_nothing() {
    needs!(support::no_namespaces(), support::no_emulation());
    let site = Site::new();
    let recipe = site.recipe("echo 'Tiny root' > /etc/issue");
    let ran = support::run(site.command(&recipe, &[])).ok();
    let said = &ran.stdout;
    for arch in [HOST, foreign()] {
        assert_eq!(said.matches(&format!(" ({arch})\n")).count(), 1, "{said}");
        assert!(
            ran.stderr.contains(&format!("{arch:<8} build    done in ")),
            "{}",
            ran.stderr
        );
    }
    let [dashboard] = &ran.values("dashboard")[..] else {
        panic!("{said}")
    };
    assert!(
        dashboard.starts_with("http://127.0.0.1:") && dashboard.ends_with("/ui"),
        "{dashboard}"
    );
    assert_eq!(ran.values("set").len(), 1, "{said}");
    site.assert_clean();
}

#[test]
fn a_demonstration_that_fails_or_is_interrupted_leaves_nothing() {
    needs!(support::no_namespaces());
    let site = Site::new();
    let slow = site.recipe("sleep 600");
    let mut started = Started::new(site.command(&slow, &["--arch", HOST, "--verbose"]));
    let recipe = site.recipe("echo 'no such luck' >&2; exit 3");
    let ran = support::run(site.command(&recipe, &["--arch", HOST]));
    assert_eq!(ran.code, Some(1), "{}", ran.last());
    assert!(
        ran.stderr.contains(&format!("error: {HOST}: ")) && ran.stderr.contains("no such luck"),
        "{}",
        ran.last()
    );
    assert!(ran.stderr.contains("error: 1 of 1 builds failed"), "{}", ran.last());

    started.wait_for("Calling config.sh script");
    started.signal(Signal::SIGINT);
    let ran = started.end();
    assert_eq!(ran.code, Some(130), "{}", ran.last());
    site.assert_clean();
}
