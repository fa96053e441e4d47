//! The section `[containers]`: what builds of Containerfiles get from their site. Pure: no I/O.

use std::path::PathBuf;

use kiln_records::containerfile::check_word;
use serde::{Deserialize, Serialize};

use crate::settings;

/// Stands for every user.
const EVERYBODY: &str = "*";

settings! {
    /// What builds of Containerfiles get from their site. See docs/containerfiles.md.
    ["containers"]
    pub struct ContainerSettings {
        /// Secrets for `RUN --mount=type=secret`, such as `{ name = "npm", file = "/etc/kiln/npm-token", users = ["alice"] }`.
        /// In place of `file`, `command` is a list of words: what the command writes to standard output is the secret; `variable`
        /// is one of the server's environment. A job of one of these `users` (`"*"`: of every user; `"schedule NAME"`: of a
        /// schedule) may ask for it, and then every command of its Containerfile can read it.
        secrets: Vec<SiteSecret> = Vec::new();
        /// Registries that builds read by way of the server, such as `{ name = "docker.io", mirror = "registry.example.org/docker",
        /// login_file = "/etc/kiln/registries.json", users = ["*"] }`. `name` is the registry in a `FROM`, `mirror` where its images
        /// are read in its place, and `login_file` has the form of Docker's config.json. The login stays with the server; the
        /// Containerfiles of these `users` read whatever it may read. All other registries are read without a login, from where
        /// jobs run.
        registries: Vec<SiteRegistry> = Vec::new();
    }
}

/// A secret of the site's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenSecret", into = "WrittenSecret")]
pub struct SiteSecret {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub source: SecretSource,
    /// The users whose jobs may have it.
    pub users: Vec<String>,
}

/// A registry that builds read by way of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenRegistry", into = "WrittenRegistry")]
pub struct SiteRegistry {
    /// Its name in a Containerfile: a host, and the port if it is not the usual one.
    pub name: String,
    /// What its images are read from in its place: a registry, and the beginning of the names there.
    pub mirror: Option<String>,
    /// Where the login is.
    pub login: Option<RegistryLogin>,
    /// The users whose jobs read it.
    pub users: Vec<String>,
}

/// Where the login of a registry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistryLogin {
    /// In a file that has the form of Docker's.
    File(PathBuf),
    /// Where `kiln registry login`, or Docker, keeps those of the user of this command.
    OfUser,
}

impl SiteRegistry {
    /// A registry for which the user of a command has a login.
    pub fn of_command(name: String) -> Self {
        Self {
            name,
            mirror: None,
            login: Some(RegistryLogin::OfUser),
            users: vec![EVERYBODY.to_owned()],
        }
    }

    /// Whether jobs of this user read it.
    pub fn is_for(&self, who: Option<&str>) -> bool {
        is_among(&self.users, who)
    }

    /// The registry that is asked, and the name there of a repository of this one.
    pub fn ask(&self, repository: &str) -> (String, String) {
        let Some(mirror) = &self.mirror else {
            return (self.name.clone(), repository.to_owned());
        };
        match mirror.split_once('/') {
            Some((host, begin)) => (host.to_owned(), format!("{}/{repository}", begin.trim_end_matches('/'))),
            None => (mirror.clone(), repository.to_owned()),
        }
    }
}

fn is_among(users: &[String], who: Option<&str>) -> bool {
    users.iter().any(|user| user == EVERYBODY || Some(user.as_str()) == who)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRegistry {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mirror: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    login_file: Option<PathBuf>,
    users: Vec<String>,
}

impl TryFrom<WrittenRegistry> for SiteRegistry {
    type Error = String;

    fn try_from(written: WrittenRegistry) -> Result<Self, String> {
        let WrittenRegistry {
            name,
            mirror,
            login_file,
            users,
        } = written;
        let is_plain = |text: &str, more: &[u8]| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
        };
        if !is_plain(&name, b".-:") {
            return Err(format!(
                "`{}` is no registry, such as registry.example.org",
                name.escape_default()
            ));
        }
        if let Some(mirror) = mirror
            .as_deref()
            .filter(|mirror| !is_plain(mirror, b".-:/_") || mirror.contains("//"))
        {
            return Err(format!(
                "`{}` is no place for images, such as registry.example.org/docker",
                mirror.escape_default()
            ));
        }
        if mirror.is_none() && login_file.is_none() {
            return Err(format!(
                "the registry `{name}` has neither `mirror` nor `login_file`, and needs no entry"
            ));
        }
        if users.is_empty() {
            return Err(format!(
                "no user may read the registry `{name}`; \"*\" in `users` stands for all"
            ));
        }
        Ok(Self {
            name,
            mirror,
            login: login_file.map(RegistryLogin::File),
            users,
        })
    }
}

impl From<SiteRegistry> for WrittenRegistry {
    fn from(registry: SiteRegistry) -> Self {
        Self {
            name: registry.name,
            mirror: registry.mirror,
            login_file: match registry.login {
                Some(RegistryLogin::File(path)) => Some(path),
                Some(RegistryLogin::OfUser) | None => None,
            },
            users: registry.users,
        }
    }
}

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// In a file.
    File(PathBuf),
    /// On the standard output of this command.
    Command(Vec<String>),
    /// In this variable of Kiln's own environment.
    Variable(String),
}

impl SiteSecret {
    /// A secret that the user of a command has brought along.
    pub fn of_command(name: String, source: SecretSource) -> Self {
        Self {
            name,
            source,
            users: vec![EVERYBODY.to_owned()],
        }
    }

    /// Whether a job of this user may have it.
    pub fn is_for(&self, who: Option<&str>) -> bool {
        is_among(&self.users, who)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSecret {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    variable: Option<String>,
    users: Vec<String>,
}

impl TryFrom<WrittenSecret> for SiteSecret {
    type Error = String;

    fn try_from(written: WrittenSecret) -> Result<Self, String> {
        let name = written.name;
        check_word(&name).map_err(|why| format!("the name of the secret `{}`: {why}", name.escape_default()))?;
        let source = match (written.file, written.command, written.variable) {
            (Some(file), None, None) => SecretSource::File(file),
            (None, Some(command), None) if !command.is_empty() => SecretSource::Command(command),
            (None, None, Some(variable)) => SecretSource::Variable(variable),
            _ => {
                return Err(format!(
                    "the secret `{name}` needs one of `file`, `command` and `variable`"
                ));
            }
        };
        if written.users.is_empty() {
            return Err(format!(
                "no user may have the secret `{name}`; \"*\" in `users` stands for all"
            ));
        }
        Ok(Self {
            name,
            source,
            users: written.users,
        })
    }
}

impl From<SiteSecret> for WrittenSecret {
    fn from(secret: SiteSecret) -> Self {
        let (mut file, mut command, mut variable) = (None, None, None);
        match secret.source {
            SecretSource::File(path) => file = Some(path),
            SecretSource::Command(words) => command = Some(words),
            SecretSource::Variable(name) => variable = Some(name),
        }
        Self {
            name: secret.name,
            file,
            command,
            variable,
            users: secret.users,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_have_a_reason_to_be_named() {
        let read = |text: &str| toml::from_str::<SiteRegistry>(text);
        let one = read("name = 'docker.io'\nmirror = 'r.example:5000/docker'\nusers = ['*']").unwrap();
        assert_eq!(
            one.ask("library/debian"),
            ("r.example:5000".to_owned(), "docker/library/debian".to_owned())
        );
        let again: SiteRegistry = toml::from_str(&toml::to_string(&one).unwrap()).unwrap();
        assert_eq!(again, one);
        let login = read("name = 'r.example'\nlogin_file = '/x'\nusers = ['alice']").unwrap();
        assert_eq!(login.ask("a/b"), ("r.example".to_owned(), "a/b".to_owned()));
        assert!(login.is_for(Some("alice")) && !login.is_for(None));
        for wrong in [
            "name = 'r.example'\nusers = ['*']",
            "name = 'r.example/x'\nlogin_file = '/x'\nusers = ['*']",
            "name = 'r.example'\nlogin_file = '/x'\nusers = []",
            "name = 'r.example'\nmirror = 'https://x'\nusers = ['*']",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn secrets_have_one_source_and_users() {
        let read = |text: &str| toml::from_str::<SiteSecret>(text);
        let one = read("name = 'npm'\nfile = '/x'\nusers = ['alice', 'schedule nightly']").unwrap();
        assert!(one.is_for(Some("alice")) && one.is_for(Some("schedule nightly")));
        assert!(!one.is_for(Some("bob")) && !one.is_for(None));
        let again: SiteSecret = toml::from_str(&toml::to_string(&one).unwrap()).unwrap();
        assert_eq!(again, one);
        let all = read("name = 'npm'\ncommand = ['vault', 'read']\nusers = ['*']").unwrap();
        assert!(all.is_for(None));
        for wrong in [
            "name = 'npm'\nfile = '/x'",
            "name = 'npm'\nfile = '/x'\nusers = []",
            "name = 'npm'\nusers = ['*']",
            "name = 'npm'\nfile = '/x'\ncommand = ['y']\nusers = ['*']",
            "name = 'a/b'\nfile = '/x'\nusers = ['*']",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
