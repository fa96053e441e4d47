//! `kiln shell` around ssh: the end is ssh's, signals and stops reach both, and no file is left behind.

use std::{
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use crate::support::{
    Kiln, eventually,
    fake_server::{Answer, FakeServer},
};

const JOB: &str = "11111111-2222-4333-8444-555555555555";

/// A job whose shell is open, and a directory with a stand-in for ssh.
struct Login {
    kiln: Kiln,
    server: FakeServer,
    dir: tempfile::TempDir,
}

impl Login {
    fn new(ssh: &str) -> Self {
        let server = FakeServer::start(|asked| {
            if asked.target.contains("/kiln/v1/jobs/") {
                let shell = json!({
                    "status": "ready", "host": "build.example.org", "port": 22001,
                    "host_key": "ssh-ed25519 AAAAhost", "public_keys": "",
                });
                return Answer::json(200, &json!({ "id": JOB, "state": "running", "shell": shell }));
            }
            Answer::json(200, &json!({ "id": JOB, "image_root_archive_name": "n" }))
        });
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("bin/ssh");
        fs_err::create_dir_all(dir.path().join("bin")).unwrap();
        fs_err::create_dir_all(dir.path().join("tmp")).unwrap();
        fs_err::write(&program, format!("#!/bin/sh\n{ssh}\n")).unwrap();
        fs_err::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self {
            kiln: Kiln::new(),
            server,
            dir,
        }
    }

    fn start(&self) -> Child {
        let mut command: Command = self.kiln.command(["shell", JOB, "--", "true"]);
        let path = std::env::var("PATH").unwrap();
        command
            .env("PATH", format!("{}:{path}", self.dir.path().join("bin").display()))
            .env("TMPDIR", self.dir.path().join("tmp"))
            .env("OUT", self.dir.path().join("out"))
            .env("KILN_SERVER", self.server.url())
            .stdin(Stdio::null());
        command.spawn().unwrap()
    }

    /// How `kiln` ends. The directory for temporary files is empty then.
    fn end(&self) -> ExitStatus {
        let status = self.start().wait().unwrap();
        self.left_nothing();
        status
    }

    fn left_nothing(&self) {
        let left: Vec<_> = fs_err::read_dir(self.dir.path().join("tmp"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }

    fn said(&self) -> String {
        fs_err::read_to_string(self.dir.path().join("out")).unwrap_or_default()
    }

    fn wait_for(&self, word: &str) {
        eventually(|| {
            let said = self.said();
            if said.contains(word) {
                Ok(())
            } else {
                Err(format!("no {word}: {said}"))
            }
        });
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// The state of a process: `S` sleeping, `T` stopped, and so on.
fn state(process: Pid) -> String {
    let status = fs_err::read_to_string(Path::new("/proc").join(process.to_string()).join("status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("State:")).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn the_host_key_is_there_while_ssh_runs() {
    let login =
        Login::new(r#"for option; do case $option in UserKnownHostsFile=*) cat "${option#*=}" >"$OUT";; esac; done"#);
    assert_eq!(login.end().code(), Some(0));
    assert_eq!(
        login.said(),
        "[build.example.org]:22001 ssh-ed25519 AAAAhost\nbuild.example.org ssh-ed25519 AAAAhost\n"
    );
}

#[test]
fn the_end_is_that_of_ssh() {
    for code in [0, 9, 255] {
        assert_eq!(Login::new(&format!("exit {code}")).end().code(), Some(code));
    }
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let login = Login::new(&format!("kill -{} $$", signal as i32));
        assert_eq!(login.end().signal(), Some(signal as i32));
    }
}

#[test]
fn signals_reach_ssh() {
    let login = Login::new("trap 'echo term >>$OUT; kill $!; exit 7' TERM; sleep 60 & echo up >>$OUT; wait");
    let mut child = login.start();
    login.wait_for("up");
    kill(pid(&child), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(7));
    login.wait_for("term");
    login.left_nothing();
}

#[test]
fn a_stopped_ssh_stops_kiln_so_that_the_users_shell_notices() {
    let login = Login::new("echo $$ >>$OUT; kill -STOP $$; echo on >>$OUT; exit 4");
    let mut child = login.start();
    eventually(|| state(pid(&child)) == "T");
    let ssh: i32 = login.said().trim().parse().unwrap();
    assert_eq!(state(Pid::from_raw(ssh)), "T");
    kill(Pid::from_raw(ssh), Signal::SIGCONT).unwrap();
    kill(pid(&child), Signal::SIGCONT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4));
    login.left_nothing();
}
