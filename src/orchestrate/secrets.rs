//! Knows the secrets that the site has for commands of Containerfiles, and which users may have them. Reads files, and runs the
//! site's commands.

use std::{process::Stdio, time::Duration};

use kiln_records::{Code, Failure, protocol::BuildSecret};
use tokio::{io::AsyncReadExt, process::Command, time::timeout};

use super::refusal::Refusal;
use crate::config::{SecretSource, SiteSecret};

/// The longest secret, in bytes.
const LONGEST: u64 = 64 << 10;

/// How long a command may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// The site's secrets.
#[derive(Debug)]
pub(super) struct Secrets(pub(super) Vec<SiteSecret>);

impl Secrets {
    /// Refuses names that are not there for this user. Whether another user could have them is not said.
    pub(super) fn check(&self, names: &[String], who: Option<&str>) -> Result<(), Refusal> {
        names.iter().try_for_each(|name| self.find(name, who).map(drop))
    }

    /// The secrets of these names.
    ///
    /// # Errors
    ///
    /// `secret_unavailable` for one that cannot be read, or is not there for this user.
    pub(super) async fn read(&self, names: &[String], who: Option<&str>) -> Result<Vec<BuildSecret>, Failure> {
        let mut read = Vec::with_capacity(names.len());
        for name in names {
            let found = self
                .find(name, who)
                .map_err(|refusal| Failure::new(Code::SecretUnavailable, refusal))?;
            let content = match &found.source {
                SecretSource::File(path) => {
                    let opened = tokio::fs::File::open(path).await;
                    let opened = opened.map_err(|error| wrong(name, format_args!("{}: {error}", path.display())))?;
                    all_of(opened, name).await?
                }
                SecretSource::Variable(variable) => {
                    let value = std::env::var_os(variable).unwrap_or_default();
                    all_of(value.as_encoded_bytes(), name).await?
                }
                SecretSource::Command(words) => {
                    let ran = timeout(PATIENCE, run(name, words)).await;
                    ran.map_err(|_| wrong(name, "its command takes longer than a minute"))??
                }
            };
            read.push(BuildSecret {
                name: name.clone(),
                content,
            });
        }
        Ok(read)
    }

    fn find(&self, name: &str, who: Option<&str>) -> Result<&SiteSecret, Refusal> {
        let found = self.0.iter().find(|secret| secret.name == name && secret.is_for(who));
        found.ok_or_else(|| Refusal::NoSecret(name.to_owned()))
    }
}

/// What a command writes.
async fn run(name: &str, words: &[String]) -> Result<Vec<u8>, Failure> {
    let (program, arguments) = words
        .split_first()
        .map_or(("", &[][..]), |(program, rest)| (program, rest));
    let not_run = |error: std::io::Error| wrong(name, format_args!("{program} cannot be run: {error}"));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(not_run)?;
    let written = match child.stdout.take() {
        Some(output) => all_of(output, name).await?,
        None => Vec::new(),
    };
    let status = child.wait().await.map_err(not_run)?;
    if !status.success() {
        return Err(wrong(name, format_args!("{program} ended with {status}")));
    }
    Ok(written)
}

async fn all_of(from: impl tokio::io::AsyncRead + Unpin, name: &str) -> Result<Vec<u8>, Failure> {
    let mut content = Vec::new();
    let read = from.take(LONGEST + 1).read_to_end(&mut content).await;
    read.map_err(|error| wrong(name, error))?;
    if content.is_empty() {
        return Err(wrong(name, "it is empty"));
    }
    if content.len() as u64 > LONGEST {
        return Err(wrong(name, format_args!("it has more than {LONGEST} bytes")));
    }
    Ok(content)
}

fn wrong(name: &str, why: impl std::fmt::Display) -> Failure {
    Failure::new(
        Code::SecretUnavailable,
        format!("the secret `{name}` cannot be had: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_secret_is_for_its_users_and_never_empty() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(dir.path().join("token"), "abc").unwrap();
        fs_err::write(dir.path().join("empty"), "").unwrap();
        let of = |name: &str, source: SecretSource| SiteSecret {
            name: name.to_owned(),
            source,
            users: vec!["alice".to_owned()],
        };
        let command = |text: &str| SecretSource::Command(["sh", "-c", text].map(str::to_owned).into());
        let secrets = Secrets(vec![
            of("token", SecretSource::File(dir.path().join("token"))),
            of("empty", SecretSource::File(dir.path().join("empty"))),
            of("said", command("printf said")),
            of("failed", command("printf said; exit 3")),
            of("large", command("yes")),
        ]);
        let read = async |name: &str, who| {
            let read = secrets.read(&[name.to_owned()], who).await;
            read.map(|all| all.into_iter().map(|one| one.content).collect::<Vec<_>>())
        };
        assert_eq!(read("token", Some("alice")).await.unwrap(), [b"abc"]);
        assert_eq!(read("said", Some("alice")).await.unwrap(), [b"said"]);
        for (name, who) in [
            ("token", Some("bob")),
            ("token", None),
            ("other", Some("alice")),
            ("empty", Some("alice")),
            ("failed", Some("alice")),
            ("large", Some("alice")),
        ] {
            assert_eq!(
                read(name, who).await.unwrap_err().code,
                Code::SecretUnavailable,
                "{name}"
            );
        }
        assert!(secrets.check(&["token".to_owned()], Some("bob")).is_err());
    }
}
