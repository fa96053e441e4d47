//! Jobs of the service as their users see them: made with the commands, carried out for real, in sandboxes.

use std::path::Path;

use crate::support::{self, Kiln, Ran, Recipe, commands::build, foreign, repository::Repository, serve::Server};
use serde_json::Value;

/// The server's message in a refusal.
#[track_caller]
fn refused(ran: &Ran) -> &str {
    assert_eq!(ran.code, Some(2), "{}", ran.last());
    let error = ran.stderr.lines().find_map(|line| line.strip_prefix("error: "));
    error.unwrap_or_else(|| panic!("there is no error: {}", ran.last()))
}

/// A server that carries jobs out, and what jobs need.
struct Site {
    server: Server,
    repository: Repository,
}

impl Site {
    fn start(repository: Repository, variables: &[(&str, &str)]) -> Self {
        // A port that is named twice is one door.
        let ports = format!("[{0}, {0}]", repository.port());
        let mut all = vec![("KILN__ISOLATION__LOOPBACK_PORTS", ports.as_str())];
        all.extend(variables);
        let server = Server::start_in(Kiln::new(), &all);
        server.make_key();
        Self { server, repository }
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.server.run(args)
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        self.server.json(args)
    }

    #[track_caller]
    fn recipe(&self, recipe: &Recipe, more: &[&str]) -> String {
        self.server.recipe(recipe, &self.repository, more)
    }

    /// Makes a job and follows it to its end.
    fn follow(&self, recipe: &str, more: &[&str]) -> Ran {
        self.run(&build(recipe, &[&["--format", "json", "--follow"], more].concat()))
    }

    /// The only job that is not `but`.
    #[track_caller]
    fn job_but(&self, but: &[&str]) -> String {
        let jobs = self.json(&["jobs", "list"]);
        let ids: Vec<_> = jobs
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_str().unwrap())
            .collect();
        let left: Vec<_> = ids.into_iter().filter(|id| !but.contains(id)).collect();
        assert_eq!(left.len(), 1, "{left:?}");
        left[0].to_owned()
    }

    fn status(&self, job: &str) -> Value {
        self.server.status(job)
    }

    /// The status, once all is cleared away.
    #[track_caller]
    fn settled(&self, job: &str) -> Value {
        support::eventually(|| {
            let status = self.status(job);
            if status["log"].is_string() {
                Ok(status)
            } else {
                Err(status)
            }
        })
    }
}

#[test]
fn a_recipe_becomes_an_image() {
    needs!(support::no_namespaces());
    let site = Site::start(Repository::native(), &[]);
    let recipe = site.recipe(
        &Recipe::with_script("echo from the script"),
        &["--require-dkms", "false"],
    );
    let ran = site.follow(&recipe, &[]).ok();
    let job: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(job["status"], "success", "{job:#}");
    let id = job["id"].as_str().unwrap();
    let image = site.json(&["images", "describe", job["resultant_image_id"].as_str().unwrap()]);
    assert_eq!(
        (&image["name"], &image["arch"]),
        (&"image".into(), &support::HOST.into())
    );
    let metadata = &image["metadata"];
    assert_eq!(
        (&metadata["kiln.job"], &metadata["kiln.recipe"]),
        (&id.into(), &recipe.as_str().into())
    );
    assert_eq!(
        (&metadata["kiln.how"], &metadata["kiln.by"]),
        (&"native".into(), &"local".into())
    );
    assert_eq!(metadata["kiln.recipe_sha256"].as_str().unwrap().len(), 64);

    let status = site.settled(id);
    assert_eq!(status["state"], "success");
    let steps: Vec<_> = status["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["step"].as_str().unwrap())
        .collect();
    assert_eq!(
        steps,
        ["prepare", "fetch", "template", "repos", "build", "package", "upload"]
    );
    assert!(status["used"]["disk_bytes"].as_u64().unwrap() > 0, "{status:#}");
    let log = site.run(&["jobs", "logs", id]).ok().stdout;
    assert!(log.contains("from the script"), "{log}");

    // The next build of the recipe gets what this one used, not the values for a first build.
    let ran = site.follow(&recipe, &[]).ok();
    let second: Value = serde_json::from_str(&ran.stdout).unwrap();
    let (first, second) = (&status["needs"], &site.status(second["id"].as_str().unwrap())["needs"]);
    assert!(
        second["disk_bytes"].as_u64() < first["disk_bytes"].as_u64(),
        "{first} {second}"
    );

    // Clients cannot set the status of a job that Kiln carries out, and an ended job cannot be cancelled.
    assert_eq!(site.server.ask_raw("", "PATCH", &format!("/v3/jobs/{id}")), 409);
    let cancel = site.run(&["jobs", "cancel", id]);
    assert!(refused(&cancel).contains("has ended"), "{}", cancel.stderr);

    // A deleted job takes its log along, and leaves its image, as in IMS.
    site.run(&["jobs", "delete", id]).ok();
    let gone = site.run(&["jobs", "logs", id]);
    refused(&gone);
    site.json(&["images", "describe", job["resultant_image_id"].as_str().unwrap()]);
    site.server.stop();
}

/// A PATH with all programs of this host but those that make virtual machines.
fn everything_but_machines(into: &Path) -> String {
    let path = std::env::var_os("PATH").unwrap();
    for dir in std::env::split_paths(&path) {
        for program in fs_err::read_dir(dir).into_iter().flatten() {
            let program = program.unwrap();
            if !program.file_name().to_string_lossy().starts_with("qemu-system") {
                // The first of a name counts.
                let _ = std::os::unix::fs::symlink(program.path(), into.join(program.file_name()));
            }
        }
    }
    into.to_str().unwrap().to_owned()
}

#[test]
fn a_foreign_recipe_needs_a_machine_of_its_own_or_leave() {
    needs!(support::no_namespaces(), support::no_emulation());
    let recipe = Recipe::with_script("uname -m");
    let tools = tempfile::tempdir().unwrap();
    let path = everything_but_machines(tools.path());
    let site = Site::start(Repository::foreign(), &[("PATH", &path)]);
    let id = site.recipe(&recipe, &["--arch", foreign(), "--require-dkms", "false"]);
    let ran = site.follow(&id, &[]);
    assert!(ran.failed().contains("needs a virtual machine"), "{}", ran.stderr);
    assert!(ran.stderr.contains("foreign = \"namespace\""), "{}", ran.stderr);
    let job = site.job_but(&[]);
    assert_eq!(site.status(&job)["error"]["code"], "no_vm");
    assert_eq!(site.json(&["jobs", "describe", &job])["status"], "error");
    site.server.stop();

    let site = Site::start(Repository::foreign(), &[("KILN__ISOLATION__FOREIGN", "namespace")]);
    let id = site.recipe(&recipe, &["--arch", foreign()]);
    let ran = site.follow(&id, &[]).ok();
    let job: Value = serde_json::from_str(&ran.stdout).unwrap();
    let status = site.settled(job["id"].as_str().unwrap());
    assert_eq!(
        (&status["how"], &status["state"]),
        (&"emulated".into(), &"success".into())
    );
    assert_eq!(status["twins"], "full", "{status:#}");
    let execs = &status["execs"];
    assert!(execs["emulated"].as_u64().unwrap() > 0, "{status:#}");
    let programs = execs["most_expensive"].as_array().unwrap();
    let shell = programs.iter().find(|program| program["program"] == "/bin/sh");
    assert!(shell.unwrap()["runs"].as_u64().unwrap() > 0, "{execs:#}");
    assert!(
        programs.iter().any(|program| program["cpu_ms"].as_u64().unwrap() > 0),
        "{execs:#}"
    );
    assert!(ran.stderr.contains("programs   0 as native twins, "), "{}", ran.stderr);
    // The status says that the rule was relaxed.
    assert!(
        status["reason"].as_str().unwrap().contains("host's own kernel"),
        "{status:#}"
    );
    let log = site.run(&["jobs", "logs", job["id"].as_str().unwrap()]).ok().stdout;
    assert!(log.lines().any(|line| line.ends_with(foreign())), "{log}");
    site.server.stop();
}

#[test]
fn the_level_of_twins_is_the_jobs_or_the_recipes_or_the_servers() {
    needs!(support::no_namespaces(), support::no_emulation());
    let variables = [
        ("KILN__ISOLATION__FOREIGN", "namespace"),
        ("KILN__EMULATION__TWINS", "tools"),
    ];
    let site = Site::start(Repository::foreign(), &variables);
    let recipe = site.recipe(&Recipe::with_script("sleep 1000"), &["--arch", foreign()]);
    let mut known: Vec<String> = Vec::new();
    for (recipes, jobs, is) in [
        (None, None, "tools"),
        (Some("shell"), None, "shell"),
        (Some("shell"), Some("off"), "off"),
        (Some("default"), None, "tools"),
    ] {
        if let Some(level) = recipes {
            site.json(&["recipes", "update", &recipe, "--twins", level]);
        }
        let twins: Vec<_> = jobs.iter().flat_map(|level| ["--twins", level]).collect();
        let job = site.server.build(&recipe, &twins);
        assert_eq!(site.status(&job)["twins"], is, "{recipes:?} {jobs:?}");
        site.run(&["jobs", "cancel", &job]).ok();
        // A retried job keeps its options.
        let again = site.json(&["jobs", "retry", &job])["id"].as_str().unwrap().to_owned();
        assert_eq!(site.status(&again)["twins"], is, "{recipes:?} {jobs:?}");
        site.run(&["jobs", "cancel", &again]).ok();
        known.extend([job, again]);
    }
    for job in known {
        site.settled(&job);
    }
    site.server.stop();
}

#[test]
fn a_failed_job_is_gone_on_from() {
    needs!(support::no_namespaces());
    let site = Site::start(Repository::native(), &[]);
    let recipe = site.recipe(
        &Recipe::with_script("rm -rf /boot; echo built"),
        &["--require-dkms", "false"],
    );
    let ran = site.follow(&recipe, &["--kernel-file-name", "no-such-kernel"]);
    assert!(ran.failed().contains("kernel"), "{}", ran.stderr);
    let first = site.job_but(&[]);
    let status = site.settled(&first);
    assert_eq!(
        (&status["error"]["code"], &status["error"]["step"]),
        (&"kernel_missing".into(), &"package".into())
    );
    assert!(status["error"]["hint"].is_string());

    let early = site.run(&["jobs", "retry", &first, "--from", "upload"]);
    assert!(
        refused(&early).contains("the last step that ended well is build"),
        "{}",
        early.stderr
    );
    let again = site.json(&["jobs", "retry", &first, "--from", "package"]);
    assert_eq!(
        (&again["status"], &again["kernel_file_name"]),
        (&"creating".into(), &"no-such-kernel".into())
    );
    let second = site.job_but(&[&first]);
    assert_eq!(again["id"], second.as_str());
    let status = site.settled(&second);
    // The same end, without a second build.
    assert_eq!(status["error"]["code"], "kernel_missing");
    let log = site.run(&["jobs", "logs", &second]).ok().stdout;
    assert!(!log.contains("built"), "{log}");
    // The files belong to the second job now.
    let thrice = site.run(&["jobs", "retry", &first, "--from", "package"]);
    assert!(refused(&thrice).contains("Nothing is left"), "{}", thrice.stderr);
    // Deleting the jobs deletes the kept files.
    for job in [&first, &second] {
        site.run(&["jobs", "delete", job]).ok();
    }
    let sandboxes = site.server.kiln.data().join("sandboxes");
    let empty = || fs_err::read_dir(&sandboxes).unwrap().next().is_none();
    support::eventually(empty);
    site.server.stop();
}

#[test]
fn a_job_is_cancelled_and_what_cannot_be_carried_out_says_so() {
    needs!(support::no_namespaces());
    let site = Site::start(Repository::native(), &[("KILN__WATCH__KEEP_FAILED", "0s")]);
    let recipe = site.recipe(&Recipe::with_script("sleep 600"), &["--require-dkms", "false"]);
    let job = site.server.build(&recipe, &[]);
    support::eventually(|| {
        let status = site.status(&job);
        if status["step"] == "build" { Ok(()) } else { Err(status) }
    });
    let cancelled = site.json(&["jobs", "cancel", &job]);
    assert_eq!(
        (&cancelled["state"], &cancelled["error"]["code"]),
        (&"error".into(), &"cancelled".into())
    );
    let status = site.settled(&job);
    assert!(status["ended"].is_string());
    assert_eq!(site.json(&["jobs", "describe", &job])["status"], "error");
    // With `keep_failed` at nothing, nothing is kept.
    let again = site.run(&["jobs", "retry", &job, "--from", "build"]);
    assert!(refused(&again).contains("Nothing is left"), "{}", again.stderr);

    let greedy = site.follow(&recipe, &["--build-env-size", "1000000"]);
    assert!(greedy.failed().contains("of disk"), "{}", greedy.stderr);
    let greedy = site.job_but(&[&job]);
    assert_eq!(site.status(&greedy)["error"]["code"], "no_capacity");
    site.server.stop();
}
