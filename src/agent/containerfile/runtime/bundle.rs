//! The part of an OCI runtime's bundle that counts here: which command runs in which root. Reads `config.json` of a bundle (OCI
//! runtime specification 1.2).
//!
//! What would shut a container off from its host is left out on purpose (masked paths, seccomp, control groups): the job's sandbox is
//! around all of them.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// What is to run, and where.
#[derive(Debug, Deserialize)]
pub(super) struct Bundle {
    pub(super) process: Process,
    pub(super) root: Root,
    #[serde(default)]
    pub(super) hostname: String,
    #[serde(default)]
    pub(super) mounts: Vec<Mount>,
    #[serde(default)]
    pub(super) linux: Linux,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Process {
    pub(super) args: Vec<String>,
    #[serde(default)]
    pub(super) env: Vec<String>,
    pub(super) cwd: PathBuf,
    #[serde(default)]
    pub(super) user: User,
    #[serde(default)]
    pub(super) capabilities: Capabilities,
    #[serde(default)]
    pub(super) rlimits: Vec<Limit>,
    #[serde(default)]
    pub(super) no_new_privileges: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct User {
    #[serde(default)]
    pub(super) uid: u32,
    #[serde(default)]
    pub(super) gid: u32,
    #[serde(default)]
    pub(super) additional_gids: Vec<u32>,
    #[serde(default)]
    pub(super) umask: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Capabilities {
    /// Names, such as `CAP_CHOWN`.
    #[serde(default)]
    pub(super) bounding: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Limit {
    /// A name, such as `RLIMIT_NOFILE`.
    #[serde(rename = "type")]
    pub(super) name: String,
    pub(super) soft: u64,
    pub(super) hard: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Root {
    pub(super) path: PathBuf,
}

#[derive(Debug, Deserialize)]
pub(super) struct Mount {
    pub(super) destination: PathBuf,
    #[serde(rename = "type", default)]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) source: PathBuf,
    #[serde(default)]
    pub(super) options: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Linux {
    #[serde(default)]
    pub(super) namespaces: Vec<Namespace>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Namespace {
    /// Such as `pid`.
    #[serde(rename = "type")]
    pub(super) kind: String,
}

impl Bundle {
    /// Reads the bundle in a directory. Its root's path is made absolute.
    pub(super) fn read(dir: &Path) -> io::Result<Self> {
        let mut bundle: Self = serde_json::from_slice(&fs_err::read(dir.join("config.json"))?)?;
        bundle.root.path = dir.join(&bundle.root.path);
        Ok(bundle)
    }

    /// Whether the command has a namespace of this kind of its own.
    pub(super) fn has_own(&self, kind: &str) -> bool {
        self.linux.namespaces.iter().any(|namespace| namespace.kind == kind)
    }
}
