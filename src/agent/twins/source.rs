//! The repositories of the recipe or the image as a source of packages for the host. Touches nothing itself; apt or
//! zypper do.

use std::{io, path::Path, process::Child};

use super::{
    Origin, Settings,
    apt::{self, Apt},
    download::Trust,
    format::Format,
    image,
    index::Index,
    rpm_md::{self, Zypper},
};
use crate::twins::root::Root;

/// The tool that queries the repositories.
#[derive(Debug)]
pub(super) enum Source {
    Apt(Apt),
    Zypper(Zypper),
}

impl Source {
    /// The source, working below `dir`. `None` while there are no repositories yet.
    ///
    /// # Errors
    ///
    /// There will never be any.
    pub(super) fn find(settings: &Settings, dir: &Path, restored: bool) -> io::Result<Option<Self>> {
        match settings.origin {
            Origin::Recipe => Self::of_recipe(settings, dir, restored),
            Origin::Image | Origin::Container => Self::of_image(settings, dir).map(Some),
        }
    }

    /// `None` until kiwi has set up its repositories and begun to use them. It does not use them for a root that was
    /// restored, which it is given when they are set up.
    fn of_recipe(settings: &Settings, dir: &Path, restored: bool) -> io::Result<Option<Self>> {
        if apt::is_ready() || (restored && apt::has_sources()) {
            return Apt::of_recipe(dir.join("apt"), settings.target, settings.host)
                .map(Self::Apt)
                .map(Some);
        }
        let Some(kiwi) = rpm_md::ready(restored) else {
            return Ok(None);
        };
        let (archs, lists) = (settings.archs(), |list: &str| settings.mirrors.first(list));
        let zypper = Zypper::of_recipe(dir.join("zypper"), kiwi, &settings.root, archs, &lists)?;
        Ok(zypper.map(Self::Zypper))
    }

    fn of_image(settings: &Settings, dir: &Path) -> io::Result<Self> {
        let opened = Root::open(&settings.root)?;
        match image::format(&opened) {
            Some(Format::Deb) => Apt::of_image(dir.join("apt"), &opened, settings.target, settings.host).map(Self::Apt),
            Some(Format::Rpm) => {
                let lists = |list: &str| settings.mirrors.first(list);
                Zypper::of_image(dir.join("zypper"), &opened, settings.archs(), &lists).map(Self::Zypper)
            }
            None => Err(io::Error::other("the image has no database of Debian packages or rpms")),
        }
    }

    /// The format of its packages.
    pub(super) const fn format(&self) -> Format {
        match self {
            Self::Apt(_) => Format::Deb,
            Self::Zypper(_) => Format::Rpm,
        }
    }

    /// Starts to fetch the indexes of the repositories.
    pub(super) fn start_update(&self) -> io::Result<Child> {
        match self {
            Self::Apt(apt) => apt.start_update(),
            Self::Zypper(zypper) => zypper.start_update(),
        }
    }

    /// The content of the indexes, after an update that printed `errors` if it failed.
    ///
    /// # Errors
    ///
    /// The repositories have nothing for the host, or one of them could not be read: it may be the origin of any
    /// package.
    pub(super) fn index(&self, errors: Option<&str>) -> io::Result<Index> {
        let first = || errors.and_then(|errors| errors.lines().find(|line| !line.is_empty()));
        let index = match (self, errors) {
            (Self::Apt(_), Some(_)) => {
                let why = first().unwrap_or("apt-get does not say why");
                return Err(io::Error::other(format!(
                    "a repository could not be read, and any package may have come from it: {why}"
                )));
            }
            (Self::Apt(apt), None) => apt.index()?,
            // Some of several repositories may exist for the target only.
            (Self::Zypper(zypper), _) => zypper.index()?,
        };
        if let Some(why) = index.why_empty() {
            return Err(io::Error::other(first().unwrap_or(why)));
        }
        Ok(index)
    }

    /// Logins and keys for fetching and checking packages.
    pub(super) fn trust(&self) -> Trust {
        match self {
            Self::Apt(apt) => Trust {
                logins: apt.logins(),
                keys: None,
            },
            Self::Zypper(zypper) => Trust {
                logins: String::new(),
                keys: Some(zypper.keys()),
            },
        }
    }
}
