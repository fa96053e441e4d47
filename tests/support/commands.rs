//! The commands that users run against a server.

#![allow(dead_code, reason = "every test program uses another part")]

use std::process::Command;

use serde_json::Value;

use super::{Ran, Recipe, repository::Repository, run, serve::Server};

impl Server {
    /// A command for this server.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.kiln.command(args);
        command.env("KILN_SERVER", &self.url);
        command.envs(self.environment.iter().cloned());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        run(self.command(args))
    }

    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let ran = self.run(&[args, &["--format", "json"]].concat()).ok();
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stdout))
    }

    /// Runs a command that makes a record. Returns its id.
    #[track_caller]
    pub fn make(&self, args: &[&str]) -> String {
        self.json(args)["id"].as_str().unwrap().to_owned()
    }

    /// Makes the public key `me`, whose private key does not exist.
    #[track_caller]
    pub fn make_key(&self) {
        let file = self.kiln.data().join("key.pub");
        fs_err::write(&file, "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me@here\n").unwrap();
        self.make(&[
            "public-keys",
            "create",
            "--name",
            "me",
            "--public-key",
            file.to_str().unwrap(),
        ]);
    }

    /// Makes a recipe whose packages come from the tests' repository. Returns its id.
    #[track_caller]
    pub fn recipe(&self, recipe: &Recipe, repository: &Repository, more: &[&str]) -> String {
        let url = repository.url();
        let args = [
            "recipes",
            "create",
            "--from",
            recipe.path(),
            "--name",
            "test",
            "--linux-distribution",
            "sles15",
            "--template-dictionary-key",
            "rpm_repo",
            "--template-dictionary-value",
            &url,
        ];
        self.make(&[&args, more].concat())
    }

    /// Starts a build of a recipe's image, with the key `me`. Returns the job's id.
    #[track_caller]
    pub fn build(&self, recipe: &str, more: &[&str]) -> String {
        self.make(&build(recipe, more))
    }

    #[track_caller]
    pub fn status(&self, job: &str) -> Value {
        self.json(&["jobs", "status", job])
    }
}

/// The command that builds the image of a recipe, with the key `me`.
pub fn build<'a>(recipe: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let args = [
        "jobs",
        "create",
        "--job-type",
        "create",
        "--artifact-id",
        recipe,
        "--public-key-id",
        "me",
        "--image-root-archive-name",
        "image",
    ];
    [&args, more].concat()
}
