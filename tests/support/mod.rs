//! Helpers for the tests of the whole program: a `kiln` with its own data directory, and checks for everything that it
//! might leave behind.
//!
//! Nothing here is simulated: kiwi, namespaces, emulators, package mirrors and S3 are real. All tests share one
//! toolbox, since making it takes a minute; `KILN_TEST_TOOLBOXES` names the data directory that contains it.

#![allow(dead_code, reason = "every test program uses another part")]

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, LazyLock, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use kiln::store::{JobLogs, Jobs, Query, Runs, SqliteStore, StoredRun};
use kiln_records::{JobId, LogRow, run::State};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::{Pid, Uid},
};
use serde_json::{Value, json};
use tempfile::TempDir;

pub mod archive;
pub mod authority;
pub mod bootable;
pub mod cluster;
pub mod commands;
pub mod engine;
pub mod fake_cluster;
pub mod fake_server;
pub mod gate;
pub mod issuer;
pub mod ports;
pub mod postgres;
pub mod registry;
pub mod repository;
pub mod s3_proxy;
pub mod serve;
pub mod server;
pub mod squashfs;
pub mod sshd;
pub mod wait;

#[allow(unused_imports, reason = "only some test programs wait for all of these")]
pub use self::wait::{PATIENCE, eventually, eventually_async};

const KILN: &str = env!("CARGO_BIN_EXE_kiln");
pub const KILN_AGENT: &str = "kiln-agent";
pub const KILN_EXEC: &str = "kiln-exec";
pub const ANSWERS: &str = "answers.so";
pub const HOST: &str = std::env::consts::ARCH;

/// A script that asks for more and more memory, in small steps: a request for more than there is would be refused, and
/// the kernel would have no reason to end a process.
pub const TAKES_ALL_MEMORY: &str = "awk 'BEGIN { s = \"0123456789abcdef\"; while (length(s) < 65536) s = s s; \
                                    while (1) kept[n++] = s n }'";

/// The directory of the repository.
pub fn source_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The one of these two architectures that is not the host's.
pub fn foreign() -> &'static str {
    if HOST == "aarch64" { "x86_64" } else { "aarch64" }
}

/// Ends the test, as skipped, on a machine that cannot run it.
#[macro_export]
macro_rules! needs {
    ($($lack:expr),+) => {
        $(if let Some(why) = $lack {
            kiln_harness::skip(why);
        })+
    };
}

/// Why sandboxes cannot be made here, if so.
pub fn no_namespaces() -> Option<String> {
    static LACK: LazyLock<Option<String>> = LazyLock::new(|| {
        let output = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "true"])
            .output();
        match output {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(format!(
                "no user namespaces here: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )),
            Err(error) => Some(format!("cannot run unshare: {error}")),
        }
    });
    LACK.clone()
}

/// Why other architectures cannot be emulated in a sandbox, if so: binfmt_misc in a user namespace needs Linux 6.7.
pub fn no_emulation() -> Option<String> {
    let release = fs_err::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    (version < (6, 7)).then(|| format!("Linux {} has no binfmt_misc in user namespaces", release.trim()))
}

/// An address of this machine that is not its loopback.
pub fn own_address() -> Option<std::net::IpAddr> {
    // Nothing is sent: this only asks which address would be.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.200:9").ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Why a test that takes longer than all others is left out, unless it was asked for.
pub fn not_asked(why: &str) -> Option<String> {
    const ASKED: &str = "KILN_TEST_LONGEST";
    let is_asked = std::env::var_os(ASKED).is_some();
    (!is_asked).then(|| format!("{why}; set {ASKED}=1"))
}

/// Why a test that needs root cannot run, if so.
pub fn not_root() -> Option<String> {
    (!Uid::effective().is_root()).then(|| "this test must be run by root".to_owned())
}

/// Links to kiln, its agent and the agent's companions, so that a build of the project during the tests changes
/// nothing: builds replace files by new ones. Fails with advice when the static agent is not beside kiln, as after a
/// plain `cargo test`.
pub fn programs() -> &'static Path {
    static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
        let built = Path::new(KILN).parent().unwrap();
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(concat!("bin-", env!("CARGO_CRATE_NAME")));
        fs_err::create_dir_all(&dir).unwrap();
        for name in ["kiln", KILN_AGENT, KILN_EXEC, ANSWERS] {
            let (from, to) = (built.join(name), dir.join(name));
            assert!(
                from.exists(),
                "{} is not there: run `make test` (or once `make agent PROFILE=debug`)",
                from.display()
            );
            // Another process of the same tests may be running the existing one.
            let fresh = to.with_extension(std::process::id().to_string());
            fs_err::hard_link(from, &fresh).unwrap();
            fs_err::rename(&fresh, to).unwrap();
            // Both are there still if they are one file.
            let _ = fs_err::remove_file(fresh);
        }
        dir
    });
    &DIR
}

/// The kiln under test; the agent lies beside it.
pub fn kiln_program() -> PathBuf {
    programs().join("kiln")
}

/// The directory `toolboxes` that all tests share, with the toolbox in it.
fn shared_toolboxes() -> &'static Path {
    static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
        let data = std::env::var_os("KILN_TEST_TOOLBOXES")
            .map_or_else(|| source_dir().join("target/test-toolboxes"), PathBuf::from);
        let output = Command::new(programs().join("kiln"))
            .args(["toolbox", "build"])
            .env("KILN_DATA_DIR", &data)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "cannot build the toolbox: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        data.join("toolboxes")
    });
    &DIR
}

/// The toolbox's files, which must not be changed.
pub fn toolbox_tree() -> PathBuf {
    let toolboxes = shared_toolboxes();
    let output = Command::new(kiln_program())
        .args(["toolbox", "show"])
        .env("KILN_DATA_DIR", toolboxes.parent().unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let name = said.lines().find_map(|line| line.strip_prefix("toolbox ")).unwrap();
    toolboxes.join(name.trim()).join("tree")
}

/// The host kernel's entries for foreign programs. Kiln must never change them.
pub fn host_binfmt() -> BTreeMap<String, String> {
    let Ok(entries) = fs_err::read_dir("/proc/sys/fs/binfmt_misc") else {
        return BTreeMap::new();
    };
    entries
        .flatten()
        .map(|entry| {
            let content = fs_err::read_to_string(entry.path()).unwrap_or_default();
            (entry.file_name().to_string_lossy().into_owned(), content)
        })
        .collect()
}

/// The host's entries when the test program began.
static BINFMT_BEFORE: LazyLock<BTreeMap<String, String>> = LazyLock::new(host_binfmt);

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// The time that it had a CPU.
    pub cpu: Duration,
}

impl Ran {
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.last());
        self
    }

    /// The last lines of standard error.
    pub fn last(&self) -> String {
        let lines: Vec<_> = self.stderr.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Checks that it failed in the usual form: one line `error:`, and a hint. Returns the error's text.
    #[track_caller]
    pub fn failed(&self) -> String {
        assert_eq!(self.code, Some(1), "{}", self.last());
        let errors: Vec<_> = self
            .stderr
            .lines()
            .filter_map(|line| line.strip_prefix("error: "))
            .collect();
        assert_eq!(errors.len(), 1, "there must be one error: {}", self.last());
        assert!(
            self.stderr.lines().any(|line| line.starts_with("hint: ")),
            "there is no hint: {}",
            self.last()
        );
        errors[0].to_owned()
    }

    /// The values of lines `name  value` on standard output.
    pub fn values(&self, name: &str) -> Vec<String> {
        let rest = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(' ')?.trim().to_owned());
        self.stdout.lines().filter_map(rest).collect()
    }
}

/// A kiln with its own data directory.
#[derive(Debug)]
pub struct Kiln {
    data: PathBuf,
    program: PathBuf,
    _temp: Option<TempDir>,
}

impl Kiln {
    /// Makes one with the shared toolbox.
    pub fn new() -> Self {
        let temp = tempfile::Builder::new().prefix("kiln-test-").tempdir().unwrap();
        let kiln = Self::at(temp.path());
        kiln.link_toolboxes();
        Self {
            _temp: Some(temp),
            ..kiln
        }
    }

    /// Makes one with an empty data directory, for tests that need no toolbox.
    pub fn bare() -> Self {
        let temp = tempfile::Builder::new().prefix("kiln-test-").tempdir().unwrap();
        let kiln = Self::at(temp.path());
        Self {
            _temp: Some(temp),
            ..kiln
        }
    }

    /// Makes one with a data directory below `dir`, which the caller removes.
    pub fn at(dir: &Path) -> Self {
        LazyLock::force(&BINFMT_BEFORE);
        let data = fs_err::canonicalize(dir).unwrap().join("data");
        fs_err::create_dir_all(&data).unwrap();
        Self {
            data,
            program: programs().join("kiln"),
            _temp: None,
        }
    }

    pub fn link_toolboxes(&self) {
        fs_err::os::unix::fs::symlink(shared_toolboxes(), self.data.join("toolboxes")).unwrap();
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// A command that knows only this data directory, and nothing of the user that runs the tests.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            let ours = ["KILN_", "AWS_", "XDG_", "COLUMNS", "CLICOLOR", "NO_COLOR"];
            if ours.iter().any(|start| name_text.starts_with(start)) {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .env("KILN_DATA_DIR", &self.data)
            .env("HOME", &self.data)
            // Tests of the default remove this.
            .env("KILN_ISOLATION", "namespace")
            // A job that hangs ends with a cause before the limit of the whole suite.
            .env("KILN__WATCH__SILENCE", "10m")
            // The recipes of tests are small, and other programs fill the disk too.
            .env("KILN__CAPACITY__FIRST_DISK", "1GiB")
            .env("KILN__CAPACITY__LONGEST_WAIT", "5m")
            // An agent on a busy host says nothing for long, above all while its sandbox starts.
            .env("KILN__WATCH__HEARTBEAT", "5m")
            .stdin(Stdio::null());
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        run(self.command(args))
    }

    /// Starts a command whose output is read while it runs.
    pub fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Started {
        Started::new(self.command(args))
    }

    /// The jobs of the records, in the order in which they began. The database is only read: a kiln command would put
    /// right what a killed one left.
    pub fn jobs(&self) -> Vec<Value> {
        let describe = |stored: StoredRun| {
            let (job, run) = (stored.job, stored.run);
            let state = match run.state {
                State::Success => json!("success"),
                State::Failed(failure) => json!({"error": failure}),
                _ => json!("running"),
            };
            json!({
                "id": job.id, "image": run.image, "name": job.image_root_archive_name, "arch": job.arch,
                "how": run.plan.how, "driver": run.plan.driver, "attempt": run.attempt, "execs": run.execs, "state": state,
                "warnings": run.warnings.list,
            })
        };
        let all = Query {
            limit: 1000,
            ..Query::default()
        };
        self.read_records(async |store| {
            let mut jobs = Vec::new();
            for stored in store.page_jobs(&all).await.unwrap() {
                jobs.extend(store.get_run(stored.record.id).await.unwrap());
            }
            jobs.sort_by_key(|stored| stored.job.created);
            jobs.into_iter().map(describe).collect()
        })
        .unwrap_or_default()
    }

    /// Reads the records, if there are any.
    fn read_records<T: Send>(&self, read: impl AsyncFnOnce(SqliteStore) -> T + Send) -> Option<T> {
        let file = self.data.join("records.sqlite");
        if !file.exists() {
            return None;
        }
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime
                .unwrap()
                .block_on(async { read(SqliteStore::open(&file).await.unwrap()).await })
        };
        // The caller may be in a runtime of its own.
        Some(std::thread::scope(|scope| scope.spawn(work).join().unwrap()))
    }

    /// The failure code in the only job's record.
    #[track_caller]
    pub fn failure_code(&self) -> String {
        let jobs = self.jobs();
        assert_eq!(jobs.len(), 1, "{jobs:#?}");
        jobs[0]["state"]["error"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// What a job's users see of it.
    #[track_caller]
    pub fn status(&self, job: &Value) -> Value {
        let mut status = self.command(["jobs", "status", job["id"].as_str().unwrap(), "--format", "json"]);
        status.env("KILN_SERVER", "local");
        serde_json::from_str(&run(status).ok().stdout).unwrap()
    }

    /// The whole log of a job.
    pub fn log(&self, job: &Value) -> String {
        let id: JobId = job["id"].as_str().unwrap().parse().unwrap();
        let read = self.read_records(async |store| {
            let mut rows = Vec::new();
            loop {
                let after = rows.last().map(|row: &LogRow| row.seq);
                let page = store.log_page(id, after, u32::MAX).await.unwrap();
                rows.extend(page.rows);
                if !page.more {
                    return rows;
                }
            }
        });
        let lines: Vec<_> = read.unwrap().into_iter().map(|row| row.line.text).collect();
        lines.join("\n")
    }

    /// Processes that were started for this data directory, whatever their names: found by command line, by
    /// environment (process 1 of a sandbox has its supervisor's), by control group, and with everything in the same
    /// process namespace as one of these.
    pub fn processes(&self) -> BTreeMap<i32, String> {
        let mut marks = vec![self.data.display().to_string()];
        marks.extend(self.jobs().iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        let marked = |text: &[u8]| marks.iter().any(|mark| contains(text, mark.as_bytes()));
        let us = std::process::id().to_string();
        let namespace_of = |pid: &str| fs_err::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let host = namespace_of(&us);
        let mut all = Vec::new();
        for entry in fs_err::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry
                .file_name()
                .into_string()
                .ok()
                .filter(|name| name.parse::<i32>().is_ok())
            else {
                continue;
            };
            if pid != us {
                let read = |file: &str| fs_err::read(entry.path().join(file)).unwrap_or_default();
                let ours = ["cmdline", "environ", "cgroup"].iter().any(|file| marked(&read(file)));
                let namespace = namespace_of(&pid).filter(|namespace| Some(namespace) != host.as_ref());
                let name = String::from_utf8_lossy(&read("comm")).trim().to_owned();
                all.push((pid.parse().unwrap(), name, ours, namespace));
            }
        }
        let ours = all.iter().filter(|(_, _, ours, _)| *ours);
        let inside: Vec<_> = ours.filter_map(|(_, _, _, namespace)| namespace.clone()).collect();
        all.into_iter()
            .filter(|(_, _, ours, namespace)| *ours || namespace.as_ref().is_some_and(|one| inside.contains(one)))
            .map(|(pid, name, ..)| (pid, name))
            .collect()
    }

    /// Waits for a file in the only sandbox's new root, made by a script of the recipe; returns its path outside.
    #[track_caller]
    pub fn wait_for_file(&self, build: &mut Started, path: &str) -> PathBuf {
        wait_for_file(&self.data, build, path)
    }

    /// Everything that is left behind and must not be.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left: Vec<String> = self
            .processes()
            .into_iter()
            .map(|(pid, name)| format!("process {pid} {name}"))
            .collect();
        let mounts = fs_err::read_to_string("/proc/self/mounts").unwrap();
        // A test may itself mount the directory that contains the data directory.
        let ours = |line: &&str| line.contains(&format!("{}/", self.data.display()));
        left.extend(mounts.lines().filter(ours).map(|line| format!("mount {line}")));
        for dir in ["sandboxes", "s3/incoming"] {
            if let Ok(entries) = fs_err::read_dir(self.data.join(dir)) {
                left.extend(
                    entries
                        .flatten()
                        .map(|entry| format!("file {}", entry.path().display())),
                );
            }
        }
        for job in self.jobs() {
            let id = job["id"].as_str().unwrap();
            left.extend(
                cgroups_of(id)
                    .into_iter()
                    .map(|dir| format!("control group {}", dir.display())),
            );
            if job["state"] == "running" {
                left.push(format!("job {id} that says it runs"));
            }
        }
        let binfmt = host_binfmt();
        if binfmt != *BINFMT_BEFORE {
            left.push(format!("the host's binfmt_misc is now {binfmt:?}"));
        }
        left
    }

    /// Waits until the server has cleared away the sandboxes that have ended.
    #[track_caller]
    pub fn wait_until_cleared(&self) {
        eventually(|| {
            let entries = fs_err::read_dir(self.data.join("sandboxes"))
                .into_iter()
                .flatten()
                .flatten();
            let ended = |entry: &fs_err::DirEntry| entry.path().extension().is_some_and(|end| end == "report");
            let left: Vec<_> = entries.filter(ended).map(|entry| entry.path()).collect();
            left.is_empty()
                .then_some(())
                .ok_or(format!("not cleared away: {left:#?}"))
        });
    }

    /// Nothing is left behind. A process that the kernel has killed goes once its reads and writes are done, which may take
    /// a moment on a busy disk.
    #[track_caller]
    pub fn assert_clean(&self) {
        eventually(|| {
            let left = self.leftovers();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("left behind: {left:#?}"))
            }
        });
    }

    /// Like [`Kiln::assert_clean`], and S3 is empty: no object, no unfinished upload.
    #[track_caller]
    pub fn assert_nothing_built(&self) {
        self.assert_clean();
        let left = self.stored();
        assert!(left.is_empty(), "left in S3: {left:#?}");
    }

    /// The same after a command was interrupted: on a busy host it leaves the rest to the next one, and says so.
    #[track_caller]
    pub fn assert_interrupted(&self, ran: &Ran) {
        assert_eq!(ran.code, Some(130), "{}", ran.last());
        if ran
            .stderr
            .contains("is not cleared away yet; the next kiln command goes on with it")
        {
            self.run(["jobs", "list"]).ok();
        }
        self.assert_nothing_built();
    }

    /// Rows of the embedded store's tables, read from its database, and its files.
    pub fn stored(&self) -> Vec<String> {
        let database = self.data.join("s3/names.sqlite");
        if !database.exists() {
            return Vec::new();
        }
        let script = "import sqlite3, sys\n\
            base = sqlite3.connect(sys.argv[1])\n\
            for bucket, key in base.execute('select bucket, key from object'): print('object', bucket, key.decode())\n\
            for bucket, key in base.execute('select bucket, key from upload where completed_us is null'): \
            print('upload', bucket, key.decode())\n\
            for row in base.execute('select upload, number from part'): print('part', *row)\n";
        let output = Command::new("python3")
            .args(["-c", script])
            .arg(database)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut stored: Vec<_> = String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect();
        // A job's own recipe and log are there as long as its record, and its layer and packages are there for later jobs.
        let jobs = self.jobs();
        let of_a_job = |row: &String| {
            let id = row
                .strip_prefix("object ims recipes/")
                .or(row.strip_prefix("object ims logs/"))
                .and_then(|key| key.split('/').next());
            jobs.iter().any(|job| job["id"].as_str() == id)
        };
        let all = stored.len();
        let shared = ["object ims layers/", "object ims packages/"];
        stored.retain(|row| !of_a_job(row) && !shared.iter().any(|prefix| row.starts_with(prefix)));
        if all == 0 {
            let bodies = files_below(&self.data.join("s3/bodies"));
            stored.extend(bodies.iter().map(|path| format!("body {}", path.display())));
        }
        stored
    }

    /// The same kiln with another copy of the program.
    #[must_use]
    pub fn with_program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs_err::read_dir(dir) else {
        return Vec::new();
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] })
        .collect()
}

/// Control groups of a job, of either version.
pub fn cgroups_of(job: &str) -> Vec<PathBuf> {
    let mount = Path::new("/sys/fs/cgroup");
    let mut parents: Vec<_> = ["pids", "memory", "cpu", "freezer"]
        .iter()
        .map(|controller| mount.join(controller).join("kiln"))
        .collect();
    let own = fs_err::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default()
        .to_owned();
    parents.push(mount.join(own));
    let groups = parents
        .into_iter()
        .flat_map(|parent| fs_err::read_dir(parent).into_iter().flatten());
    let groups = groups.map_while(Result::ok).map(|entry| entry.path());
    groups.filter(|group| group.to_string_lossy().contains(job)).collect()
}

/// Runs a command that must succeed.
#[track_caller]
pub fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs a command to its end.
pub fn run(mut command: Command) -> Ran {
    fn read(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            String::from_utf8_lossy(&all).into_owned()
        })
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (stdout, stderr) = (read(child.stdout.take().unwrap()), read(child.stderr.take().unwrap()));
    let (status, cpu) = end_of(&mut child);
    Ran {
        code: status.code(),
        cpu,
        stdout: all_of(stdout),
        stderr: all_of(stderr),
    }
}

/// Waits for the end of a command, as long as a build may take. Returns the time that it had a CPU, too.
#[track_caller]
fn end_of(child: &mut Child) -> (ExitStatus, Duration) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let has_ended = || waitid(Id::Pid(pid), look) != Ok(WaitStatus::StillAlive);
    if wait::try_within(wait::FOR_A_BUILD, has_ended).is_err() {
        let _ = child.kill();
        panic!("the command did not end");
    }
    // What the kernel still knows of it, unless somebody has looked before whether it runs.
    let cpu = cpu_time(pid);
    (child.wait().unwrap(), cpu)
}

/// The time that the threads of a process have had a CPU: a busy host changes it little.
fn cpu_time(pid: Pid) -> Duration {
    let text = fs_err::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    // The kernel shows hundredths of a second wherever Kiln runs.
    Duration::from_millis(ticks * 10)
}

/// All output of a command that has ended.
#[track_caller]
fn all_of(reader: JoinHandle<String>) -> String {
    eventually(|| {
        let is_held = || "a process that the command left behind holds its output";
        reader.is_finished().then_some(()).ok_or_else(is_held)
    });
    reader.join().unwrap()
}

/// Runs a tool of the host. Returns its standard output.
#[track_caller]
pub fn tool(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .output()
        .unwrap_or_else(|error| panic!("cannot run {program} ({error}): run `.ci/install-packages test`"));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A running command.
#[derive(Debug)]
pub struct Started {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<String>>,
}

impl Started {
    pub fn new(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let streams: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        let readers = streams
            .into_iter()
            .map(|stream| {
                let lines = Arc::clone(&lines);
                std::thread::spawn(move || {
                    let mut all = String::new();
                    for line in BufReader::new(stream).lines().map_while(Result::ok) {
                        all.push_str(&line);
                        all.push('\n');
                        lines.lock().unwrap().push(line);
                    }
                    all
                })
            })
            .collect();
        Self { child, lines, readers }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    /// Waits for a line of output that contains `text`, and returns it.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) -> String {
        self.wait_for_line(text, |line| line.contains(text))
    }

    #[track_caller]
    fn wait_for_line(&mut self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        eventually(|| {
            let find = |lines: &Vec<String>| lines.iter().find(|line| is_it(line)).cloned();
            let found = find(&self.lines.lock().unwrap());
            if found.is_none() {
                self.assert_runs();
            }
            found.ok_or_else(|| format!("`{what}` did not come: {}", self.said()))
        })
    }

    /// The URL that a server says it listens at. Lines of its log may contain the word, too.
    #[track_caller]
    pub fn server_url(&mut self) -> String {
        let line = self.wait_for_line("server", |line| line.starts_with("server  "));
        line.split_whitespace().nth(1).unwrap().to_owned()
    }

    /// Waits until a server takes requests. Other lines may contain the word, as in "already in use".
    #[track_caller]
    pub fn wait_until_ready(&mut self) {
        self.wait_for_line("ready", |line| line == "ready");
    }

    /// Whether a line with `text` was printed.
    pub fn has_said(&self, text: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.contains(text))
    }

    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    #[track_caller]
    pub fn assert_runs(&mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            panic!("it ended ({status}) too early: {}", self.said());
        }
    }

    /// The last lines printed so far.
    fn said(&self) -> String {
        let lines = self.lines.lock().unwrap();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ran {
        let (status, cpu) = end_of(&mut self.child);
        let mut outputs = std::mem::take(&mut self.readers).into_iter().map(all_of);
        Ran {
            code: status.code(),
            stdout: outputs.next().unwrap(),
            stderr: outputs.next().unwrap(),
            cpu,
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // A failing test must not leave it running.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// See [`Kiln::wait_for_file`].
#[track_caller]
pub fn wait_for_file(data: &Path, build: &mut Started, path: &str) -> PathBuf {
    let find = || {
        let mut sandboxes = fs_err::read_dir(data.join("sandboxes")).ok()?.flatten();
        sandboxes.find_map(|sandbox| {
            let below = |dir: PathBuf| Some(dir.join("scratch/root").join(path)).filter(|file| file.exists());
            // Disk space of a size is mounted for the supervisor only.
            let lock = fs_err::read(sandbox.path().with_extension("lock")).ok();
            let note: Option<Value> = lock.and_then(|lock| serde_json::from_slice(&lock).ok());
            let private = note.and_then(|note| {
                let root = PathBuf::from(format!("/proc/{}/root", note["pid"].as_i64()?));
                below(root.join(sandbox.path().strip_prefix("/").ok()?))
            });
            below(sandbox.path()).or(private)
        })
    };
    eventually(|| {
        let found = find();
        if found.is_none() {
            build.assert_runs();
        }
        found.ok_or_else(|| format!("{path} was not made: {}", build.said()))
    })
}

/// A copy of one of the repository's recipes, for changes.
#[derive(Debug)]
pub struct Recipe {
    dir: TempDir,
}

impl Recipe {
    pub fn copy_of(name: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("recipe-").tempdir().unwrap();
        let from = source_dir().join("recipes").join(name);
        tool(
            "cp",
            &["-a", &format!("{}/.", from.display()), dir.path().to_str().unwrap()],
        );
        Self { dir }
    }

    /// The RPM recipe with this `config.sh`, run by busybox's shell in the new root.
    pub fn with_script(script: &str) -> Self {
        Self::copy_of("rpm-minimal").with("config.sh", &format!("#!/bin/sh\n{script}\n"))
    }

    /// Adds or replaces a file.
    #[must_use]
    pub fn with(self, name: &str, text: &str) -> Self {
        let path = self.dir.path().join(name);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(&path, text).unwrap();
        let mode = if path.extension() == Some(OsStr::new("sh")) {
            0o755
        } else {
            0o644
        };
        fs_err::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        self
    }

    /// Replaces a piece of `config.xml`.
    #[must_use]
    pub fn with_config(self, from: &str, to: &str) -> Self {
        let text = fs_err::read_to_string(self.dir.path().join("config.xml")).unwrap();
        assert!(text.contains(from), "config.xml has no {from}");
        self.with("config.xml", &text.replace(from, to))
    }

    /// Replaces a piece of `config.xml`, if it is there.
    pub fn fill_in(&self, from: &str, to: &str) {
        let path = self.dir.path().join("config.xml");
        let text = fs_err::read_to_string(&path).unwrap();
        fs_err::write(path, text.replace(from, to)).unwrap();
    }

    #[must_use]
    pub fn without(self, name: &str) -> Self {
        fs_err::remove_file(self.dir.path().join(name)).unwrap();
        self
    }

    pub fn path(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }
}

/// The Python programs and libraries that `tests/NAME/requirements.txt` lists, installed beside the build once.
pub fn python_tools(name: &str) -> PathBuf {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let requirements = source_dir().join("tests").join(name).join("requirements.txt");
    let text = fs_err::read_to_string(&requirements).unwrap();
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&text));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", &digest[..16]));
    let complete = dir.join("complete");
    let _alone = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if complete.exists() {
        return dir;
    }
    let _ = fs_err::remove_dir_all(&dir);
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "cannot install {name} (`.ci/install-packages test` installs what that needs):\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(&dir));
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--require-hashes",
        "--no-deps",
    ];
    run(Command::new(dir.join("bin/python"))
        .args(pip)
        .arg("--requirement")
        .arg(requirements));
    fs_err::write(complete, "").unwrap();
    dir
}
