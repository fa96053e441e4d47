//! Tracks the packages that are, or will soon be, in the root, and their counterparts for the host. Reads archives and
//! the root, and unpacks packages into its own directory.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::OsString,
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    time::SystemTime,
};

use kiln_records::arch::Arch;
use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};

use super::{
    download::Downloads,
    facts::{Facts, Sum},
    format::Format,
    index::{Id, Index, Lack},
    installed::{self, State},
    side_by_side::side_by_side,
    source::Source,
    unchanged::may_be_program,
};
use crate::{
    digest,
    twins::{root::Root, table::Table},
};

/// The number of packages unpacked at the same time.
const UNPACKERS: usize = 2;

/// A package of the target.
#[derive(Debug)]
pub(super) struct Package {
    /// Digests of files that may be programs.
    pub(super) sums: Vec<Sum>,
    pub(super) host: Host,
    /// Its archive, until its programs that will be tried as twins have been [announced](Packages::announce); `None`
    /// if it has none.
    archive: Option<File>,
    /// SHA-256 of its archive, if that was seen.
    sha256: Option<String>,
    /// Its state in the root at the last comparison.
    compared: Option<State>,
    /// Its files that were passed on to the directory of twins.
    pub(super) paired: Vec<PathBuf>,
}

/// The state of the same package for the host.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// It has not been looked for yet.
    Unknown,
    /// It is not needed.
    None,
    /// There is no package that would certainly be its twin.
    Missing,
    /// It is unpacked in this directory.
    At(PathBuf),
}

/// All packages seen so far.
#[derive(Debug)]
pub(super) struct Packages {
    root: PathBuf,
    target: Arch,
    format: Format,
    /// The directory for the host's unpacked packages.
    unpacked: PathBuf,
    /// Names of archives already examined.
    seen: HashSet<OsString>,
    /// The time of the last change of the package database.
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

    /// Looks for new packages of the target in the `index`. `table` decides which of their programs will be tried as
    /// twins.
    pub(super) fn look(&mut self, index: &Index, table: &Table) {
        let (sandboxs, roots, depth) = self.format.archives();
        for (top, dirs) in [(Path::new("/"), sandboxs), (&self.root.clone(), roots)] {
            for dir in dirs {
                // These directories come and go.
                let top = open(top, DIR, Mode::empty());
                if let Ok(dir) = top.map_err(io::Error::from).and_then(|top| open_dir(&top, dir)) {
                    let _ = self.look_at(&dir, depth, index, table);
                }
            }
        }
    }

    /// Examines a directory, and its subdirectories down to `depth`.
    fn look_at(&mut self, dir: &OwnedFd, depth: usize, index: &Index, table: &Table) -> io::Result<()> {
        let ending = self.format.ending(self.target);
        let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        let opened = Root::open(&path)?;
        for entry in fs_err::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name();
            if depth > 0 && entry.file_type()?.is_dir() {
                if let Ok(dir) = open_dir(dir, &name) {
                    let _ = self.look_at(&dir, depth - 1, index, table);
                }
                continue;
            }
            if !name.to_string_lossy().ends_with(&ending) || self.seen.contains(&name) {
                continue;
            }
            let file = opened.file(Path::new(&name)).ok().flatten();
            // An unreadable archive is examined again later.
            let Some((file, status)) = file else { continue };
            let Ok(facts) = self.format.facts(file.try_clone()?) else {
                continue;
            };
            // Nor can an archive be told from others before all of it is there.
            let id = (facts.name.clone(), facts.version.clone());
            if index.is_arriving(&id, status.len()) {
                continue;
            }
            let (_, sha256) = digest::sha256_of(&PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())))?;
            self.seen.insert(name);
            self.know(facts, Some((file, sha256)), table);
        }
        Ok(())
    }

    /// Records a package, if it is of the target's architecture. `table` decides which of its programs will be tried
    /// as twins. With its `archive`, these are announced, and so before the package is in the root. The archive comes
    /// with its SHA-256.
    pub(super) fn know(&mut self, facts: Facts, archive: Option<(File, String)>, table: &Table) {
        if facts.arch != self.format.arch(self.target) {
            return;
        }
        let mut sums = facts.sums;
        sums.retain(|sum| may_be_program(&sum.path));
        let is_tried = sums.iter().any(|sum| table.probes(&sum.path).next().is_some());
        let id = (facts.name, facts.version);
        let (archive, sha256) = archive.unzip();
        self.known.entry(id).or_insert(Package {
            host: if sums.is_empty() { Host::None } else { Host::Unknown },
            sums,
            archive: archive.filter(|_| is_tried),
            sha256,
            compared: None,
            paired: Vec::new(),
        });
    }

    /// Whether there are packages whose counterparts have not been looked for.
    pub(super) fn are_wanted(&self) -> bool {
        self.known.values().any(|package| package.host == Host::Unknown)
    }

    /// Fetches and unpacks the counterparts of up to `most` new packages. Returns how many it got, and the packages
    /// without a counterpart, with the reason.
    ///
    /// # Errors
    ///
    /// The downloader cannot be run.
    pub(super) fn fetch(
        &mut self,
        source: &Source,
        index: &Index,
        downloads: &mut Downloads,
        most: usize,
    ) -> io::Result<(usize, Vec<(Id, Lack)>)> {
        let new = |(_, package): &(&Id, &Package)| package.host == Host::Unknown;
        let wanted = self.known.iter().filter(new).take(most);
        let twin = |(id, package): (&Id, &Package)| (id.clone(), index.twin(id, package.sha256.as_deref()));
        let wanted: Vec<_> = wanted.map(twin).collect();
        if wanted.is_empty() {
            return Ok((0, Vec::new()));
        }
        // Whether these are in the root has yet to be checked.
        self.database = None;
        let offers: Vec<_> = wanted.iter().filter_map(|(_, twin)| twin.ok()).collect();
        let mut files = downloads.get(&source.trust(), &offers)?.into_iter();
        let wanted = wanted.into_iter().map(|(id, twin)| {
            let file = twin.and_then(|_| files.next().flatten().ok_or(Lack::Missing));
            (id, file)
        });
        let unpacked = side_by_side(wanted.collect(), UNPACKERS, |(id, file)| {
            self.unpack(id, file.as_ref().ok()?)
        });
        let (mut count, mut without) = (0, Vec::new());
        for ((id, file), host) in unpacked {
            let Some(package) = self.known.get_mut(&id) else {
                continue;
            };
            if let Some(dir) = host {
                package.host = Host::At(dir);
                count += 1;
            } else {
                package.host = Host::Missing;
                without.push((id, file.err().unwrap_or(Lack::Missing)));
            }
        }
        Ok((count, without))
    }

    /// Unpacks the host's package `id`, and removes its archive. `None` when it is damaged.
    fn unpack(&self, (name, version): &Id, archive: &Path) -> Option<PathBuf> {
        // Versions may contain colons, and so may paths.
        let into = self.unpacked.join(format!("{name}_{version}"));
        let opened = fs_err::File::open(archive).ok()?;
        let unpacked = self.format.unpack(opened.into_parts().0, &into);
        let _ = fs_err::remove_file(archive);
        unpacked.ok().map(|()| into)
    }

    /// Programs of packages on their way into the root that will be tried as twins, since `table` has questions for
    /// them: their keys, by package name. Each package is returned once, when its counterpart is there.
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
            // An unreadable archive is not waited for.
            let keys = format.keys(archive, is_tried).unwrap_or_default();
            (!keys.is_empty()).then(|| (name.clone(), keys))
        });
        announced.collect()
    }

    /// Names of packages that may have been installed, changed or removed since the last call. Packages that the
    /// root's package manager does not know yet are included only with `all`.
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

/// Opens a directory below `top`; there must be no link on the way.
fn open_dir(top: &OwnedFd, dir: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(DIR)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    Ok(openat2(top, dir.as_ref(), how)?)
}
