//! The namespace driver, and the tests that only it has: any of its processes is killed at any moment.

use std::{path::Path, time::Duration};

use kiln::sandbox::{
    DiskLimit, Driver, SandboxSpec, SandboxState,
    lease::{HELD, Lease, since_boot},
    namespace::NamespaceDriver,
};
use kiln_records::JobId;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::drivers::{
    cases::conformance,
    place::{Kind, Place},
};
use crate::support::{self, Kiln, cgroups_of, eventually, eventually_async, tool};

/// Sandboxes made of namespaces.
pub struct Namespaces {
    pub driver: NamespaceDriver,
}

impl Namespaces {
    fn with_program(kiln: &Kiln, program: &Path) -> Self {
        let driver = NamespaceDriver::new(&kiln.data().join("sandboxes"), program).unwrap();
        Self { driver }
    }
}

impl Kind for Namespaces {
    const NAME: &'static str = "namespace";

    fn lack() -> Option<String> {
        support::no_namespaces()
    }

    async fn new(kiln: &Kiln) -> Self {
        Self::with_program(kiln, &support::kiln_program())
    }

    fn driver(&self) -> &dyn Driver {
        &self.driver
    }

    fn no_sized_disk(&self) -> Option<String> {
        support::not_root().or_else(no_loop_devices)
    }

    fn no_host_network(&self) -> Option<String> {
        None
    }

    fn leftovers(&self, _: &Kiln, job: JobId) -> Vec<String> {
        leftovers(job)
    }

    fn clean(&self, kiln: &Kiln) {
        end_all(kiln);
    }
}

/// The remains of a job's sandbox on the host.
pub fn leftovers(job: JobId) -> Vec<String> {
    let processes = processes_of(job).into_iter();
    let mut left: Vec<String> = processes.map(|(pid, name)| format!("process {pid} {name}")).collect();
    let groups = support::cgroups_of(&job.to_string()).into_iter();
    left.extend(groups.map(|group| group.display().to_string()));
    let loops = tool("losetup", &["--list", "--noheadings", "--output", "BACK-FILE"]);
    left.extend(
        loops
            .lines()
            .filter(|file| file.contains(&job.to_string()))
            .map(str::to_owned),
    );
    left
}

/// Ends every sandbox of a data directory: they end with their locks.
pub fn end_all(kiln: &Kiln) {
    for entry in fs_err::read_dir(kiln.data().join("sandboxes"))
        .into_iter()
        .flatten()
        .flatten()
    {
        if entry.path().extension().is_some_and(|extension| extension == "lock") {
            let _ = fs_err::remove_file(entry.path());
        }
    }
}

conformance!(Namespaces);

/// Processes in the mount namespace of which the job's overlay is: its entrance, and all inside.
pub fn processes_of(job: JobId) -> Vec<(Pid, String)> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let read = |file: &str| fs_err::read_to_string(entry.path().join(file)).unwrap_or_default();
        // Its memory group is empty when it has none.
        if read("mounts").contains(&format!("{job} /scratch ")) || read("cgroup").contains(&job.to_string()) {
            found.push((Pid::from_raw(pid), read("comm").trim().to_owned()));
        }
    }
    found
}

/// The supervisor of a job's sandbox, by its own note.
fn supervisor_of(place: &Place<Namespaces>, job: JobId) -> Pid {
    let lock = place.kind.driver.dir_of(job).with_extension("lock");
    let note: serde_json::Value = serde_json::from_slice(&fs_err::read(lock).unwrap()).unwrap();
    Pid::from_raw(i32::try_from(note["pid"].as_i64().unwrap()).unwrap())
}

#[test]
async fn an_attached_sandbox_is_its_own_process_s_business_and_ends_with_it() {
    needs!(Namespaces::lack());
    let place = Place::<Namespaces>::new().await;
    let spec = place.spec("ring ready\nsleep 600\n");
    let driver = &place.kind.driver;
    let attached = driver.clone().attached();
    attached.start(&spec).await.unwrap();
    place.wait_for(spec.job, "ready").await;
    assert_eq!(driver.look(spec.job).await.unwrap(), SandboxState::Running);
    assert_eq!(driver.list().await.unwrap(), []);
    // As the kernel does when the process is killed.
    drop(attached);
    assert_eq!(place.end_of(spec.job).await.exit_code, 137);
    assert_eq!(driver.list().await.unwrap(), [(spec.job, false)]);
    place.destroy(spec.job).await;
    assert_eq!(driver.list().await.unwrap(), []);
}

#[test]
async fn a_sandbox_is_destroyed_even_if_its_supervisor_hangs() {
    needs!(Namespaces::lack());
    let place = Place::<Namespaces>::new().await;
    let job = place.start("").await;
    kill(supervisor_of(&place, job), Signal::SIGSTOP).unwrap();
    place.destroy(job).await;
}

/// The host's control groups, without which a sandbox cannot stand still.
fn no_groups() -> Option<String> {
    support::not_root().or_else(|| {
        let (one, two) = ("/sys/fs/cgroup/freezer", "/sys/fs/cgroup/cgroup.controllers");
        let is_there = Path::new(one).exists() || Path::new(two).exists();
        (!is_there).then(|| "the host has no control groups that make processes stand still".to_owned())
    })
}

/// Waits until the kernel lets no process of a sandbox run.
fn stands_still(job: JobId) {
    eventually(|| {
        cgroups_of(&job.to_string()).iter().any(|group| {
            let says = |file: &str, word: &str| {
                fs_err::read_to_string(group.join(file)).is_ok_and(|text| text.lines().any(|line| line == word))
            };
            says("freezer.state", "FROZEN") || says("cgroup.events", "frozen 1")
        })
    });
}

#[test]
async fn a_sandbox_stands_still_as_long_as_its_server_shows_no_life() {
    needs!(Namespaces::lack().or_else(no_groups));
    let place = Place::<Namespaces>::new().await;
    let lease = Lease(place.kiln.data().join("lease"));
    let shows_life = |ago: Duration| fs_err::write(&lease.0, Lease::text(since_boot().saturating_sub(ago))).unwrap();
    shows_life(Duration::ZERO);
    let spec = SandboxSpec {
        lease: Some(lease.clone()),
        ..place.spec("n=0; while true; do n=$((n+1)); ring tick-$n; sleep 0.1; done")
    };
    let job = spec.job;
    place.driver().start(&spec).await.unwrap();
    place.wait_for(job, "tick-3").await;
    let ticks = || {
        let has_heard = |n: &usize| place.bell.has_heard(&job.to_string(), &format!("tick-{n}"));
        (1..u16::MAX.into()).take_while(has_heard).count()
    };
    // The file is that of a server whose lease has just ended.
    shows_life(HELD);
    stands_still(job);
    // One tick may be on its way; ten times that many would come in this time.
    let still = ticks();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(ticks() <= still + 1, "it did not stand still");
    assert_eq!(place.driver().look(job).await.unwrap(), SandboxState::Running);
    // The server is back.
    shows_life(Duration::ZERO);
    place.wait_for(job, &format!("tick-{}", still + 4)).await;
    // What stands still can be removed, too, also when its supervisor is gone.
    shows_life(HELD);
    stands_still(job);
    kill(supervisor_of(&place, job), Signal::SIGKILL).unwrap();
    place.destroy(job).await;
}

#[test]
async fn whoever_is_killed_the_end_is_known_and_nothing_is_left() {
    needs!(Namespaces::lack());
    let place = Place::<Namespaces>::new().await;
    for (victim, code, failure) in [
        ("kiln-supervisor", 1, Some("sandbox_lost")),
        ("entrance", 137, None),
        ("kiln-init", 137, None),
        ("agent", 137, None),
        ("slirp4netns", 137, Some("network_lost")),
    ] {
        let job = place.start("").await;
        let supervisor = supervisor_of(&place, job);
        let children = fs_err::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
        let named = |name: &str| {
            let inside = processes_of(job);
            let found = inside.iter().find(|(_, comm)| comm == name);
            found.unwrap_or_else(|| panic!("no {name}: {inside:?}")).0
        };
        let child = |is_slirp: bool| {
            let pids = children.split_whitespace();
            let comm = |pid: &str| fs_err::read_to_string(format!("/proc/{pid}/comm")).unwrap();
            let found = pids
                .clone()
                .find(|pid| comm(pid).starts_with("slirp4netns") == is_slirp);
            Pid::from_raw(found.unwrap().parse().unwrap())
        };
        let pid = match victim {
            "kiln-supervisor" => supervisor,
            "entrance" => child(false),
            "slirp4netns" => child(true),
            inside => named(inside),
        };
        kill(pid, Signal::SIGKILL).unwrap();
        let evidence = place.end_of(job).await;
        let found = evidence.failure.as_ref().map(|failure| failure.code.name());
        assert_eq!((evidence.exit_code, found), (code, failure), "{victim}: {evidence:?}");
        eventually(|| {
            let left = processes_of(job);
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{victim}: {left:?}"))
            }
        });
        let is_left = || format!("{victim}: its network lives on");
        eventually(|| {
            child_of_nobody("slirp4netns", pid)
                .is_empty()
                .then_some(())
                .ok_or_else(is_left)
        });
        place.destroy(job).await;
    }
}

/// Processes of this name whose parent is process 1 or that died with `parent`, which they should have done.
fn child_of_nobody(name: &str, parent: Pid) -> Vec<i32> {
    let is_orphan = |pid: i32| {
        let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let (head, tail) = stat.rsplit_once(") ").unwrap_or_default();
        let parent_now = tail.split_whitespace().nth(1).and_then(|text| text.parse().ok());
        head.ends_with(name) && (parent_now == Some(1) || parent_now == Some(parent.as_raw()))
    };
    let entries = fs_err::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_orphan(*pid)).collect()
}

/// The first numbers of a sequence that looks random and is the same every time.
fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(seed), |last| {
        Some(
            last.wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407),
        )
    })
    .map(|number| number >> 33)
    .skip(1)
}

#[test]
async fn a_supervisor_killed_at_any_moment_of_the_start_leaves_nothing() {
    needs!(Namespaces::lack());
    let place = Place::<Namespaces>::new().await;
    for delay in numbers(4).take(25).map(|number| Duration::from_micros(number % 60_000)) {
        let mut spec = place.spec("sleep 600");
        spec.limits.disk = Some(DiskLimit {
            bytes: 64 << 20,
            inodes: 1000,
        });
        let job = spec.job;
        place.driver().start(&spec).await.unwrap();
        // The moment at which it is killed, whatever it has done by then.
        tokio::time::sleep(delay).await;
        let lock = place.kind.driver.dir_of(job).with_extension("lock");
        eventually(|| fs_err::metadata(&lock).unwrap().len() > 0);
        kill(supervisor_of(&place, job), Signal::SIGKILL).unwrap();
        let failure = place.end_of(job).await.failure.unwrap();
        assert_eq!(failure.code.name(), "sandbox_lost", "after {delay:?}: {failure:?}");
        place.destroy(job).await;
    }
}

#[test]
async fn directories_deeper_than_any_path_are_measured_and_removed() {
    needs!(Namespaces::lack());
    let place = Place::<Namespaces>::new().await;
    let script = "cd /scratch && python3 -c '
import os
for _ in range(5000):
    os.mkdir(\"d\")
    os.chdir(\"d\")
open(\"file\", \"wb\").write(os.urandom(20 << 20))
os.sync()
' && ring nested && sleep 600";
    let mut spec = place.spec(script);
    spec.in_directory = true;
    spec.limits.disk = Some(DiskLimit {
        bytes: 1 << 30,
        inodes: 100_000,
    });
    place.driver().start(&spec).await.unwrap();
    place.wait_for(spec.job, "nested").await;
    let usage = || async { place.driver().usage(spec.job).await.unwrap() };
    eventually_async(|| async { usage().await.disk > 20 << 20 }).await;
    let usage = usage().await;
    assert!(usage.inodes > 5_000, "{usage:?}");
    place.destroy(spec.job).await;
    assert!(!place.kind.driver.dir_of(spec.job).exists());
    assert_eq!(place.driver().list().await.unwrap(), []);
}

#[test]
async fn without_slirp4netns_the_failure_says_what_to_install() {
    needs!(Namespaces::lack());
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("kiln");
    let text = format!(
        "#!/bin/sh\nPATH=/nowhere exec {} \"$@\"\n",
        support::kiln_program().display()
    );
    fs_err::write(&program, text).unwrap();
    tool("chmod", &["+x", program.to_str().unwrap()]);
    let mut place = Place::<Namespaces>::new().await;
    place.kind = Namespaces::with_program(&place.kiln, &program);
    let spec = place.spec("");
    let failure = place.run(&spec).await.failure.unwrap();
    assert_eq!(failure.code.name(), "no_network");
    assert!(failure.hint.unwrap().contains("slirp4netns"));
    place.destroy(spec.job).await;
}

/// Why there are no file systems of a fixed size here, if there are none.
fn no_loop_devices() -> Option<String> {
    let control = fs_err::File::options().write(true).open("/dev/loop-control");
    control.err().map(|error| format!("no loop devices: {error}"))
}
