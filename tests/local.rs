//! Commands that carry out jobs without a server, and beside one: `kiln build`, and the commands for records.

use serde_json::Value;

use crate::{
    places::no_qemu,
    support::{self, Kiln, Ran, Recipe, eventually, repository::Repository, run, serve::Server},
};

/// Runs a command that must not look for a server.
fn local(kiln: &Kiln, args: &[&str]) -> Ran {
    let mut command = kiln.command(args);
    command.env("KILN_SERVER", "local");
    run(command)
}

/// The answer of a command in JSON.
#[track_caller]
fn json(kiln: &Kiln, args: &[&str]) -> Value {
    let ran = local(kiln, &[args, &["--format", "json"]].concat()).ok();
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stdout))
}

#[track_caller]
fn job_of(built: &Ran) -> String {
    built
        .values("job")
        .pop()
        .unwrap_or_else(|| panic!("no job: {}", built.stdout))
}

/// The only test that chooses the isolation as a user's first build does.
#[test]
fn without_a_server_the_records_know_builds_and_their_images() {
    needs!(support::no_namespaces());
    let (kiln, repository) = (Kiln::new(), Repository::native());
    let mut command = kiln.command(["build", "recipes/rpm-minimal", &repository.set()]);
    command.env_remove("KILN_ISOLATION").current_dir(support::source_dir());
    let built = run(command).ok();
    let chosen = built.stderr.lines().find(|line| line.starts_with("isolation: "));
    let chosen = chosen.unwrap_or_else(|| panic!("{}", built.stderr));
    let isolation = if chosen.contains("virtual machine") {
        "vm"
    } else {
        "namespace"
    };
    assert!(chosen.contains(", since "), "{chosen}");

    let job = job_of(&built);
    let status = json(&kiln, &["jobs", "status", &job]);
    assert_eq!(
        (&status["state"], &status["isolation"]),
        (&"success".into(), &isolation.into()),
        "{status:#}"
    );
    assert!(status["needs"]["disk_limit_bytes"].as_u64().unwrap() > 0, "{status:#}");
    let log = local(&kiln, &["jobs", "logs", &job]).ok().stdout;
    assert!(log.contains("config.sh"), "{log}");
    let image = json(&kiln, &["images", "describe", "rpm-minimal"]);
    assert_eq!(image["metadata"]["kiln.job"], job.as_str(), "{image:#}");
    assert_eq!(image["metadata"]["kiln.recipe"], Value::Null, "{image:#}");

    let change = [
        "customize",
        "rpm-minimal",
        "--name",
        "changed",
        "--run",
        "echo I was here > /etc/changed",
    ];
    local(&kiln, &change).ok();
    assert_eq!(json(&kiln, &["images", "describe", "changed"])["arch"], image["arch"]);
    let again = local(&kiln, &["jobs", "retry", &job]);
    assert!(
        again.ok().stderr.contains("done"),
        "the job ends before the command does"
    );
    let jobs = json(&kiln, &["jobs", "list"]);
    let ends: Vec<_> = jobs
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["status"].clone())
        .collect();
    assert_eq!(ends, ["success"; 3], "{jobs:#}");

    kiln.run(["artifacts", "delete", image["id"].as_str().unwrap()]).ok();
    let images = json(&kiln, &["images", "list"]);
    assert_eq!(images.as_array().unwrap().len(), 2, "{images:#}");

    // A job's own objects go with its record.
    for job in kiln.jobs() {
        local(&kiln, &["jobs", "delete", job["id"].as_str().unwrap()]).ok();
    }
    let stored = kiln.stored();
    assert!(stored.iter().all(|row| row.contains(" boot-images ")), "{stored:#?}");
    kiln.assert_clean();
}

#[test]
fn a_build_in_a_virtual_machine_reaches_what_its_user_names() {
    needs!(support::no_namespaces(), no_qemu());
    let (kiln, repository) = (Kiln::new(), Repository::native());
    let recipe = Recipe::with_script("echo the kernel is $(cat /proc/sys/kernel/osrelease)");
    let built = kiln
        .run(["build", "--isolation", "vm", recipe.path(), &repository.set()])
        .ok();
    let job = kiln.jobs().pop().unwrap();
    assert_eq!(job["driver"], "microvm");
    let host = fs_err::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let log = kiln.log(&job);
    let said = log.lines().find_map(|line| line.split_once("the kernel is "));
    assert_ne!(said.unwrap().1.trim(), host.trim());
    assert_eq!(built.values("image").len(), 1, "{}", built.stdout);
    kiln.assert_clean();
}

#[test]
fn builds_beside_a_server_and_each_other_are_left_alone() {
    needs!(support::no_namespaces());
    let repository = Repository::native();
    let server = Server::start_in(Kiln::new(), &[]);
    // Long enough for the server to look for remains meanwhile, which it does every ten seconds.
    let recipe = Recipe::with_script("sleep 12");
    let builds: Vec<_> = (0..2)
        .map(|_| server.kiln.start(["build", recipe.path(), &repository.set()]))
        .collect();
    let mut jobs: Vec<_> = builds.into_iter().map(|build| job_of(&build.end().ok())).collect();
    for job in &jobs {
        let status = server.status(job);
        assert_eq!(
            (&status["state"], &status["attempt"]),
            (&"success".into(), &1.into()),
            "{status:#}"
        );
    }
    // The server repeats the job of a command as one of its own.
    jobs.push(server.make(&["jobs", "retry", &jobs[0]]));
    let listed = server.json(&["jobs", "list"]);
    let ids: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["id"].as_str().unwrap())
        .collect();
    assert!(jobs.iter().all(|job| ids.contains(&job.as_str())), "{listed:#}");
    server.run(&["jobs", "cancel", &jobs[2]]).ok();
    eventually(|| {
        let status = server.status(&jobs[2]);
        if status["log"].is_string() { Ok(()) } else { Err(status) }
    });
    server.stop();
}
