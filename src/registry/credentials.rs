//! Names and passwords for registries: those of `kiln registry login`, or else Docker's. Reads both files, writes the
//! first, and runs the helpers that Docker's file names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use fs_err::os::unix::fs::OpenOptionsExt;
use kiln_records::{Code, Failure};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The largest file that is read.
const LARGEST: u64 = 1 << 20;

/// How long a helper may take: it may ask a keyring, though no user.
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);

/// The name that a helper gives a token of a login instead of a user's.
const TOKEN_USER: &str = "<token>";

/// Who one is to a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// A name and its password.
    Password {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// A token of the registry's login service, from which it makes others.
    Token(String),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { user, .. } => f.debug_struct("Password").field("user", user).finish_non_exhaustive(),
            Self::Token(_) => f.write_str("Token"),
        }
    }
}

/// A file in the form of Docker's. Other members are kept out of what Kiln writes.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Auth>,
    #[serde(default, skip_serializing)]
    cred_helpers: BTreeMap<String, String>,
    #[serde(default, skip_serializing)]
    creds_store: Option<String>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
struct Auth {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    auth: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    identitytoken: Option<String>,
}

/// Where logins are.
#[derive(Debug, Clone, Default)]
pub struct Logins {
    /// Kiln's own file.
    pub own: Option<PathBuf>,
    /// Docker's.
    pub docker: Option<PathBuf>,
}

impl Logins {
    /// The files of the user: `$XDG_CONFIG_HOME/kiln/registries.json`, and `$DOCKER_CONFIG/config.json`.
    pub fn of_user() -> Self {
        let set = |variable| {
            std::env::var_os(variable)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let home = set("HOME");
        let below = |dir: &str| home.as_ref().map(|home| home.join(dir));
        let config = set("XDG_CONFIG_HOME").or_else(|| below(".config"));
        let docker = set("DOCKER_CONFIG").or_else(|| below(".docker"));
        Self {
            own: config.map(|dir| dir.join("kiln/registries.json")),
            docker: docker.map(|dir| dir.join("config.json")),
        }
    }

    /// The login for a registry, if there is one.
    ///
    /// # Errors
    ///
    /// `registry_login`: a file cannot be read, or a helper fails.
    pub async fn find(&self, registry: &str) -> Result<Option<Login>, Failure> {
        if let Some(path) = &self.own
            && let Some(file) = read(path, true)?
            && let Some(login) = file.stored(registry, path)?
        {
            return Ok(Some(login));
        }
        let Some(path) = &self.docker else { return Ok(None) };
        let Some(file) = read(path, false)? else {
            return Ok(None);
        };
        let named = |(key, _): &(&String, &String)| host_of(key) == registry;
        let helper = file.cred_helpers.iter().find(named).map(|(_, helper)| helper);
        if let Some(helper) = helper.or(file.creds_store.as_ref())
            && let Some(login) = ask_helper(helper, registry).await?
        {
            return Ok(Some(login));
        }
        file.stored(registry, path)
    }

    /// The registries that have a login, or a helper of their own that may have one.
    ///
    /// # Errors
    ///
    /// `registry_login`: a file cannot be read.
    pub fn registries(&self) -> Result<BTreeSet<String>, Failure> {
        let own = self.own.as_ref().map(|path| read(path, true)).transpose()?.flatten();
        let docker = self
            .docker
            .as_ref()
            .map(|path| read(path, false))
            .transpose()?
            .flatten();
        let files = own.into_iter().chain(docker);
        let keys = files.flat_map(|file| file.auths.into_keys().chain(file.cred_helpers.into_keys()));
        Ok(keys.map(|key| host_of(&key).to_owned()).collect())
    }

    /// Stores a login for a registry. Returns the file.
    ///
    /// # Errors
    ///
    /// `registry_login`.
    pub fn store(&self, registry: &str, user: &str, password: &str) -> Result<PathBuf, Failure> {
        let (path, mut file) = self.own_file()?;
        let auth = Some(BASE64_STANDARD.encode(format!("{user}:{password}")));
        let auth = Auth {
            auth,
            identitytoken: None,
        };
        file.auths.insert(registry.to_owned(), auth);
        write(&path, &file).map_err(|error| unusable(format_args!("cannot be written: {error}")))?;
        Ok(path)
    }

    /// Removes the login for a registry. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// `registry_login`.
    pub fn remove(&self, registry: &str) -> Result<bool, Failure> {
        let (path, mut file) = self.own_file()?;
        if file.auths.remove(registry).is_none() {
            return Ok(false);
        }
        write(&path, &file).map_err(|error| unusable(format_args!("cannot be written: {error}")))?;
        Ok(true)
    }

    fn own_file(&self) -> Result<(PathBuf, File), Failure> {
        let path = self
            .own
            .clone()
            .ok_or_else(|| unusable("have no place: HOME is not set"))?;
        let file = read(&path, true)?.unwrap_or_default();
        Ok((path, file))
    }
}

impl File {
    fn stored(&self, registry: &str, path: &Path) -> Result<Option<Login>, Failure> {
        let Some((_, auth)) = self.auths.iter().find(|(key, _)| host_of(key) == registry) else {
            return Ok(None);
        };
        if let Some(token) = auth.identitytoken.as_ref().filter(|token| !token.is_empty()) {
            return Ok(Some(Login::Token(token.clone())));
        }
        // Docker leaves an empty entry where a helper keeps the password.
        let Some(text) = auth.auth.as_ref().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let decoded = BASE64_STANDARD.decode(text.trim_end_matches('\0')).ok();
        let login = decoded.and_then(|bytes| {
            let text = String::from_utf8(bytes).ok()?;
            let (user, password) = text.split_once(':')?;
            Some(Login::Password {
                user: user.to_owned(),
                password: password.trim_end_matches('\0').to_owned(),
            })
        });
        // The text itself is not shown: it is a password.
        login.map(Some).ok_or_else(|| {
            unusable(format_args!(
                "are damaged: {} has no NAME:PASSWORD for {registry}",
                path.display()
            ))
        })
    }
}

/// The host in a key of Docker's file, which may be an address: `https://index.docker.io/v1/`.
fn host_of(key: &str) -> &str {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or(rest);
    match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        host => host,
    }
}

fn unusable(why: impl fmt::Display) -> Failure {
    Failure::new(Code::RegistryLogin, format!("the logins to registries {why}"))
        .hint("`kiln registry login REGISTRY` stores one anew")
}

/// Reads a file; none where there is none. Kiln's own must be for its user only.
fn read(path: &Path, is_own: bool) -> Result<Option<File>, Failure> {
    let metadata = match fs_err::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(format_args!("cannot be read: {error}"))),
    };
    if metadata.len() > LARGEST || !metadata.is_file() {
        return Err(unusable(format_args!(
            "cannot be read: {} is no such file",
            path.display()
        )));
    }
    if is_own && metadata.permissions().mode() & 0o077 != 0 {
        return Err(Failure::new(
            Code::RegistryLogin,
            format!("the logins to registries in {} are open to others", path.display()),
        )
        .hint(format!(
            "`chmod 600 {}`, and change the passwords if others use this machine",
            path.display()
        )));
    }
    let text = kiln_files::read(path, LARGEST).map_err(|error| unusable(format_args!("cannot be read: {error}")))?;
    // The parser's message would show the line, and so the password.
    let file = serde_json::from_slice(&text).map_err(|_| {
        unusable(format_args!(
            "are damaged: {} is not what Docker writes",
            path.display()
        ))
    })?;
    Ok(Some(file))
}

fn write(path: &Path, file: &File) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs_err::create_dir_all(dir)?;
    let temporary = dir.join(format!(".registries.json.{}", std::process::id()));
    let _ = fs_err::remove_file(&temporary);
    let text = serde_json::to_vec_pretty(file)?;
    let written = fs_err::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
        .and_then(|()| fs_err::rename(&temporary, path));
    if written.is_err() {
        let _ = fs_err::remove_file(&temporary);
    }
    written
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// Asks the program `docker-credential-HELPER`; none where it knows no login.
async fn ask_helper(helper: &str, registry: &str) -> Result<Option<Login>, Failure> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if helper.is_empty() || !helper.bytes().all(is_plain) {
        return Err(unusable(format_args!(
            "name the helper `{helper}`, which cannot be one"
        )));
    }
    let program = format!("docker-credential-{helper}");
    let failed = |why: &dyn fmt::Display| {
        unusable(format_args!("are with `{program}`, which fails: {why}"))
            .hint("repair the helper, or store the login with `kiln registry login`")
    };
    let mut child = tokio::process::Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(&error))?;
    let key = if registry == "docker.io" {
        "https://index.docker.io/v1/"
    } else {
        registry
    };
    let talk = async {
        if let Some(mut stdin) = child.stdin.take() {
            // A helper that does not read is judged by its answer.
            let _ = stdin.write_all(key.as_bytes()).await;
        }
        let mut text = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(LARGEST).read_to_end(&mut text).await?;
        }
        Ok::<_, std::io::Error>((child.wait().await?, text))
    };
    let (status, text) = tokio::time::timeout(HELPER_TIMEOUT, talk)
        .await
        .map_err(|_| failed(&"it does not answer"))?
        .map_err(|error| failed(&error))?;
    if !status.success() {
        // All helpers say it in these words.
        if String::from_utf8_lossy(&text).contains("credentials not found") {
            return Ok(None);
        }
        return Err(failed(&status));
    }
    let answer: Answer = serde_json::from_slice(&text).map_err(|_| failed(&"it answers with something else"))?;
    Ok(Some(if answer.username == TOKEN_USER {
        Login::Token(answer.secret)
    } else {
        Login::Password {
            user: answer.username,
            password: answer.secret,
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logins(dir: &Path) -> Logins {
        Logins {
            own: Some(dir.join("kiln/registries.json")),
            docker: Some(dir.join("config.json")),
        }
    }

    fn password(user: &str, password: &str) -> Login {
        Login::Password {
            user: user.to_owned(),
            password: password.to_owned(),
        }
    }

    #[tokio::test]
    async fn kilns_own_logins_come_before_dockers() {
        let dir = tempfile::tempdir().unwrap();
        let logins = logins(dir.path());
        assert_eq!(logins.find("r.example:5000").await.unwrap(), None);
        let auth = BASE64_STANDARD.encode("me:with:colons");
        let text = format!(
            r#"{{"auths": {{"r.example:5000": {{"auth": "{auth}"}}, "https://index.docker.io/v1/": {{"auth": "{auth}",
            "identitytoken": "t"}}, "empty.example": {{}}, "broken.example": {{"auth": "%"}}}}, "HttpHeaders": {{}}}}"#
        );
        fs_err::write(dir.path().join("config.json"), text).unwrap();
        let found = logins.find("r.example:5000").await.unwrap();
        assert_eq!(found, Some(password("me", "with:colons")));
        assert_eq!(
            logins.find("docker.io").await.unwrap(),
            Some(Login::Token("t".to_owned()))
        );
        assert_eq!(logins.find("empty.example").await.unwrap(), None);
        assert_eq!(logins.find("r.example").await.unwrap(), None);
        assert_eq!(
            logins.find("broken.example").await.unwrap_err().code,
            Code::RegistryLogin
        );

        let path = logins.store("r.example:5000", "you", "secret").unwrap();
        assert_eq!(fs_err::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            logins.find("r.example:5000").await.unwrap(),
            Some(password("you", "secret"))
        );
        fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(
            logins.find("r.example:5000").await.unwrap_err().code,
            Code::RegistryLogin
        );
        fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(logins.remove("r.example:5000").unwrap() && !logins.remove("r.example:5000").unwrap());
        assert_eq!(
            logins.find("r.example:5000").await.unwrap(),
            Some(password("me", "with:colons"))
        );
    }

    #[tokio::test]
    async fn helpers_are_programs_of_that_name_only() {
        let dir = tempfile::tempdir().unwrap();
        let logins = logins(dir.path());
        for helper in ["../../bin/sh", "a b", "", "no-such-helper-there-is"] {
            let text = format!(r#"{{"credHelpers": {{"r.example": "{helper}"}}}}"#);
            fs_err::write(dir.path().join("config.json"), text).unwrap();
            assert_eq!(
                logins.find("r.example").await.unwrap_err().code,
                Code::RegistryLogin,
                "{helper}"
            );
            assert_eq!(logins.find("other.example").await.unwrap(), None);
        }
    }
}
