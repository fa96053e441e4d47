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
        DiskLimit, Driver, Evidence, Limits, Network, SandboxSpec, SandboxState, Scratch, Usage,
        namespace::NamespaceDriver,
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

    fn spec(&self, script: &str) -> SandboxSpec {
        let job = JobId::new();
        let doors_dir = self.kiln.data().join(format!("doors-{job}"));
        fs_err::create_dir(&doors_dir).unwrap();
        fs_err::write(doors_dir.join("script"), script).unwrap();
        let toolboxes = fs_err::read_dir(self.kiln.data().join("toolboxes")).unwrap();
        let toolbox = toolboxes
            .map(|entry| entry.unwrap().path().join("tree"))
            .find(|tree| tree.exists())
            .unwrap();
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
            network: Network::Isolated,
            doors_dir,
            facts: AgentFacts {
                server: "unix:/run/kiln/agent.sock".to_owned(),
                job,
                token: "secret-of-the-job".to_owned(),
                doors: Vec::new(),
            },
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
