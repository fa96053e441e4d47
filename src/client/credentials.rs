//! The data of `kiln login`: a token for each server, and the default server. Reads and writes one file, which only
//! its owner may read.

use std::{
    collections::BTreeMap,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use fs_err::os::unix::fs::OpenOptionsExt;
use kiln_records::{Code, Failure};
use serde::{Deserialize, Serialize};

/// The most bytes of the file.
const LARGEST: u64 = 1 << 20;

/// The file `credentials.toml`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// The default server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// The servers with a login, by address.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub servers: BTreeMap<String, Login>,
}

/// The data of one server.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The token, unless the server wants none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The authorities to trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login")
            .field("ca_file", &self.ca_file)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// The path of the file: `$XDG_CONFIG_HOME/kiln/credentials.toml`, or else below `~/.config`.
    pub fn path() -> Option<PathBuf> {
        let set = |variable| {
            std::env::var_os(variable)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let dir = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
        Some(dir.join("kiln/credentials.toml"))
    }

    /// Reads the file; a missing file is empty.
    ///
    /// # Errors
    ///
    /// `credentials_unreadable`, also when other users could read it.
    pub fn load() -> Result<Self, Failure> {
        match Self::path() {
            Some(path) if path.exists() => Self::read(&path),
            _ => Ok(Self::default()),
        }
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        let unreadable = |why: &dyn std::fmt::Display| {
            Failure::new(
                Code::CredentialsUnreadable,
                format!("what `kiln login` kept cannot be read: {why}"),
            )
        };
        let mode = fs_err::metadata(path)
            .map_err(|error| unreadable(&error))?
            .permissions()
            .mode();
        if mode & 0o077 != 0 {
            let who = format_args!("{} is open to others", path.display()).to_string();
            return Err(unreadable(&who).hint(format!(
                "`chmod 600 {}`, and have its tokens replaced if others use this machine",
                path.display()
            )));
        }
        let text = kiln_files::read_given_text(path, LARGEST).map_err(|error| unreadable(&error))?;
        // The parser's error would show the line, and so the token.
        toml::from_str(&text)
            .map_err(|_| unreadable(&format_args!("{} is damaged", path.display())).hint("remove it and log in again"))
    }

    /// Writes the file atomically, readable by its owner only.
    ///
    /// # Errors
    ///
    /// `credentials_unwritable`.
    pub fn save(&self) -> Result<PathBuf, Failure> {
        let path = Self::path().ok_or_else(|| {
            Failure::new(
                Code::CredentialsUnwritable,
                "no place for tokens is known: HOME is not set",
            )
        })?;
        let unwritable = |why: &dyn std::fmt::Display| {
            Failure::new(Code::CredentialsUnwritable, format!("the token cannot be kept: {why}"))
                .hint("KILN_TOKEN and --token FILE work without")
        };
        let text = toml::to_string(self).map_err(|error| unwritable(&error))?;
        write(&path, &text).map_err(|error| unwritable(&error))?;
        Ok(path)
    }
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs_err::create_dir_all(dir)?;
    let temporary = dir.join(format!(".credentials.toml.{}", std::process::id()));
    let _ = fs_err::remove_file(&temporary);
    let written = fs_err::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs_err::rename(&temporary, path));
    if written.is_err() {
        let _ = fs_err::remove_file(&temporary);
    }
    written
}
