//! A real sshd on loopback that accepts one key.

#![allow(dead_code, reason = "every test program uses another part")]

use std::{
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use super::eventually;

/// A running sshd, with the keys of both sides.
pub struct Sshd {
    dir: TempDir,
    pub port: u16,
    child: Child,
}

impl Sshd {
    /// Why there is no sshd here, if so.
    pub fn lack() -> Option<String> {
        (!Path::new("/usr/sbin/sshd").exists())
            .then(|| "there is no sshd; `.ci/install-packages test` installs it".to_owned())
    }

    /// Starts it; programs in its directory `bin` take precedence over the system's.
    pub fn start() -> Self {
        Self::start_by(Command::new("/usr/sbin/sshd"))
    }

    /// Starts it where this process sees its files.
    pub fn start_beside(pid: u32) -> Self {
        let mut command = Command::new("nsenter");
        command.args([&format!("--mount=/proc/{pid}/ns/mnt"), "/usr/sbin/sshd"]);
        Self::start_by(command)
    }

    fn start_by(mut command: Command) -> Self {
        let dir = tempfile::Builder::new().prefix("kiln-sshd-").tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        for key in ["host", "other", "identity"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)])
                .output()
                .unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        fs_err::copy(at("identity.pub"), at("authorized_keys")).unwrap();
        fs_err::create_dir_all(at("bin")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
             StrictModes no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nSetEnv PATH={}:/usr/bin:/bin\n",
            at("host"),
            at("authorized_keys"),
            at("bin"),
        );
        fs_err::write(at("sshd_config"), config).unwrap();
        if nix::unistd::Uid::effective().is_root() {
            // Debian makes it when the service starts, which it does not here.
            fs_err::create_dir_all("/run/sshd").unwrap();
        }
        let log = fs_err::File::create(at("log")).unwrap();
        let child = command
            .args(["-D", "-e", "-f", &at("sshd_config")])
            .stdin(Stdio::null())
            .stderr(Stdio::from(log.into_file()))
            .spawn()
            .unwrap();
        let sshd = Self { dir, port, child };
        eventually(|| {
            let does_not = |_| format!("sshd does not listen: {}", sshd.read("log"));
            std::net::TcpStream::connect(("127.0.0.1", port)).map_err(does_not)
        });
        sshd
    }

    /// The path of a file in its directory.
    pub fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The content of a file in its directory.
    pub fn read(&self, name: &str) -> String {
        fs_err::read_to_string(self.at(name)).unwrap()
    }

    /// Writes the files `ssh_config`, in which the server is called `here`, and `known_hosts`, in which its key is
    /// `known`.
    pub fn configure_client(&self, known: &str) {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "Host here\n  HostName 127.0.0.1\n  Port {}\nHost nowhere\n  HostName 127.0.0.1\n  Port {silent}\n\
             Host *\n  BatchMode yes\n  IdentitiesOnly yes\n",
            self.port
        );
        fs_err::write(self.at("ssh_config"), config).unwrap();
        let line = match known {
            "" => String::new(),
            key => format!("[127.0.0.1]:{} {}", self.port, self.read(&format!("{key}.pub"))),
        };
        fs_err::write(self.at("known_hosts"), line).unwrap();
    }

    /// The user that may log in.
    pub fn user() -> String {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective());
        user.unwrap().unwrap().name
    }

    /// Cuts all open connections, like a host that goes down.
    pub fn cut_connections(&self) {
        // With OpenSSH 10, another process has the connection than the one that the server started.
        let mut parents = vec![self.child.id().to_string()];
        while let Some(parent) = parents.pop() {
            let children = fs_err::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
            for child in children.unwrap_or_default().split_whitespace() {
                parents.push(child.to_owned());
            }
            if parent != self.child.id().to_string() {
                let pid = nix::unistd::Pid::from_raw(parent.parse().unwrap());
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        }
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
