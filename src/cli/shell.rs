//! `kiln shell`: logs in to the shell of a job. Runs ssh with the right host, port, key and host key.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use clap::Args;
use kiln_records::{Code, Failure};
use tempfile::NamedTempFile;

use super::{foreground, printer::Printer, session::ServerOptions};
use crate::client::{Client, Data, collection::JOBS};

/// The interval between checks whether the shell is open.
const PAUSE: Duration = Duration::from_secs(1);

/// The most bytes of the file of a public key.
const LARGEST_KEY: u64 = 64 << 10;

/// Log in to the shell of a job.
#[derive(Debug, Args)]
pub(super) struct ShellArguments {
    /// The job: id, or beginning of an id.
    job: String,

    /// The private key [default: the key in ~/.ssh that matches the job's public key, else the choice of ssh].
    #[arg(long, short, value_name = "FILE")]
    identity: Option<PathBuf>,

    /// A command to run instead of an interactive shell.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,

    #[command(flatten)]
    options: ServerOptions,
}

impl ShellArguments {
    /// Runs ssh. Ends as ssh ends.
    pub(super) async fn run(self, printer: &Printer) -> Result<ExitCode, Failure> {
        let session = self.options.open(printer)?;
        let job = session.client.find(&JOBS, &self.job).await?.id;
        let shell = wait(&session.client, &job, printer).await?;
        let at = Shell::of(&shell)?;
        let known = at
            .known_hosts()
            .map_err(|error| Failure::io("cannot write the host key", &error))?;
        let mut ssh = Command::new("ssh");
        ssh.args(at.options(known.path()));
        let identity = self
            .identity
            .or_else(|| own_key(shell.text("public_keys").unwrap_or_default()));
        if let Some(identity) = identity {
            ssh.arg("-i").arg(identity).args(["-o", "IdentitiesOnly=yes"]);
        }
        ssh.arg(format!("root@{}", at.host)).args(self.command);
        let end = foreground::run(&mut ssh).await.map_err(|error| {
            Failure::io("cannot run ssh", &error).hint("install OpenSSH's client (`apt-get install openssh-client`)")
        })?;
        drop(known);
        Ok(end.repeat())
    }
}

/// The address and host key of a shell.
struct Shell<'a> {
    host: &'a str,
    port: u64,
    host_key: &'a str,
}

impl<'a> Shell<'a> {
    fn of(shell: &'a Data) -> Result<Self, Failure> {
        let (Some(host), Some(port), Some(host_key)) =
            (shell.text("host"), shell.number("port"), shell.text("host_key"))
        else {
            return Err(Failure::new(
                Code::ServerUnknown,
                "the server's answer lacks the address of the shell",
            ));
        };
        Ok(Self { host, port, host_key })
    }

    /// A file with the host key, as ssh reads it. Removed when it is dropped.
    fn known_hosts(&self) -> std::io::Result<NamedTempFile> {
        let mut known = tempfile::Builder::new().prefix("kiln-host-key-").tempfile()?;
        writeln!(known, "[{}]:{} {}", self.host, self.port, self.host_key)?;
        writeln!(known, "{} {}", self.host, self.host_key)?;
        Ok(known)
    }

    /// Makes ssh accept the host keys in this file and no others.
    fn options(&self, known: &Path) -> Vec<String> {
        vec![
            "-p".to_owned(),
            self.port.to_string(),
            "-o".to_owned(),
            format!("UserKnownHostsFile={}", known.display()),
            "-o".to_owned(),
            "GlobalKnownHostsFile=/dev/null".to_owned(),
            "-o".to_owned(),
            "StrictHostKeyChecking=yes".to_owned(),
        ]
    }
}

/// Waits until the shell of a job is open.
async fn wait(client: &Client, job: &str, printer: &Printer) -> Result<Data, Failure> {
    let mut told = String::new();
    loop {
        let status = client.job_status(job).await?;
        let shell = status.get("shell").clone();
        let state = status.text("state").unwrap_or("gone");
        let has_ended = matches!(state, "success" | "error");
        match shell.text("status") {
            Some("ready") => return Ok(shell),
            Some("pending") if !has_ended => {}
            Some(_) => {
                return Err(
                    Failure::new(Code::NoShell, format!("the job's shell is closed; the job is {state}"))
                        .hint(format!("`kiln jobs logs {job}` shows how it ended")),
                );
            }
            None => {
                return Err(Failure::new(Code::NoShell, "the job has no shell")
                    .hint("customize jobs have one, and create jobs with `--enable-debug true`"));
            }
        }
        let now = format!("the shell is not open yet; the job is {state}");
        if now != told {
            printer.note(&now);
            told = now;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The private key in ~/.ssh whose public half is in this list.
fn own_key(public: &str) -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("HOME")?).join(".ssh");
    own_key_in(&dir, public)
}

fn own_key_in(dir: &Path, public: &str) -> Option<PathBuf> {
    let wanted: Vec<&str> = public.lines().filter_map(material).collect();
    let mut files: Vec<PathBuf> = fs_err::read_dir(dir)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    let is_it = |path: &&PathBuf| {
        path.extension().is_some_and(|extension| extension == "pub")
            && kiln_files::read_given_text(path, LARGEST_KEY)
                .is_ok_and(|text| material(&text).is_some_and(|key| wanted.contains(&key)))
    };
    let private = files.iter().find(is_it)?.with_extension("");
    private.exists().then_some(private)
}

/// The key in a line that may have options before it and a comment after it.
fn material(line: &str) -> Option<&str> {
    line.split_whitespace().find(|word| word.starts_with("AAAA"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_key_is_the_one_whose_public_half_the_job_has() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("id_rsa", "private"),
            ("id_rsa.pub", "ssh-rsa AAAAB3one me@here"),
            ("work", "private"),
            ("work.pub", "ssh-ed25519 AAAAC3two me@there\n"),
            ("gone.pub", "ssh-ed25519 AAAAC3three"),
        ] {
            fs_err::write(dir.path().join(name), text).unwrap();
        }
        let own = |public: &str| own_key_in(dir.path(), public);
        assert_eq!(
            own("no-pty ssh-ed25519 AAAAC3two other comment\n"),
            Some(dir.path().join("work"))
        );
        assert_eq!(own("x\nssh-rsa AAAAB3one"), Some(dir.path().join("id_rsa")));
        assert_eq!(own("ssh-ed25519 AAAAC3three"), None);
        assert_eq!(own(""), None);
    }
}
