//! The repositories of the recipe, asked for packages of the host.

use std::{io, path::Path, process::Child};

use super::{
    Settings,
    apt::{self, Apt},
    download::Trust,
    format::Format,
    index::Index,
    rpm_md::{self, Zypper},
};

/// What asks them.
#[derive(Debug)]
pub(super) enum Source {
    Apt(Apt),
    Zypper(Zypper),
}

impl Source {
    /// That of the recipe, working below `dir`. None until kiwi has set up its repositories and begun to use them.
    pub(super) fn find(settings: &Settings, dir: &Path) -> io::Result<Option<Self>> {
        let Settings { root, target, host, .. } = settings;
        if apt::is_ready() {
            return Apt::new(dir.join("apt"), *host).map(Self::Apt).map(Some);
        }
        let Some(kiwi) = rpm_md::ready() else { return Ok(None) };
        let zypper = Zypper::new(dir.join("zypper"), kiwi, root, *target, *host)?;
        Ok(Some(Self::Zypper(zypper)))
    }

    /// The format of its packages.
    pub(super) const fn format(&self) -> Format {
        match self {
            Self::Apt(_) => Format::Deb,
            Self::Zypper(_) => Format::Rpm,
        }
    }

    /// Starts to fetch what repositories have.
    pub(super) fn start_update(&self) -> io::Result<Child> {
        match self {
            Self::Apt(apt) => apt.start_update(),
            Self::Zypper(zypper) => zypper.start_update(),
        }
    }

    /// What they have, after an update that said `errors` if it failed.
    ///
    /// # Errors
    ///
    /// When they have nothing for the host.
    pub(super) fn index(&self, errors: Option<&str>) -> io::Result<Index> {
        let first = || errors.and_then(|errors| errors.lines().find(|line| !line.is_empty()));
        let index = match self {
            Self::Apt(apt) if errors.is_none() => apt.index()?,
            Self::Apt(_) => return Err(io::Error::other(first().unwrap_or("apt-get update failed"))),
            // Of repositories for one architecture, some may exist for that only.
            Self::Zypper(zypper) => zypper.index()?,
        };
        if index.is_empty() {
            let why = first().unwrap_or("the repositories have no packages for it");
            return Err(io::Error::other(why));
        }
        Ok(index)
    }

    /// What its packages are fetched and checked with.
    pub(super) fn trust(&self) -> Trust {
        match self {
            Self::Apt(_) => Trust {
                logins: Some(apt::logins()),
                keys: None,
            },
            Self::Zypper(zypper) => Trust {
                logins: None,
                keys: Some(zypper.keys()),
            },
        }
    }
}
