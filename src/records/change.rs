//! The changes that a customize job makes to its image without a login. Pure: no I/O.

use serde::{Deserialize, Serialize};

/// One change. A job makes its changes in order, and fails with the first one that fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Its kind.
    pub kind: ChangeKind,
    /// Its name in logs: the command itself, or the name of a file.
    pub name: String,
    /// The object to run: `s3://bucket/key`.
    pub object: String,
    /// SHA-256 of that object, lower-case hexadecimal.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// A command line for the image's `/bin/sh`.
    Run,
    /// A script, which is run in the image by the interpreter that it names.
    Script,
    /// An Ansible playbook with the files beside it: a `tar.gz` whose entry `name` is the playbook.
    Ansible,
}

impl ChangeKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Run, Self::Script, Self::Ansible];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Script => "script",
            Self::Ansible => "ansible",
        }
    }
}

impl Change {
    /// Its entry in an image's record: `run sha256:…`, `script NAME sha256:…`.
    pub fn provenance(&self) -> String {
        match self.kind {
            // A command line can contain anything, so its digest identifies it.
            ChangeKind::Run => format!("run sha256:{}", self.sha256),
            kind => format!("{} {} sha256:{}", kind.name(), self.name, self.sha256),
        }
    }
}
