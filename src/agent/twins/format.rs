//! The package formats, and the differences between them. The work is done by the tools of each format.

use std::{fs::File, io, path::Path};

use super::{
    deb,
    facts::{Facts, Sum},
    rpm,
};
use kiln_records::arch::Arch;
use serde::{Deserialize, Serialize};

/// A package format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Format {
    Deb,
    Rpm,
}

impl Format {
    /// Directories of packages, and how deep to search: in the sandbox those of kiwi's package managers, and in the
    /// image's root those of package managers that scripts call.
    pub(super) const fn archives(self) -> (&'static [&'static str], &'static [&'static str], usize) {
        match self {
            // Directories below contain incomplete files.
            Self::Deb => (&["var/cache/kiwi/apt-get/archives"], &["var/cache/apt/archives"], 0),
            // As deep as the directories of repositories.
            Self::Rpm => (
                &["var/cache/kiwi/packages", "var/cache/kiwi/dnf/cache"],
                &["var/cache/zypp/packages", "var/cache/dnf", "var/cache/libdnf5"],
                6,
            ),
        }
    }

    /// The directories of the sandbox in which kiwi's package managers keep what they downloaded, and how deep to search.
    pub(crate) const fn caches(self) -> (&'static [&'static str], usize) {
        let (sandboxs, _, depth) = self.archives();
        (sandboxs, depth)
    }

    /// The format's name of an architecture.
    pub(super) const fn arch(self, arch: Arch) -> &'static str {
        match self {
            Self::Deb => arch.debian(),
            Self::Rpm => arch.name(),
        }
    }

    /// The ending of package file names for `arch`.
    pub(super) fn ending(self, arch: Arch) -> String {
        match self {
            Self::Deb => format!("_{}.deb", self.arch(arch)),
            Self::Rpm => format!(".{}.rpm", self.arch(arch)),
        }
    }

    /// Reads a package's description of itself.
    ///
    /// # Errors
    ///
    /// The file is not a package, or is still being written.
    pub(super) fn facts(self, package: File) -> io::Result<Facts> {
        match self {
            Self::Deb => deb::facts(package),
            Self::Rpm => rpm::facts(package),
        }
    }

    /// The keys of a package's files with `wanted` paths, which are absolute, once they are in the root. Empty for an
    /// rpm: its scripts rarely run an interpreter that is installed in the same transaction.
    ///
    /// # Errors
    ///
    /// The package is damaged.
    pub(super) fn keys(self, package: File, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
        match self {
            Self::Deb => deb::keys(package, wanted),
            Self::Rpm => Ok(Vec::new()),
        }
    }

    /// Extracts the files needed for twins from a package into the directory `into`. `sums` are those of the package that it is a
    /// twin of.
    ///
    /// # Errors
    ///
    /// The package is damaged, or the disk is full.
    pub(super) fn unpack(self, package: File, sums: &[Sum], into: &Path) -> io::Result<()> {
        match self {
            Self::Deb => deb::unpack(package, into),
            Self::Rpm => rpm::unpack(package, sums, into),
        }
    }
}
