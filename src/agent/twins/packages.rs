//! Packages that are, or are about to be, in the root, and their counterparts for the host.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::OsString,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    time::SystemTime,
};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};

use super::{
    apt::{Apt, Index},
    deb::{self, Sum},
    side_by_side::side_by_side,
    unchanged::may_be_program,
};
use crate::{arch::Arch, emulation::twins::root::Root};

/// Where packages lie before they are unpacked: below the sandbox's own root what kiwi's apt fetches, below the image's
/// what scripts fetch by themselves.
const KIWI_ARCHIVES: &str = "var/cache/kiwi/apt-get/archives";
const ARCHIVES: &str = "var/cache/apt/archives";

/// Packages that are downloaded and unpacked side by side.
const UNPACKERS: usize = 2;

/// Name and version.
pub(super) type Id = (String, String);

/// A package of the target.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) sums: Vec<Sum>,
    pub(super) host: Host,
    /// What dpkg knew when it was last compared with the root.
    compared: Option<Dpkg>,
    /// Its files that were handed to the world of twins.
    pub(super) paired: Vec<PathBuf>,
}

/// The same package for the host.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// It was not asked for yet.
    Unknown,
    /// Nobody has exactly this version, or it is not needed.
    None,
    /// It is unpacked here.
    At(PathBuf),
}

/// What dpkg in the root knows of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dpkg {
    /// Nothing: it is not there, or was unpacked without dpkg.
    Unknown,
    /// When it was unpacked last.
    Unpacked(SystemTime),
}

/// All packages seen so far.
#[derive(Debug)]
pub(super) struct Packages {
    root: PathBuf,
    target: Arch,
    /// Where the host's packages are unpacked.
    unpacked: PathBuf,
    /// Names of archives that were looked at.
    seen: HashSet<OsString>,
    pub(super) known: BTreeMap<Id, Package>,
}

impl Packages {
    pub(super) fn new(root: &Path, target: Arch, unpacked: PathBuf) -> Self {
        Self {
            root: root.to_owned(),
            target,
            unpacked,
            seen: HashSet::new(),
            known: BTreeMap::new(),
        }
    }

    /// Looks for packages of the target that are new.
    pub(super) fn look(&mut self) {
        for (top, dir) in [(Path::new("/"), KIWI_ARCHIVES), (&self.root.clone(), ARCHIVES)] {
            // It comes and goes.
            if let Ok(dir) = open_dir(top, dir) {
                let _ = self.look_at(&PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())));
            }
        }
    }

    fn look_at(&mut self, dir: &Path) -> io::Result<()> {
        let ending = format!("_{}.deb", self.target.debian());
        let opened = Root::open(dir)?;
        for entry in fs_err::read_dir(dir)? {
            let name = entry?.file_name();
            if !name.to_string_lossy().ends_with(&ending) || self.seen.contains(&name) {
                continue;
            }
            let file = opened.file(Path::new(&name)).ok().flatten();
            // One that cannot be read is looked at again.
            let Some(Ok(control)) = file.map(|(file, _)| deb::control(file)) else {
                continue;
            };
            self.seen.insert(name);
            if control.arch == self.target.debian() {
                self.know((control.name, control.version), control.sums);
            }
        }
        Ok(())
    }

    fn know(&mut self, id: Id, sums: Vec<Sum>) {
        let needed = sums.iter().any(|sum| may_be_program(&sum.path));
        self.known.entry(id).or_insert(Package {
            sums,
            host: if needed { Host::Unknown } else { Host::None },
            compared: None,
            paired: Vec::new(),
        });
    }

    /// Fetches and unpacks the counterparts of packages that are new. Returns how many there are now, and those that
    /// have none.
    ///
    /// # Errors
    ///
    /// When apt cannot be run.
    pub(super) fn fetch(&mut self, apt: &Apt, index: &Index) -> io::Result<(usize, Vec<Id>)> {
        let new = |(id, package): (&Id, &Package)| (package.host == Host::Unknown).then(|| id.clone());
        let wanted: Vec<Id> = self.known.iter().filter_map(new).collect();
        if wanted.is_empty() {
            return Ok((0, Vec::new()));
        }
        let files = apt.download(index, &wanted)?;
        let wanted: Vec<_> = wanted.into_iter().zip(files).collect();
        let unpacked = side_by_side(wanted, UNPACKERS, |(id, file)| self.unpack(id, file.as_ref()?));
        let (mut count, mut without) = (0, Vec::new());
        for ((id, _), host) in unpacked {
            let Some(package) = self.known.get_mut(&id) else {
                continue;
            };
            if let Some(dir) = host {
                package.host = Host::At(dir);
                count += 1;
            } else {
                package.host = Host::None;
                without.push(id);
            }
        }
        Ok((count, without))
    }

    /// Unpacks the host's package `id`, and removes its archive. None when it is damaged.
    fn unpack(&self, (name, version): &Id, archive: &Path) -> Option<PathBuf> {
        // Versions may have colons, which paths may, too.
        let into = self.unpacked.join(format!("{name}_{version}"));
        let unpacked = deb::unpack(archive, &into);
        let _ = fs_err::remove_file(archive);
        unpacked.ok().map(|()| into)
    }

    /// Names of packages that may have come into the root, changed or gone since this was last asked. Those that dpkg does
    /// not know are among them only if `all` are asked for.
    pub(super) fn changed(&mut self, all: bool) -> BTreeSet<String> {
        let mut changed = BTreeSet::new();
        let Ok(root) = Root::open(&self.root) else {
            return changed;
        };
        for ((name, _), package) in &mut self.known {
            let dpkg = dpkg(&root, name, self.target);
            if package.compared != Some(dpkg) && (all || dpkg != Dpkg::Unknown) {
                package.compared = Some(dpkg);
                changed.insert(name.clone());
            }
        }
        changed
    }
}

/// What dpkg in the root knows of a package. It writes the list of files once they are all in their places.
fn dpkg(root: &Root, name: &str, target: Arch) -> Dpkg {
    let names = [format!("{name}.list"), format!("{name}:{}.list", target.debian())];
    let found = |name: &String| {
        let (_, found) = root.file(&Path::new("var/lib/dpkg/info").join(name)).ok()??;
        found.modified().ok()
    };
    names.iter().find_map(found).map_or(Dpkg::Unknown, Dpkg::Unpacked)
}

/// Opens a directory below `top`, on the way to which there is no link.
fn open_dir(top: &Path, dir: &str) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let top = open(top, flags, Mode::empty())?;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    Ok(openat2(top, dir, how)?)
}
