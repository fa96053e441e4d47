//! Entries of `binfmt_misc`: read from `qemu/binfmt.toml`, written to the sandbox's own instance.

use serde::{Deserialize, Serialize};

/// One entry to register.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BinfmtEntry {
    /// Name under which the entry appears.
    pub name: String,
}
