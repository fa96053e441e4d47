//! Packages that are, or are about to be, in the root, and their counterparts for the host.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::OsString,
    fs::File,
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
    download::Downloads,
    facts::{Facts, Sum},
    format::Format,
    index::{Id, Index},
    installed::{self, State},
    side_by_side::side_by_side,
    source::Source,
    unchanged::may_be_program,
};
use crate::{
    arch::Arch,
    emulation::twins::{root::Root, table::Table},
};

/// Packages that are unpacked side by side.
const UNPACKERS: usize = 2;

/// A package of the target.
#[derive(Debug)]
pub(super) struct Package {
    /// Of files that may be programs.
    pub(super) sums: Vec<Sum>,
    pub(super) host: Host,
    /// Its archive, if it has programs that will be tried as twins, until they were [announced](Packages::announce).
    archive: Option<File>,
    /// How it was in the root when it was last compared with it.
    compared: Option<State>,
    /// Its files that were handed to the world of twins.
    pub(super) paired: Vec<PathBuf>,
}

/// The same package for the host.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// It was not asked for yet.
    Unknown,
    /// It is not needed.
    None,
    /// Nobody has exactly this version.
    Missing,
    /// It is unpacked here.
    At(PathBuf),
}

/// All packages seen so far.
#[derive(Debug)]
pub(super) struct Packages {
    root: PathBuf,
    target: Arch,
    format: Format,
    /// Where the host's packages are unpacked.
    unpacked: PathBuf,
    /// Names of archives that were looked at.
    seen: HashSet<OsString>,
    /// When the database of packages was last changed.
    database: Option<SystemTime>,
    pub(super) known: BTreeMap<Id, Package>,
}

impl Packages {
    pub(super) fn new(root: &Path, target: Arch, format: Format, unpacked: PathBuf) -> Self {
        Self {
            root: root.to_owned(),
            target,
            format,
            unpacked,
            seen: HashSet::new(),
            database: None,
            known: BTreeMap::new(),
        }
    }

    /// Looks for packages of the target that are new. `table` tells which of their programs will be tried as twins.
    pub(super) fn look(&mut self, table: &Table) {
        let (sandboxs, roots, depth) = self.format.archives();
        for (top, dirs) in [(Path::new("/"), sandboxs), (&self.root.clone(), roots)] {
            for dir in dirs {
                // They come and go.
                let top = open(top, DIR, Mode::empty());
                if let Ok(dir) = top.map_err(io::Error::from).and_then(|top| open_dir(&top, dir)) {
                    let _ = self.look_at(&dir, depth, table);
                }
            }
        }
    }

    /// Looks into a directory, and into others to this `depth` below it.
    fn look_at(&mut self, dir: &OwnedFd, depth: usize, table: &Table) -> io::Result<()> {
        let ending = self.format.ending(self.target);
        let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        let opened = Root::open(&path)?;
        for entry in fs_err::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name();
            if depth > 0 && entry.file_type()?.is_dir() {
                if let Ok(dir) = open_dir(dir, &name) {
                    let _ = self.look_at(&dir, depth - 1, table);
                }
                continue;
            }
            if !name.to_string_lossy().ends_with(&ending) || self.seen.contains(&name) {
                continue;
            }
            let file = opened.file(Path::new(&name)).ok().flatten();
            // One that cannot be read is looked at again.
            let Some((file, _)) = file else { continue };
            let Ok(facts) = self.format.facts(file.try_clone()?) else {
                continue;
            };
            self.seen.insert(name);
            self.know(facts, Some(file), table);
        }
        Ok(())
    }

    /// Takes note of a package, if it is of the target's architecture. `table` tells which of its programs will be tried as
    /// twins, which is announced if it comes with its `archive`, and so before it is in the root.
    pub(super) fn know(&mut self, facts: Facts, archive: Option<File>, table: &Table) {
        if facts.arch != self.format.arch(self.target) {
            return;
        }
        let mut sums = facts.sums;
        sums.retain(|sum| may_be_program(&sum.path));
        let is_tried = sums.iter().any(|sum| table.probes(&sum.path).next().is_some());
        let id = (facts.name, facts.version);
        self.known.entry(id).or_insert(Package {
            host: if sums.is_empty() { Host::None } else { Host::Unknown },
            sums,
            archive: archive.filter(|_| is_tried),
            compared: None,
            paired: Vec::new(),
        });
    }

    /// Whether counterparts of some have not been asked for.
    pub(super) fn are_wanted(&self) -> bool {
        self.known.values().any(|package| package.host == Host::Unknown)
    }

    /// Fetches and unpacks the counterparts of packages that are new, `most` of them. Returns how many there are now, and
    /// those that have none.
    ///
    /// # Errors
    ///
    /// When the downloader cannot be run.
    pub(super) fn fetch(
        &mut self,
        source: &Source,
        index: &Index,
        downloads: &mut Downloads,
        most: usize,
    ) -> io::Result<(usize, Vec<Id>)> {
        let new = |(id, package): (&Id, &Package)| (package.host == Host::Unknown).then(|| id.clone());
        let wanted: Vec<Id> = self.known.iter().filter_map(new).take(most).collect();
        if wanted.is_empty() {
            return Ok((0, Vec::new()));
        }
        // Of these it is yet to be seen whether they are in the root.
        self.database = None;
        let files = downloads.get(index, &source.trust(), &wanted)?;
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
                package.host = Host::Missing;
                without.push(id);
            }
        }
        Ok((count, without))
    }

    /// Unpacks the host's package `id`, and removes its archive. None when it is damaged.
    fn unpack(&self, (name, version): &Id, archive: &Path) -> Option<PathBuf> {
        // Versions may have colons, which paths may, too.
        let into = self.unpacked.join(format!("{name}_{version}"));
        let opened = fs_err::File::open(archive).ok()?;
        let unpacked = self.format.unpack(opened.into_parts().0, &into);
        let _ = fs_err::remove_file(archive);
        unpacked.ok().map(|()| into)
    }

    /// Programs of packages on their way into the root that will be tried as twins, since `table` has questions for them:
    /// their keys, by the names of packages. Each package is told once, when its counterpart is there.
    pub(super) fn announce(&mut self, table: &Table) -> Vec<(String, Vec<String>)> {
        let format = self.format;
        let is_tried = |path: &str| table.probes(path).next().is_some();
        let announced = self.known.iter_mut().filter_map(|((name, _), package)| {
            if !matches!(package.host, Host::At(_)) {
                return None;
            }
            let archive = package.archive.take()?;
            if !package.paired.is_empty() {
                return None;
            }
            // One that cannot be read is not waited for.
            let keys = format.keys(archive, is_tried).unwrap_or_default();
            (!keys.is_empty()).then(|| (name.clone(), keys))
        });
        announced.collect()
    }

    /// Names of packages that may have come into the root, changed or gone since this was last asked. Those that the
    /// root's package manager does not know of yet are among them only if `all` are asked for.
    pub(super) fn changed(&mut self, all: bool) -> BTreeSet<String> {
        let mut changed = BTreeSet::new();
        let Ok(root) = Root::open(&self.root) else {
            return changed;
        };
        let database = installed::database(&root, self.format);
        if database.is_some() && database == self.database && !all {
            return changed;
        }
        self.database = database;
        let asked = |(_, package): &(&Id, &mut Package)| package.host != Host::Unknown;
        for ((name, _), package) in self.known.iter_mut().filter(asked) {
            let state = installed::state(&root, self.format, self.target, name, &package.sums);
            if package.compared != Some(state) && (all || state != State::Unknown) {
                package.compared = Some(state);
                changed.insert(name.clone());
            }
        }
        changed
    }
}

const DIR: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// Opens a directory below `top`, on the way to which there is no link.
fn open_dir(top: &OwnedFd, dir: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(DIR)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    Ok(openat2(top, dir.as_ref(), how)?)
}
