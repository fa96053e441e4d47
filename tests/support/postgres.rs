//! A real PostgreSQL server for one test program, with its own directory and port; it ends with the program.

#![allow(dead_code, reason = "every test program uses another part")]

use std::{
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid, User},
};

use crate::support::{eventually, ports::free_port};

/// The password of the server's only user; a test searches for it where it must not appear.
pub const PASSWORD: &str = "sesame-opens";

/// Runs the server until its standard input ends, which happens when the test program ends for any reason. Its
/// directory is removed with it.
const KEEPER: &str = r#"
"$1/postgres" -D "$2/data" -k "" -h 127.0.0.1 -p "$3" -c recovery_init_sync_method=syncfs >>"$2/log" 2>&1 &
server=$!
cat >/dev/null
kill -QUIT $server 2>/dev/null
wait $server
rm -rf "$2"
"#;

/// A running server.
pub struct Server {
    programs: PathBuf,
    /// The user that runs it: PostgreSQL refuses to run as root.
    user: Option<User>,
    dir: PathBuf,
    port: u16,
    keeper: Option<(Child, ChildStdin)>,
    databases: AtomicU32,
}

impl Server {
    /// The server that all tests of this program share.
    pub fn shared() -> &'static Self {
        static SERVER: LazyLock<Server> = LazyLock::new(Server::start);
        &SERVER
    }

    /// Starts a new server.
    pub fn start() -> Self {
        let programs = programs();
        let user = Uid::effective().is_root().then(|| {
            let named = |name| User::from_name(name).unwrap();
            named("postgres")
                .or_else(|| named("nobody"))
                .expect("a user that is not root")
        });
        let dir = tempfile::Builder::new()
            .prefix("kiln-postgres-")
            .tempdir()
            .unwrap()
            .keep();
        if let Some(user) = &user {
            chown(&dir, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
        }
        let password = dir.join("password");
        fs_err::write(&password, PASSWORD).unwrap();
        fs_err::set_permissions(&password, PermissionsExt::from_mode(0o644)).unwrap();
        let mut server = Self {
            programs,
            user,
            dir,
            port: free_port(),
            keeper: None,
            databases: AtomicU32::new(0),
        };
        let made = server
            .command(&server.programs.join("initdb"))
            .args([
                "--username=kiln",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--no-sync",
            ])
            // Not byte order: the tables have to ask for that explicitly.
            .args(["--locale-provider=icu", "--icu-locale=en-US", "--locale=C"])
            .arg("--pwfile")
            .arg(&password)
            .arg(server.dir.join("data"))
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        server.run();
        server
    }

    /// The URL of a database, over TCP and with the password.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://kiln:{PASSWORD}@127.0.0.1:{}/{database}", self.port)
    }

    /// The URL of a new, empty database.
    pub fn new_database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let done = self
            .client("psql")
            .args(["--quiet", "--command", &format!("CREATE DATABASE {name}")])
            .output();
        let done = done.unwrap();
        assert!(
            done.status.success(),
            "CREATE DATABASE: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        self.url(&name)
    }

    /// Kills every process of the server at once, and starts it again.
    pub fn crash(&mut self) {
        self.stop();
        self.run();
    }

    /// Kills every process of the server at once.
    pub fn stop(&mut self) {
        let (mut keeper, input) = self.keeper.take().unwrap();
        // First, since it would clean up.
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        drop(input);
        eventually(|| {
            let processes = self.processes();
            for pid in &processes {
                let _ = kill(*pid, Signal::SIGKILL);
            }
            let are_left = || format!("processes of PostgreSQL are left: {processes:?}");
            processes.is_empty().then_some(()).ok_or_else(are_left)
        });
        // The file names a process that may still be a zombie, which PostgreSQL would take for a running one.
        fs_err::remove_file(self.dir.join("data/postmaster.pid")).unwrap();
    }

    /// Starts it, and waits until it answers.
    pub fn run(&mut self) {
        let mut keeper = self
            .command(Path::new("sh"))
            .args(["-c", KEEPER, "postgres-keeper"])
            .args([&self.programs, &self.dir])
            .arg(self.port.to_string())
            // An interrupt from the terminal does not reach it: it must end after the tests.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = keeper.stdin.take().unwrap();
        self.keeper = Some((keeper, input));
        eventually(|| {
            let asked = self.client("psql").args(["--command", "SELECT 1"]).output().unwrap();
            asked.status.success().then_some(()).ok_or_else(|| {
                let log = fs_err::read_to_string(self.dir.join("log")).unwrap();
                let said = String::from_utf8_lossy(&asked.stderr);
                format!("PostgreSQL does not answer: {said}{log}")
            })
        });
    }

    /// The processes that work in the server's directory: all of the server's, and no others.
    fn processes(&self) -> Vec<Pid> {
        let data = self.dir.join("data");
        let entries = fs_err::read_dir("/proc").unwrap().map(|entry| entry.unwrap());
        let here = entries.filter(|entry| fs_err::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == data));
        let pids = here.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.map(Pid::from_raw).collect()
    }

    fn client(&self, program: &str) -> Command {
        let mut command = self.command(&self.programs.join(program));
        command.args([
            "--no-psqlrc",
            "--host=127.0.0.1",
            "--username=kiln",
            "--dbname=postgres",
        ]);
        command.arg(format!("--port={}", self.port)).env("PGPASSWORD", PASSWORD);
        command
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.dir).env("LC_ALL", "C");
        if let Some(user) = &self.user {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((mut keeper, input)) = self.keeper.take() {
            drop(input);
            let _ = keeper.wait();
        }
    }
}

/// Debian's directory of the server's programs, which is not in the search path.
fn programs() -> PathBuf {
    let mut versions: Vec<PathBuf> = fs_err::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.map(|entry| entry.unwrap().path().join("bin")).collect())
        .unwrap_or_default();
    versions.retain(|bin| bin.join("initdb").exists() && bin.join("postgres").exists());
    versions.sort();
    versions
        .pop()
        .expect("PostgreSQL is not installed: run `.ci/install-packages test`")
}
