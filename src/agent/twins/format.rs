//! The formats of packages.

use std::{fs::File, io, path::Path};

use super::{deb, facts::Facts, rpm};
use crate::arch::Arch;

/// A format, and where its packages lie while a root is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Deb,
    Rpm,
}

impl Format {
    /// Where packages lie, and how deep: in the sandbox what kiwi's package managers fetch, and in the image's root what
    /// scripts fetch by themselves.
    pub(super) const fn archives(self) -> (&'static [&'static str], &'static [&'static str], usize) {
        match self {
            // What is in directories below is not whole.
            Self::Deb => (&["var/cache/kiwi/apt-get/archives"], &["var/cache/apt/archives"], 0),
            // These are as deep as repositories are.
            Self::Rpm => (
                &["var/cache/kiwi/packages", "var/cache/kiwi/dnf/cache"],
                &["var/cache/zypp/packages", "var/cache/dnf", "var/cache/libdnf5"],
                6,
            ),
        }
    }

    /// The format's name of an architecture.
    pub(super) const fn arch(self, arch: Arch) -> &'static str {
        match self {
            Self::Deb => arch.debian(),
            Self::Rpm => arch.name(),
        }
    }

    /// What the names of packages for `arch` end in.
    pub(super) fn ending(self, arch: Arch) -> String {
        match self {
            Self::Deb => format!("_{}.deb", self.arch(arch)),
            Self::Rpm => format!(".{}.rpm", self.arch(arch)),
        }
    }

    /// What a package says of itself.
    ///
    /// # Errors
    ///
    /// When it is none, or is still being written.
    pub(super) fn facts(self, package: File) -> io::Result<Facts> {
        match self {
            Self::Deb => deb::facts(package),
            Self::Rpm => rpm::facts(package),
        }
    }

    /// The keys that those files of a package will have in the root whose paths, absolute there, are `wanted`. None of an
    /// rpm: hardly a script of those runs an interpreter that comes with the same transaction.
    ///
    /// # Errors
    ///
    /// When the package is damaged.
    pub(super) fn keys(self, package: File, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
        match self {
            Self::Deb => deb::keys(package, wanted),
            Self::Rpm => Ok(Vec::new()),
        }
    }

    /// Takes what twins are made of out of a package, into the directory `into`.
    ///
    /// # Errors
    ///
    /// When the package is damaged, or the disk is full.
    pub(super) fn unpack(self, package: File, into: &Path) -> io::Result<()> {
        match self {
            Self::Deb => deb::unpack(package, into),
            Self::Rpm => rpm::unpack(package, into),
        }
    }
}
