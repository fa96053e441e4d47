//! OpenSSH's server for one job's shell: its files, and one process per connection. Writes files of the sandbox, and
//! starts processes.
//!
//! No process listens. sshd is started on an existing connection, as inetd does, so the sandbox has no port, and the
//! only way in is a line to the server.

use std::{
    ffi::OsString,
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    process::Stdio,
};

use kiln_records::{Code, Failure, ShellWish};
use nix::{
    fcntl::{OFlag, open},
    sys::stat::Mode,
};
use tokio::process::{Child, Command};

use crate::{
    proxy,
    twins::{Root, stand_in},
};

/// The directory of the shell's files: in the sandbox, and in no root.
const DIR: &str = "/run/kiln-shell";

const SSHD: &str = "/usr/sbin/sshd";

/// The most bytes of a list of users.
const LARGEST_PASSWD: u64 = 1 << 20;

/// A configured sshd.
#[derive(Debug)]
pub struct Sshd {
    config: PathBuf,
    /// The root whose twins users get when they log in.
    twins: Option<PathBuf>,
    host_key: String,
}

impl Sshd {
    /// Makes keys and configuration.
    ///
    /// # Errors
    ///
    /// `bad_public_key` when the job's key allows no login, and failures to write the sandbox's files.
    pub async fn prepare(
        wish: &ShellWish,
        root: &Path,
        environment: &[(String, String)],
        has_twins: bool,
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::io("cannot prepare the shell", &error);
        let dir = Path::new(DIR);
        fs_err::create_dir_all(dir).map_err(failed)?;
        fs_err::create_dir_all("/run/sshd").map_err(failed)?;
        let keys = dir.join("authorized_keys");
        private(&keys, wish.keys.as_bytes()).map_err(failed)?;
        check_keys(&keys).await?;
        let host_key = host_key(dir).await?;
        let config = dir.join("sshd_config");
        private(&config, configuration(dir, wish, root, environment).as_bytes()).map_err(failed)?;
        if wish.jail {
            use_shell_of(root).map_err(failed)?;
        }
        Ok(Self {
            config,
            twins: has_twins.then(|| root.to_owned()),
            host_key,
        })
    }

    /// The public half of the host key: type and key.
    pub fn host_key(&self) -> &str {
        &self.host_key
    }

    /// The command line that serves one connection on its standard input and output.
    pub fn command_line(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = Vec::new();
        if let Some(root) = &self.twins {
            line.extend([stand_in::ENTER_PROGRAM.into(), stand_in::ENTER.into(), root.into()]);
        }
        line.extend([SSHD, "-i", "-e", "-f"].map(OsString::from));
        line.push(self.config.clone().into());
        line
    }

    /// Serves one connection, to its end.
    pub fn serve(&self, connection: OwnedFd) -> io::Result<Child> {
        let line = self.command_line();
        let output = connection.try_clone()?;
        Command::new(&line[0])
            .args(&line[1..])
            .stdin(Stdio::from(connection))
            .stdout(Stdio::from(output))
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    }
}

/// A key made for one playbook, which logs in from the sandbox itself.
#[derive(Debug)]
pub struct LocalLogin {
    dir: PathBuf,
}

impl LocalLogin {
    /// Makes the key.
    pub async fn make() -> Result<Self, Failure> {
        let dir = Path::new(DIR).join("login");
        let made = if dir.exists() {
            fs_err::remove_dir_all(&dir)
        } else {
            Ok(())
        };
        made.and_then(|()| fs_err::create_dir_all(&dir))
            .map_err(|error| Failure::io("cannot prepare a login", &error))?;
        make_key(&dir.join("id")).await?;
        Ok(Self { dir })
    }

    /// Its public half, in the form of `authorized_keys`.
    pub fn public_key(&self) -> io::Result<String> {
        fs_err::read_to_string(self.dir.join("id.pub"))
    }

    /// An Ansible inventory whose only host is the image.
    pub fn inventory(&self, sshd: &Sshd) -> io::Result<PathBuf> {
        let known = self.dir.join("known_hosts");
        fs_err::write(&known, format!("image {}\n", sshd.host_key()))?;
        let line: Vec<String> = sshd
            .command_line()
            .iter()
            .map(|word| match word.to_str() {
                // A playbook's ssh runs another program.
                Some(stand_in::ENTER_PROGRAM) => std::env::current_exe().unwrap_or_default().display().to_string(),
                _ => word.to_string_lossy().into_owned(),
            })
            .collect();
        let options = format!(
            "-o UserKnownHostsFile={} -o StrictHostKeyChecking=yes -o ProxyCommand=\\\"{}\\\"",
            known.display(),
            line.join(" ")
        );
        let inventory = self.dir.join("inventory");
        let key = self.dir.join("id");
        let text = format!(
            "image ansible_user=root ansible_ssh_private_key_file={} ansible_ssh_common_args=\"{options}\"\n",
            key.display()
        );
        fs_err::write(&inventory, text)?;
        Ok(inventory)
    }
}

/// Writes a text to every terminal in use.
pub fn announce(text: &str) {
    let terminals = fs_err::read_dir("/dev/pts").into_iter().flatten().flatten();
    for terminal in terminals.filter(|entry| entry.file_name() != "ptmx") {
        tell(&terminal.path(), text);
    }
}

/// Writes a text to a terminal, if it is there.
pub fn tell(terminal: &Path, text: &str) {
    // A terminal that is not read must not block the agent.
    let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    if let Ok(terminal) = open(terminal, flags, Mode::empty()) {
        let _ = write!(std::fs::File::from(terminal), "\r\n{}\r\n", text.replace('\n', "\r\n"));
    }
}

fn configuration(dir: &Path, wish: &ShellWish, root: &Path, environment: &[(String, String)]) -> String {
    let dir = dir.display();
    let jail = if wish.jail {
        format!("ChrootDirectory {}\n", root.display())
    } else {
        String::new()
    };
    let environment: Vec<_> = environment
        .iter()
        .cloned()
        .chain(proxy::variables())
        .map(|(name, value)| format!("\"{name}={value}\""))
        .collect();
    format!(
        "HostKey {dir}/host_key\nAuthorizedKeysFile {dir}/authorized_keys\nAllowUsers root\n\
         PermitRootLogin prohibit-password\nAuthenticationMethods publickey\nPubkeyAuthentication yes\n\
         PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\n\
         DisableForwarding yes\nPermitUserRC no\nPermitUserEnvironment no\nPermitTTY yes\n\
         PrintMotd yes\nPrintLastLog no\nUseDNS no\nPidFile none\nLogLevel VERBOSE\n\
         LoginGraceTime 30\nMaxAuthTries 4\n\
         AcceptEnv LANG LC_*\nSubsystem sftp internal-sftp\nSetEnv {}\n{jail}",
        environment.join(" ")
    )
}

/// Checks that at least one key allows a login.
async fn check_keys(keys: &Path) -> Result<(), Failure> {
    let read = Command::new("ssh-keygen").arg("-lf").arg(keys).output().await;
    let read = read.map_err(|error| Failure::io("cannot run ssh-keygen", &error))?;
    if read.status.success() {
        return Ok(());
    }
    Err(Failure::new(
        Code::BadPublicKey,
        "ssh cannot read the job's public key, so no login would be possible",
    )
    .hint("create the public key again from the .pub file of your key, and then the job"))
}

/// Makes a host key for this job. Returns its public half.
async fn host_key(dir: &Path) -> Result<String, Failure> {
    let path = dir.join("host_key");
    if !path.exists() {
        make_key(&path).await?;
    }
    let public = fs_err::read_to_string(path.with_extension("pub"))
        .map_err(|error| Failure::io("cannot read the host key", &error))?;
    let mut words = public.split_whitespace();
    Ok([words.next(), words.next()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" "))
}

/// Makes a pair of keys: the private one at `path`, the public one beside it.
async fn make_key(path: &Path) -> Result<(), Failure> {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"])
        .arg(path)
        .output()
        .await
        .map_err(|error| Failure::io("cannot run ssh-keygen", &error))?;
    if made.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
    Err(Failure::new(Code::Io, format!("cannot create a key: {said}")))
}

/// Makes root of the sandbox use the shell of the image's root: sshd looks it up before it enters the image.
fn use_shell_of(root: &Path) -> io::Result<()> {
    // Of an image that somebody made: a link or a fifo, perhaps.
    let Some(theirs) = Root::open(root)?.text(Path::new("etc/passwd"), LARGEST_PASSWD) else {
        return Ok(());
    };
    let is_root = |line: &&str| line.starts_with("root:");
    let Some(line) = theirs.lines().find(is_root).filter(|line| line.split(':').count() == 7) else {
        return Ok(());
    };
    let ours = fs_err::read_to_string("/etc/passwd")?;
    let others = ours.lines().filter(|line| !is_root(line));
    let lines: Vec<_> = std::iter::once(line).chain(others).collect();
    fs_err::write("/etc/passwd", lines.join("\n") + "\n")
}

fn private(path: &Path, content: &[u8]) -> io::Result<()> {
    fs_err::write(path, content)?;
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}
