//! Sandboxes as a server has them: they outlive it, are found again by it, and leave nothing, whoever is killed when.
//!
//! A small static program stands for the agent: it runs the shell script that the test put beside the server's sockets.

#![cfg(all(feature = "server", feature = "agent"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use kiln::{
    records::{JobId, protocol::AgentFacts},
    sandbox::{
        DiskLimit, Driver, Evidence, Kernel, Limits, Network, Reach, SandboxSpec, SandboxState, Scratch,
        namespace::NamespaceDriver, toolbox::Toolboxes,
    },
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use support::{Kiln, eventually, eventually_async, tool};

/// How long a sandbox may take for what it does at once.
const SOON: Duration = Duration::from_secs(10);

/// Runs `/run/kiln/script` as its child, as the agent runs its tools, and ends as that does.
const STAND_IN: &str = r#"
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "/run/kiln/script", (char *) 0);
        _exit(127);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
"#;

/// The stand-in for the agent, compiled once.
fn stand_in() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stand-in-{}", std::process::id()));
        fs_err::create_dir_all(&dir).unwrap();
        let (source, program) = (dir.join("agent.c"), dir.join("agent"));
        fs_err::write(&source, STAND_IN).unwrap();
        tool(
            "gcc",
            &["-static", "-o", program.to_str().unwrap(), source.to_str().unwrap()],
        );
        program
    });
    &PROGRAM
}

/// A driver with a directory of its own.
struct Place {
    kiln: Kiln,
    driver: NamespaceDriver,
}

impl Place {
    fn new() -> Self {
        Self::with_program(&support::kiln_program())
    }

    fn with_program(program: &Path) -> Self {
        let kiln = Kiln::new();
        let driver = NamespaceDriver::new(&kiln.data().join("sandboxes"), program).unwrap();
        Self { kiln, driver }
    }

    /// What a sandbox is made from that runs this script.
    fn spec(&self, script: &str) -> SandboxSpec {
        let job = JobId::new();
        let doors_dir = self.kiln.data().join(format!("doors-{job}"));
        fs_err::create_dir(&doors_dir).unwrap();
        fs_err::write(doors_dir.join("script"), script).unwrap();
        let toolboxes = Toolboxes::new(&self.kiln.data().join("toolboxes"), self.driver.clone()).unwrap();
        let toolbox = toolboxes.find().unwrap();
        SandboxSpec {
            job,
            toolbox,
            agent: stand_in().to_owned(),
            limits: Limits {
                memory: Some(1 << 30),
                cpus: None,
                pids: 200,
                disk: None,
            },
            kernel: Kernel::Shared,
            network: Network::Isolated(Reach::default()),
            doors_dir,
            facts: AgentFacts {
                gateway: None,
                server: "unix:/run/kiln/agent.sock".to_owned(),
                job,
                token: "secret-of-the-job".to_owned(),
                doors: Vec::new(),
            },
            server_url: None,
            scratch_from: None,
        }
    }

    /// Starts a sandbox, and comes back when its script has made `/scratch/ready`.
    async fn start(&self, script: &str) -> JobId {
        let spec = self.spec(&format!("{script}\ntouch /scratch/ready\nsleep 600\n"));
        self.driver.start(&spec).await.unwrap();
        let ready = self.driver.dir_of(spec.job).join("scratch/ready");
        let came = eventually(SOON, || ready.exists());
        assert!(came, "{:?}", self.driver.look(spec.job).await);
        spec.job
    }

    /// Runs a script to its end.
    async fn run(&self, spec: &SandboxSpec) -> Evidence {
        self.driver.start(spec).await.unwrap();
        self.end_of(spec.job).await
    }

    async fn end_of(&self, job: JobId) -> Evidence {
        let ended = eventually_async(|| async { self.driver.look(job).await.unwrap() != SandboxState::Running }).await;
        assert!(ended, "it still runs");
        match self.driver.look(job).await.unwrap() {
            SandboxState::Ended(evidence) => evidence,
            other => panic!("{other:?}"),
        }
    }

    /// Destroys it; nothing is left.
    async fn destroy(&self, job: JobId) {
        self.driver.destroy(job, Scratch::Remove).await.unwrap();
        assert_eq!(self.driver.look(job).await.unwrap(), SandboxState::Absent);
        self.assert_nothing_of(job).await;
    }

    async fn assert_nothing_of(&self, job: JobId) {
        assert_eq!(self.driver.list().await.unwrap(), []);
        let gone = eventually(Duration::from_secs(2), || processes_of(job).is_empty());
        assert!(gone, "{:?}", processes_of(job));
        self.kiln.assert_clean();
        for controller in ["pids", "memory", "cpuacct", "cpu"] {
            let group = Path::new("/sys/fs/cgroup")
                .join(controller)
                .join("kiln")
                .join(job.to_string());
            assert!(!group.exists(), "{}", group.display());
        }
        let loops = tool("losetup", &["--list", "--noheadings", "--output", "BACK-FILE"]);
        assert!(!loops.contains(&job.to_string()), "{loops}");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A test that fails must not leave its sandboxes running: they end with their locks.
        for entry in fs_err::read_dir(self.kiln.data().join("sandboxes"))
            .into_iter()
            .flatten()
            .flatten()
        {
            if entry.path().extension().is_some_and(|extension| extension == "lock") {
                let _ = fs_err::remove_file(entry.path());
            }
        }
    }
}

/// Processes in the mount namespace of which the job's overlay is: its entrance, and all inside.
fn processes_of(job: JobId) -> Vec<(Pid, String)> {
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
fn supervisor_of(place: &Place, job: JobId) -> Pid {
    let lock = place.driver.dir_of(job).with_extension("lock");
    let note: serde_json::Value = serde_json::from_slice(&fs_err::read(lock).unwrap()).unwrap();
    Pid::from_raw(i32::try_from(note["pid"].as_i64().unwrap()).unwrap())
}

#[tokio::test]
async fn how_a_sandbox_ended_is_known() {
    needs!(support::no_namespaces());
    let place = Place::new();
    let spec = place.spec(
        "cat >&2; echo out; dd if=/dev/zero of=/scratch/x bs=1M count=50 2>/dev/null; echo last words >&2; exit 7",
    );
    let evidence = place.run(&spec).await;
    assert_eq!(evidence.exit_code, 7, "{evidence:?}");
    assert_eq!((evidence.oom_kills, &evidence.failure), (0, &None), "{evidence:?}");
    // What it read is what it was told, and its output is nobody's.
    let facts = serde_json::to_string(&spec.facts).unwrap();
    assert_eq!(evidence.last_words, [facts, "last words".to_owned()]);
    let usage = place.driver.usage(spec.job).await.unwrap();
    assert!(
        usage.memory_peak > 40 << 20 && usage.cpu > Duration::from_millis(5),
        "{usage:?}"
    );
    assert_eq!(place.driver.list().await.unwrap(), [(spec.job, false)]);
    place.destroy(spec.job).await;
    // Whoever was not sure that it was destroyed does it again.
    place.destroy(spec.job).await;
}

/// Starts a sandbox, as a server does, says its job and waits to be killed. Run by the test below, in a process of its
/// own.
#[tokio::test]
#[ignore = "a process that another test starts and kills"]
async fn a_starter() {
    // The directory is the other test's, which removes it.
    let kiln = Kiln::at(Path::new(&std::env::var("DIR").unwrap()));
    let driver = NamespaceDriver::new(&kiln.data().join("sandboxes"), &support::kiln_program()).unwrap();
    let place = Place { kiln, driver };
    let mut spec = place.spec("");
    spec.doors_dir = std::env::var("DOORS").unwrap().into();
    println!("job {}", spec.job);
    place.driver.start(&spec).await.unwrap();
    std::thread::sleep(Duration::from_mins(1));
}

#[tokio::test]
async fn a_sandbox_outlives_the_process_that_started_it() {
    needs!(support::no_namespaces());
    let place = Place::new();
    let script = "touch /scratch/ready; while [ ! -e /run/kiln/go ]; do sleep 0.02; done; exit 9";
    let doors = place.spec(script).doors_dir;
    let mut starter = support::Started::new({
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "--nocapture", "a_starter"])
            .env("DIR", place.kiln.data().parent().unwrap())
            .env("DOORS", &doors)
            .stdin(Stdio::null());
        command
    });
    let line = starter.wait_for("job ");
    let job: JobId = line.split_whitespace().last().unwrap().parse().unwrap();
    let ready = place.driver.dir_of(job).join("scratch/ready");
    assert!(eventually(SOON, || ready.exists()));
    // As a terminal does when its window is closed, and then for good.
    kill(Pid::from_raw(-starter.pid().as_raw()), Signal::SIGHUP).unwrap();
    kill(Pid::from_raw(-starter.pid().as_raw()), Signal::SIGKILL).unwrap();
    starter.end();

    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(place.driver.look(job).await.unwrap(), SandboxState::Running);
    assert_eq!(place.driver.list().await.unwrap(), [(job, false)]);
    // A build at the command line that looks for leftovers passes it by.
    assert_eq!(place.driver.sweep(|_| false).await.unwrap(), []);
    let second = place.driver.start(&SandboxSpec { job, ..place.spec("") }).await;
    assert_eq!(second.unwrap_err().code, "sandbox_exists");
    // What a restarted server puts beside its sockets is seen inside.
    fs_err::write(doors.join("go"), "").unwrap();
    assert_eq!(place.end_of(job).await.exit_code, 9);
    assert_eq!(place.driver.sweep(|_| false).await.unwrap(), []);
    assert_eq!(place.end_of(job).await.exit_code, 9);
    place.destroy(job).await;
}

#[tokio::test]
async fn a_sandbox_is_destroyed_while_it_runs_even_if_its_supervisor_hangs() {
    needs!(support::no_namespaces());
    let place = Place::new();
    let job = place.start("").await;
    let begun = Instant::now();
    place.destroy(job).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());

    let job = place.start("").await;
    kill(supervisor_of(&place, job), Signal::SIGSTOP).unwrap();
    place.destroy(job).await;
}

#[tokio::test]
async fn whoever_is_killed_the_end_is_known_and_nothing_is_left() {
    needs!(support::no_namespaces());
    let place = Place::new();
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
        let found = evidence.failure.as_ref().map(|failure| failure.code.as_str());
        assert_eq!((evidence.exit_code, found), (code, failure), "{victim}: {evidence:?}");
        let gone = eventually(Duration::from_secs(2), || processes_of(job).is_empty());
        assert!(gone, "{victim}: {:?}", processes_of(job));
        let gone = eventually(Duration::from_secs(2), || {
            child_of_nobody("slirp4netns", pid).is_empty()
        });
        assert!(gone, "{victim}: its network lives on");
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

#[tokio::test]
async fn a_supervisor_killed_at_any_moment_of_the_start_leaves_nothing() {
    needs!(support::no_namespaces());
    let place = Place::new();
    for delay in numbers(4).take(25).map(|number| Duration::from_micros(number % 60_000)) {
        let mut spec = place.spec("sleep 600");
        spec.limits.disk = Some(DiskLimit {
            bytes: 64 << 20,
            inodes: 1000,
        });
        let job = spec.job;
        place.driver.start(&spec).await.unwrap();
        tokio::time::sleep(delay).await;
        let lock = place.driver.dir_of(job).with_extension("lock");
        assert!(eventually(SOON, || fs_err::metadata(&lock).unwrap().len() > 0));
        kill(supervisor_of(&place, job), Signal::SIGKILL).unwrap();
        let failure = place.end_of(job).await.failure.unwrap();
        assert_eq!(failure.code, "sandbox_lost", "after {delay:?}: {failure:?}");
        place.destroy(job).await;
    }
}

#[tokio::test]
async fn recipes_cannot_look_into_the_agent() {
    needs!(support::no_namespaces());
    let place = Place::new();
    let script = r"
        tries() { if cat $1 > /dev/null 2>&1; then echo $1 >&2; fi; }
        for pid in 1 $PPID; do
            for file in environ mem maps auxv fd/0 fd/1 fd/2 cwd/etc/hostname root/etc/hostname; do tries /proc/$pid/$file; done
            ls /proc/$pid/fd > /dev/null 2>&1 && echo /proc/$pid/fd >&2
        done
        tries /run/agent
        chmod 755 /run/agent 2> /dev/null && echo chmod >&2
        # Of itself it sees all, so that the look is no blind one.
        tries /proc/$$/environ
        readlink /proc/$$/cwd >&2
        id -u >&2";
    let spec = place.spec(script);
    let evidence = place.run(&spec).await;
    let own = evidence
        .last_words
        .iter()
        .filter(|line| line.ends_with("/environ"))
        .count();
    assert_eq!(own, 1, "{evidence:?}");
    assert_eq!(evidence.last_words[1..], ["/", "0"], "{evidence:?}");
    place.destroy(spec.job).await;
}

/// Tries to connect to `$1`, port `$2`; says what it hears, or `refused`.
const CONNECT: &str = r#"
connect() {
    python3 -c '
import socket, sys
try:
    peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
    print(peer.recv(100).decode(), file=sys.stderr)
except OSError as error:
    print("refused", file=sys.stderr)
' "$@"
}
"#;

#[tokio::test]
async fn the_hosts_loopback_is_out_of_reach_and_the_rest_is_not() {
    needs!(support::no_namespaces(), no_address());
    let place = Place::new();
    // What listens everywhere is reached where other machines would reach it.
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        use std::io::Write;
        for mut socket in listener.incoming().flatten() {
            let _ = socket.write_all(b"hello from the host");
        }
    });
    let address = own_address().unwrap();
    let script = format!(
        "{CONNECT}
        connect 127.0.0.1 {port}
        connect localhost {port}
        connect 10.0.2.2 {port}
        connect {address} {port}
        grep nameserver /etc/resolv.conf >&2
        ls /sys/class/net /proc/net/tcp > /dev/null 2>&1
        grep -c : /proc/net/dev >&2
        python3 -c '
import socket
peer = socket.socket(socket.AF_UNIX); peer.connect(\"/run/kiln/port-{port}.sock\")
import sys; print(peer.recv(100).decode(), file=sys.stderr)'"
    );
    let spec = place.spec(&script);
    let doors = kiln::sandbox::doors::Doors::open(&spec.doors_dir, &[port]).unwrap();
    let evidence = place.run(&spec).await;
    assert_eq!(
        evidence.last_words,
        [
            "refused",
            "refused",
            "refused",
            "hello from the host",
            "nameserver 10.0.2.3",
            "2",
            "hello from the host"
        ],
        "{evidence:?}"
    );
    drop(doors);
    place.destroy(spec.job).await;

    // Who asks for the host's network has all of it.
    let mut spec = place.spec(&format!("{CONNECT}\nconnect 127.0.0.1 {port}"));
    spec.network = Network::Host;
    assert_eq!(place.run(&spec).await.last_words, ["hello from the host"]);
    place.destroy(spec.job).await;
}

/// An address of this machine that is not its loopback.
fn own_address() -> Option<std::net::IpAddr> {
    // Nothing is sent: this only asks which address would be.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.200:9").ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn no_address() -> Option<String> {
    own_address()
        .is_none()
        .then(|| "this machine has no address but its loopback".to_owned())
}

#[tokio::test]
async fn without_slirp4netns_the_failure_says_what_to_install() {
    needs!(support::no_namespaces());
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("kiln");
    let text = format!(
        "#!/bin/sh\nPATH=/nowhere exec {} \"$@\"\n",
        support::kiln_program().display()
    );
    fs_err::write(&program, text).unwrap();
    tool("chmod", &["+x", program.to_str().unwrap()]);
    let place = Place::with_program(&program);
    let spec = place.spec("");
    let failure = place.run(&spec).await.failure.unwrap();
    assert_eq!(failure.code, "no_network");
    assert!(failure.hint.unwrap().contains("slirp4netns"));
    place.destroy(spec.job).await;
}

/// Why there are no file systems of a fixed size here, if there are none.
fn no_loop_devices() -> Option<String> {
    let control = fs_err::File::options().write(true).open("/dev/loop-control");
    control.err().map(|error| format!("no loop devices: {error}"))
}

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn disk_space_of_a_fixed_size_is_full_when_it_is() {
    needs!(support::no_namespaces(), support::not_root(), no_loop_devices());
    let place = Place::new();
    let script = "cd /scratch
        dd if=/dev/zero of=large bs=1M count=60 2>/dev/null && echo fits >&2
        dd if=/dev/zero of=larger bs=1M count=60 2>&1 | grep -o 'No space.*' >&2
        touch /usr/changed || echo 'the toolbox is full too' >&2
        rm large larger
        i=0; while touch small$i 2>/dev/null; do i=$((i+1)); done
        [ $i -gt 800 ] && [ $i -le 1100 ] && echo inodes >&2 || echo $i inodes >&2
        touch one-more 2>&1 | grep -o 'No space.*' >&2
        sleep 600";
    let mut spec = place.spec(script);
    spec.limits.disk = Some(DiskLimit {
        bytes: 100 * MIB,
        inodes: 1000,
    });
    place.driver.start(&spec).await.unwrap();
    let mounts = fs_err::read_to_string("/proc/self/mounts").unwrap();
    let file = place.driver.dir_of(spec.job).with_extension("stderr");
    assert!(
        eventually(SOON, || fs_err::read_to_string(&file).unwrap().lines().count() == 4),
        "{:?}",
        fs_err::read_to_string(&file)
    );
    assert!(!mounts.contains(&spec.job.to_string()), "it shows on the host");
    // It is measured while it runs, and what was deleted is the host's again.
    let measured = eventually_async(|| async { place.driver.usage(spec.job).await.unwrap().inodes > 800 }).await;
    assert!(measured);
    let usage = place.driver.usage(spec.job).await.unwrap();
    assert!(usage.disk <= 104 * MIB, "{usage:?}");
    place.driver.destroy(spec.job, Scratch::Keep).await.unwrap();
    let SandboxState::Absent = place.driver.look(spec.job).await.unwrap() else {
        panic!("it is there");
    };
    assert_eq!(place.driver.list().await.unwrap(), [(spec.job, true)]);
    place.destroy(spec.job).await;
}

#[tokio::test]
async fn disk_space_that_was_kept_is_gone_on_with() {
    needs!(support::no_namespaces());
    let place = Place::new();
    let limits = [
        None,
        Some(DiskLimit {
            bytes: 100 * MIB,
            inodes: 1000,
        }),
    ];
    for disk in limits {
        let mut first =
            place.spec("echo first > /scratch/work; touch /usr/changed; mkdir /scratch/deep; kill -9 $PPID");
        first.limits.disk = disk;
        place.run(&first).await;
        place.driver.destroy(first.job, Scratch::Keep).await.unwrap();
        assert_eq!(place.driver.list().await.unwrap(), [(first.job, true)]);
        assert_eq!(place.driver.look(first.job).await.unwrap(), SandboxState::Absent);

        let mut second =
            place.spec("cat /scratch/work >&2; [ ! -e /usr/changed ] && rmdir /scratch/deep && echo fresh >&2");
        second.limits.disk = disk;
        second.scratch_from = Some(first.job);
        let evidence = place.run(&second).await;
        assert_eq!(evidence.last_words, ["first", "fresh"], "{evidence:?}");
        // A retry in place.
        place.driver.destroy(second.job, Scratch::Keep).await.unwrap();
        second.scratch_from = Some(second.job);
        place.driver.destroy(first.job, Scratch::Remove).await.unwrap();
        assert_eq!(place.driver.list().await.unwrap(), [(second.job, true)]);
        place.driver.start(&second).await.unwrap();
        place.end_of(second.job).await;
        place.destroy(second.job).await;

        second.scratch_from = Some(first.job);
        assert_eq!(place.driver.start(&second).await.unwrap_err().code, "no_scratch");
    }
    assert_eq!(place.driver.list().await.unwrap(), []);
}

#[tokio::test]
async fn disk_space_without_a_size_is_measured() {
    needs!(support::no_namespaces());
    let place = Place::new();
    // A directory that another sandbox left stays one, whatever is asked for.
    let first = place.spec("dd if=/dev/zero of=/scratch/large bs=1M count=30 2>/dev/null");
    place.run(&first).await;
    place.driver.destroy(first.job, Scratch::Keep).await.unwrap();
    let mut second = place.spec("cd /scratch; dd if=/dev/urandom of=more bs=1M count=20 2>/dev/null; sync; sleep 600");
    second.scratch_from = Some(first.job);
    second.limits.disk = Some(DiskLimit {
        bytes: 10 * MIB,
        inodes: 1000,
    });
    place.driver.start(&second).await.unwrap();
    let large = eventually_async(|| async { place.driver.usage(second.job).await.unwrap().disk > 48 * MIB }).await;
    let usage = place.driver.usage(second.job).await.unwrap();
    assert!(
        large && usage.disk < 60 * MIB && (2..40).contains(&usage.inodes),
        "{usage:?}"
    );
    place.destroy(second.job).await;
}

#[tokio::test]
async fn more_processes_or_memory_than_allowed() {
    needs!(support::no_namespaces(), support::not_root());
    let place = Place::new();
    let spec = place.spec("i=0; while [ $i -lt 400 ]; do sleep 60 & i=$((i+1)); done; echo forked >&2");
    let evidence = place.run(&spec).await;
    assert!(!evidence.last_words.contains(&"forked".to_owned()), "{evidence:?}");
    place.destroy(spec.job).await;

    let mut spec = place.spec("awk 'BEGIN { s = \"0123456789abcdef\"; while (1) s = s s }'");
    spec.limits.memory = Some(100 * MIB);
    let evidence = place.run(&spec).await;
    assert!(evidence.oom_kills > 0, "{evidence:?}");
    let usage = place.driver.usage(spec.job).await.unwrap();
    assert!((90 * MIB..=100 * MIB).contains(&usage.memory_peak), "{usage:?}");
    place.destroy(spec.job).await;
}

#[tokio::test]
async fn what_the_place_has() {
    needs!(support::no_namespaces());
    let place = Place::new();
    let capacity = place.driver.capacity().await.unwrap();
    assert!(capacity.cpus >= 1 && capacity.memory > 100 * MIB, "{capacity:?}");
    assert!(
        0 < capacity.disk_free && capacity.disk_free < capacity.disk_total,
        "{capacity:?}"
    );
    assert!(capacity.inodes_free <= capacity.inodes_total, "{capacity:?}");
}
