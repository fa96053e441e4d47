//! Reads a toolbox: the root file system in which the agent runs. Reads the directory of toolboxes; writes nothing.
//!
//! ```text
//! toolboxes/<digest of the description>/toolbox.squashfs   for other machines and VMs
//! toolboxes/<digest of the description>/tree               the same, unpacked: the lower layer of every sandbox here
//! toolboxes/<digest of the description>/vm                 kernel and modules of virtual machines, beside the root
//! toolboxes/<digest of the description>/facts.json         its digest, and every package with its version
//! ```
//!
//! The tree is unpacked because a user namespace cannot mount a squashfs without FUSE, which would slow down every file
//! access.

use std::path::{Path, PathBuf};

use kiln_records::arch::Arch;
use serde::{Deserialize, Serialize};

pub(in crate::sandbox) mod definition;

/// A toolbox that is ready for use.
#[derive(Debug, Clone)]
pub struct Toolbox {
    /// Digest of its description: its name.
    pub name: String,
    /// The squashfs.
    pub squashfs: PathBuf,
    /// The unpacked root.
    pub tree: PathBuf,
    /// Holds `vmlinuz` and `modules` for virtual machines, where Debian has a kernel for them.
    pub vm: PathBuf,
    /// Facts about its content.
    pub facts: Facts,
}

/// Facts about a toolbox, for people and for provenance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    /// SHA-256 of the squashfs, hexadecimal.
    pub sha256: String,
    /// Size of the squashfs in bytes.
    pub size: u64,
    /// The architecture of the hosts whose jobs run in it.
    pub arch: Arch,
    /// When it was built.
    pub built: jiff::Timestamp,
    /// `name version` of every Debian package in it.
    pub packages: Vec<String>,
}

/// The squashfs in a toolbox's directory.
pub(super) const SQUASHFS: &str = "toolbox.squashfs";

/// The facts in a toolbox's directory.
pub(super) const FACTS: &str = "facts.json";

impl Toolbox {
    /// The toolbox of the built-in description for hosts of this architecture, among those in `toolboxes`, if built.
    pub(super) fn find(toolboxes: &Path, arch: Arch) -> Option<Self> {
        Self::read(toolboxes, definition::digest(arch))
    }

    /// The toolbox with this name, among those in `toolboxes`, if built.
    pub(super) fn read(toolboxes: &Path, name: String) -> Option<Self> {
        let dir = toolboxes.join(&name);
        let facts = serde_json::from_slice(&fs_err::read(dir.join(FACTS)).ok()?).ok()?;
        Some(Self {
            name,
            squashfs: dir.join(SQUASHFS),
            tree: dir.join("tree"),
            vm: dir.join("vm"),
            facts,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A toolbox without files.
    pub(crate) fn toolbox(arch: Arch) -> Toolbox {
        Toolbox {
            name: format!("toolbox-{arch}"),
            squashfs: "/none".into(),
            tree: "/none".into(),
            vm: "/none".into(),
            facts: Facts {
                sha256: String::new(),
                size: 0,
                arch,
                built: jiff::Timestamp::UNIX_EPOCH,
                packages: Vec::new(),
            },
        }
    }
}
