//! Tests builds that are ended from outside, in every possible way: whichever process dies, nothing of the build stays.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::support::{self, Kiln, Recipe, Started, eventually, repository::Repository};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// These tests measure time, so they run one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A build that has come to its `config.sh`, which sleeps.
struct Sleeping {
    kiln: Kiln,
    build: Started,
    _recipe: Recipe,
    repository: Repository,
    _alone: MutexGuard<'static, ()>,
}

impl Sleeping {
    fn new() -> Self {
        let alone = alone();
        let (kiln, repository) = (Kiln::new(), Repository::native());
        let recipe = Recipe::with_script("touch /var/asleep; sleep 600");
        let mut build = kiln.command(["build", "--verbose", recipe.path(), &repository.set()]);
        // A sandbox that dies is not tried again.
        build.env("KILN__WATCH__INTERRUPTIONS", "1");
        let mut build = Started::new(build);
        // kiwi shows what a script says only in larger pieces.
        kiln.wait_for_file(&mut build, "var/asleep");
        // The processes that must be gone afterwards can be found during the run.
        let names: Vec<_> = kiln.processes().into_values().collect();
        for name in ["kiln", "kiln-supervisor", "kiln-init", "agent", "kiwi-ng", "config.sh"] {
            assert!(names.iter().any(|found| found == name), "no {name} in {names:?}");
        }
        Self {
            kiln,
            build,
            _recipe: recipe,
            repository,
            _alone: alone,
        }
    }

    /// The next build finds no obstacle, and the one before has this state in its record.
    fn assert_next_build_works(&self, before: &str) {
        let ran = self
            .kiln
            .run(["build", Recipe::copy_of("rpm-minimal").path(), &self.repository.set()]);
        assert_eq!(ran.code, Some(0), "{}", ran.last());
        let states: Vec<_> = self.kiln.jobs().iter().map(|job| job["state"].clone()).collect();
        assert_eq!(states.len(), 2, "{states:?}");
        assert_eq!(states[0]["error"]["code"], before, "{states:?}");
        assert_eq!(states[1], "success", "{states:?}");
        self.kiln.assert_clean();
        let left = self.kiln.stored();
        let image = self.kiln.jobs()[1]["image"].as_str().unwrap().to_owned();
        assert!(left.iter().all(|row| row.contains(&image)), "{left:#?}");
    }
}

/// Whether a build has no process any more.
fn no_process(kiln: &Kiln) -> Result<(), String> {
    let processes = kiln.processes();
    if processes.is_empty() {
        Ok(())
    } else {
        Err(format!("{processes:?}"))
    }
}

/// The processes of a build by their role: `supervisor` in the host's namespaces, `entrance`, `init`, `agent`.
fn processes_of(kiln: Pid) -> BTreeMap<&'static str, Pid> {
    let only_child = |of: Pid| {
        let children = fs_err::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap();
        let pids: Vec<i32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
        assert_eq!(pids.len(), 1, "children of {of}: {pids:?}");
        Pid::from_raw(pids[0])
    };
    // Threads of kiln have children of their own.
    let supervisor = fs_err::read_dir(format!("/proc/{kiln}/task"))
        .unwrap()
        .find_map(|task| {
            let children = fs_err::read_to_string(task.unwrap().path().join("children")).unwrap();
            children
                .split_whitespace()
                .next()
                .map(|pid| Pid::from_raw(pid.parse().unwrap()))
        })
        .expect("kiln has no child");
    let entrance = only_child(supervisor);
    let init = only_child(entrance);
    let agent = only_child(init);
    BTreeMap::from([
        ("supervisor", supervisor),
        ("entrance", entrance),
        ("init", init),
        ("agent", agent),
    ])
}

#[test]
fn ctrl_c_ends_a_build_at_once() {
    needs!(support::no_namespaces());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let sleeping = Sleeping::new();
        let (kiln, build) = (sleeping.kiln, sleeping.build);
        // One that went on to the end of its script would have made an image.
        build.signal(signal);
        let ran = build.end();
        assert!(
            ran.stderr.contains("error: the build was interrupted"),
            "{}",
            ran.stderr
        );
        assert_eq!(kiln.failure_code(), "interrupted");
        kiln.assert_interrupted(&ran);
    }
}

#[test]
fn ctrl_c_during_an_upload_leaves_no_parts() {
    needs!(support::no_namespaces());
    let _alone = alone();
    let (kiln, repository) = (Kiln::new(), Repository::native());
    let recipe = Recipe::with_script("head -c 700000000 /dev/urandom > /var/large");
    let mut build = kiln.start(["build", "--verbose", recipe.path(), &repository.set()]);
    build.wait_for("package  done");
    // Something of the upload has arrived, but not all.
    eventually(|| !kiln.stored().iter().all(|row| row.starts_with("object recipes")));
    build.signal(Signal::SIGINT);
    let ran = build.end();
    kiln.assert_interrupted(&ran);
}

#[test]
fn a_killed_kiln_takes_its_sandbox_along() {
    needs!(support::no_namespaces());
    let sleeping = Sleeping::new();
    let kiln = &sleeping.kiln;
    sleeping.build.signal(Signal::SIGKILL);
    eventually(|| no_process(kiln));
    assert_eq!(kiln.jobs()[0]["state"], "running");
    sleeping.assert_next_build_works("interrupted");
}

#[test]
fn a_kiln_and_a_supervisor_killed_together_are_swept_up() {
    needs!(support::no_namespaces());
    let sleeping = Sleeping::new();
    let kiln = &sleeping.kiln;
    let supervisor = processes_of(sleeping.build.pid())["supervisor"];
    sleeping.build.signal(Signal::SIGSTOP);
    kill(supervisor, Signal::SIGKILL).unwrap();
    sleeping.build.signal(Signal::SIGKILL);
    eventually(|| no_process(kiln));
    sleeping.assert_next_build_works("interrupted");
}

#[test]
fn a_build_whose_sandbox_dies_is_tried_again() {
    needs!(support::no_namespaces());
    let _alone = alone();
    let (kiln, repository) = (Kiln::new(), Repository::native());
    // It goes on only once it is told to, so that the first try is killed in it, however long that takes.
    let script = "trap 'touch /var/awake' USR1; touch /var/asleep; until [ -e /var/awake ]; do sleep 0.1; done";
    let recipe = Recipe::with_script(script);
    let mut command = kiln.command(["build", recipe.path(), &repository.set()]);
    command.env("KILN__WATCH__RETRY_PAUSE", "1s");
    let mut build = Started::new(command);
    kiln.wait_for_file(&mut build, "var/asleep");
    let killed = processes_of(build.pid())["agent"];
    kill(killed, Signal::SIGKILL).unwrap();
    // The second try has a root of its own, once its agent runs: the first one's is still there for a while.
    eventually(|| {
        let mut processes = kiln.processes().into_iter();
        processes.any(|(pid, name)| name == "agent" && pid != killed.as_raw())
    });
    kiln.wait_for_file(&mut build, "var/asleep");
    let mut processes = kiln.processes().into_iter();
    let script = processes.find(|(_, name)| name == "config.sh").unwrap().0;
    kill(Pid::from_raw(script), Signal::SIGUSR1).unwrap();
    let ran = build.end().ok();
    assert!(ran.stderr.contains("its last try failed"), "{}", ran.stderr);
    let job = kiln.jobs().pop().unwrap();
    assert_eq!(
        (&job["state"], &job["attempt"]),
        (&"success".into(), &2.into()),
        "{job}"
    );
    kiln.assert_clean();
}

#[test]
fn whoever_dies_in_the_sandbox_the_build_says_so_and_cleans_up() {
    needs!(support::no_namespaces());
    for victim in ["supervisor", "entrance", "init", "agent"] {
        let sleeping = Sleeping::new();
        let (kiln, build) = (sleeping.kiln, sleeping.build);
        let pid = processes_of(build.pid())[victim];
        kill(pid, Signal::SIGKILL).unwrap();
        let ran = build.end();
        let error = ran.failed();
        assert_eq!(kiln.failure_code(), "sandbox_lost", "{victim}: {error}");
        kiln.assert_nothing_built();
    }
}
