//! Tracks the packages that are, or will soon be, in the root, and their counterparts for the host. Reads archives and
//! the root, and unpacks packages into its own directory.

use kiln_records::PackageDigest;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::OsString,
    fs::File,
    io,
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
    rc::Rc,
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
    kept::{Build, Counterpart},
    pairs::counterparts,
    side_by_side::side_by_side,
    source::Source,
    unchanged::may_be_program,
};
use crate::{
    package_digest,
    twins::{
        root::{Root, by_fd},
        table::Table,
    },
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
    digests: Option<Vec<PackageDigest>>,
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
    Missing(Lack),
    /// It is unpacked in the directory `dir`, and has this `version`.
    At { dir: PathBuf, version: String },
}

/// All packages seen so far.
#[derive(Debug)]
pub(super) struct Packages {
    root: PathBuf,
    target: Arch,
    host: Arch,
    format: Format,
    /// The directory for the host's unpacked packages.
    unpacked: PathBuf,
    /// Names of archives already examined.
    seen: HashSet<OsString>,
    /// The time of the last change of the package database.
    database: Option<SystemTime>,
    pub(super) known: BTreeMap<Id, Package>,
    /// Whether a counterpart that is listed could not be had.
    has_failed: bool,
}

impl Packages {
    pub(super) fn new(root: &Path, target: Arch, host: Arch, format: Format, unpacked: PathBuf) -> Self {
        Self {
            root: root.to_owned(),
            target,
            host,
            format,
            unpacked,
            seen: HashSet::new(),
            database: None,
            known: BTreeMap::new(),
            has_failed: false,
        }
    }

    /// The format of the packages.
    pub(super) const fn format(&self) -> Format {
        self.format
    }

    /// Looks for new packages of the target in the `index`. `table` decides which of their programs will be tried as
    /// twins.
    pub(super) fn look(&mut self, index: &Index, table: &Table) {
        for (dir, name) in self.unseen() {
            // An unreadable archive is examined again later.
            let _ = self.examine(&dir, name, index, table);
        }
    }

    /// Whether there are archives that were not examined.
    pub(super) fn are_arriving(&self) -> bool {
        !self.unseen().is_empty()
    }

    /// The archives that were not examined: the directory and the name of each.
    fn unseen(&self) -> Vec<(Rc<Root>, OsString)> {
        let (sandboxs, roots, depth) = self.format.archives();
        let mut found = Vec::new();
        for (top, dirs) in [(Path::new("/"), sandboxs), (&self.root, roots)] {
            for dir in dirs {
                // These directories come and go.
                let top = open(top, DIR, Mode::empty());
                if let Ok(dir) = top.map_err(io::Error::from).and_then(|top| open_dir(&top, dir)) {
                    let _ = self.unseen_in(&dir, depth, &mut found);
                }
            }
        }
        found
    }

    /// Those in a directory, and in its subdirectories down to `depth`.
    fn unseen_in(&self, dir: &OwnedFd, depth: usize, found: &mut Vec<(Rc<Root>, OsString)>) -> io::Result<()> {
        let ending = self.format.ending(self.target);
        let path = by_fd(dir);
        let opened = Rc::new(Root::open(&path)?);
        for entry in fs_err::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name();
            if depth > 0 && entry.file_type()?.is_dir() {
                if let Ok(dir) = open_dir(dir, &name) {
                    let _ = self.unseen_in(&dir, depth - 1, found);
                }
            } else if name.to_string_lossy().ends_with(&ending) && !self.seen.contains(&name) {
                found.push((Rc::clone(&opened), name));
            }
        }
        Ok(())
    }

    fn examine(&mut self, dir: &Root, name: OsString, index: &Index, table: &Table) -> io::Result<()> {
        let Some((file, status)) = dir.file(Path::new(&name))? else {
            return Ok(());
        };
        let facts = self.format.facts(file.try_clone()?)?;
        // Nor can an archive be told from others before all of it is there.
        let id = (facts.name.clone(), facts.version.clone());
        if !index.is_arriving(&id, status.len()) {
            let digests = package_digest::of_package(&by_fd(&file), index.kinds(&id))?;
            self.seen.insert(name);
            self.know(facts, Some((file, digests)), table);
        }
        Ok(())
    }

    /// Records a package, if it is of the target's architecture. `table` decides which of its programs will be tried
    /// as twins. With its `archive`, these are announced, and so before the package is in the root. The archive comes
    /// with the digests that it may be listed by.
    pub(super) fn know(&mut self, facts: Facts, archive: Option<(File, Vec<PackageDigest>)>, table: &Table) {
        if facts.arch != self.format.arch(self.target) {
            return;
        }
        let mut sums = facts.sums;
        sums.retain(|sum| may_be_program(&sum.path));
        let is_tried = sums.iter().any(|sum| table.probes(&sum.path).next().is_some());
        let id = (facts.name, facts.version);
        let (archive, digests) = archive.unzip();
        self.known.entry(id).or_insert(Package {
            host: if sums.is_empty() { Host::None } else { Host::Unknown },
            sums,
            archive: archive.filter(|_| is_tried),
            digests,
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
        let twin = |(id, package): (&Id, &Package)| (id.clone(), index.twin(id, package.digests.as_deref()));
        let wanted: Vec<_> = wanted.map(twin).collect();
        if wanted.is_empty() {
            return Ok((0, Vec::new()));
        }
        // Whether these are in the root has yet to be checked.
        self.database = None;
        let twins = wanted.iter().filter_map(|(_, twin)| twin.ok());
        let offers: Vec<_> = twins.map(|twin| twin.offer).collect();
        let mut files = downloads.get(&source.trust(), &offers)?.into_iter();
        let wanted = wanted.into_iter().map(|(id, twin)| {
            let twin = twin.map(|twin| (files.next().flatten(), twin.version));
            (id, twin)
        });
        let unpacked = side_by_side(wanted.collect(), UNPACKERS, |(id, twin)| {
            let (file, version) = twin.as_ref().map_err(|lack| *lack)?;
            self.unpack(id, version, file.as_deref().ok_or(Lack::Missing)?)
        });
        let (mut count, mut without) = (0, Vec::new());
        for ((id, twin), host) in unpacked {
            let Some(package) = self.known.get_mut(&id) else {
                continue;
            };
            match host {
                Ok(host) => {
                    package.host = host;
                    count += 1;
                }
                Err(lack) => {
                    self.has_failed |= twin.is_ok() && lack == Lack::Missing;
                    package.host = Host::Missing(lack);
                    without.push((id, lack));
                }
            }
        }
        Ok((count, without))
    }

    /// Unpacks the host's package of this `version` for that of the target `id`, and removes its archive.
    ///
    /// # Errors
    ///
    /// It is damaged, or it is a rebuild with other files.
    fn unpack(&self, id: &Id, version: &str, archive: &Path) -> Result<Host, Lack> {
        let (name, of_target) = id;
        let sums = self.known.get(id).map_or(&[][..], |package| &package.sums);
        // Versions may contain colons, and so may paths.
        let dir = self.unpacked.join(format!("{name}_{of_target}"));
        let unpack = || {
            let (file, _) = fs_err::File::open(archive)?.into_parts();
            if version != of_target && !self.has_files_of(sums, file.try_clone()?)? {
                return Ok(false);
            }
            self.format.unpack(file, sums, &dir).map(|()| true)
        };
        let unpacked: io::Result<bool> = unpack();
        let _ = fs_err::remove_file(archive);
        let version = version.to_owned();
        match unpacked {
            Ok(true) => Ok(Host::At { dir, version }),
            Ok(false) => Err(Lack::Rebuilt),
            Err(_) => Err(Lack::Missing),
        }
    }

    /// Whether a rebuild for the host has the files of the target's package with these `sums`: all that may be programs.
    fn has_files_of(&self, sums: &[Sum], rebuild: File) -> io::Result<bool> {
        let facts = self.format.facts(rebuild)?;
        let mut of_host: BTreeSet<_> = facts
            .sums
            .into_iter()
            .map(|sum| sum.path)
            .filter(|path| may_be_program(path))
            .collect();
        let has = |sum: &Sum| {
            let found = counterparts(&sum.path, self.target, self.host).find(|path| of_host.remove(path));
            found.is_some()
        };
        Ok(sums.iter().all(has) && of_host.is_empty())
    }

    /// The counterparts of all packages, as far as they are needed. `None` if some of them are not known: these may be had
    /// another time.
    pub(super) fn counterparts(&self) -> Option<Vec<Counterpart>> {
        let mut counterparts = Vec::new();
        for ((name, version), package) in &self.known {
            let found = match &package.host {
                Host::Unknown => return None,
                Host::None => continue,
                Host::Missing(lack) => Err(*lack),
                Host::At { dir, version } => Ok(Build {
                    dir: dir.file_name()?.to_str()?.to_owned(),
                    version: version.clone(),
                }),
            };
            counterparts.push(Counterpart {
                name: name.clone(),
                version: version.clone(),
                found,
            });
        }
        (!self.has_failed).then_some(counterparts)
    }

    /// Takes over the counterparts of known packages, which are unpacked already. Returns how many of them there are, and the
    /// packages without a counterpart, with the reason.
    pub(super) fn take_over(&mut self, counterparts: Vec<Counterpart>) -> (usize, Vec<(Id, Lack)>) {
        let (mut count, mut without) = (0, Vec::new());
        for Counterpart { name, version, found } in counterparts {
            let id = (name, version);
            let Some(package) = self.known.get_mut(&id).filter(|it| it.host == Host::Unknown) else {
                continue;
            };
            match found {
                Ok(Build { dir, version }) if is_name(&dir) && self.unpacked.join(&dir).is_dir() => {
                    let dir = self.unpacked.join(dir);
                    package.host = Host::At { dir, version };
                    count += 1;
                }
                // It is looked for.
                Ok(_) => {}
                Err(lack) => {
                    package.host = Host::Missing(lack);
                    without.push((id, lack));
                }
            }
        }
        self.database = None;
        (count, without)
    }

    /// Programs of packages on their way into the root that will be tried as twins, since `table` has questions for
    /// them: their keys, by package name. Each package is returned once, when its counterpart is there.
    pub(super) fn announce(&mut self, table: &Table) -> Vec<(String, Vec<String>)> {
        let format = self.format;
        let is_tried = |path: &str| table.probes(path).next().is_some();
        let announced = self.known.iter_mut().filter_map(|((name, _), package)| {
            if !matches!(package.host, Host::At { .. }) {
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

/// Whether this is the name of a file, and not a path.
fn is_name(text: &str) -> bool {
    let mut parts = Path::new(text).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == text)
}

const DIR: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// Opens a directory below `top`; there must be no link on the way.
fn open_dir(top: &OwnedFd, dir: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(DIR)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    Ok(openat2(top, dir.as_ref(), how)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twins::facts::Digest;

    #[test]
    fn counterparts_are_taken_over_as_far_as_they_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let (root, unpacked) = (dir.path().join("root"), dir.path().join("host"));
        let table = Table::built_in().unwrap();
        let packages = || {
            let mut packages = Packages::new(&root, Arch::Aarch64, Arch::X86_64, Format::Deb, unpacked.clone());
            for (name, program) in [
                ("a", "bin/a"),
                ("b", "bin/b"),
                ("c", "bin/c"),
                ("d", "bin/d"),
                ("doc", "share/x"),
            ] {
                let facts = Facts {
                    name: name.to_owned(),
                    version: "1".to_owned(),
                    arch: "arm64".to_owned(),
                    sums: vec![Sum {
                        path: program.to_owned(),
                        digest: Digest::Md5([0; 16]),
                    }],
                };
                packages.know(facts, None, &table);
            }
            packages
        };
        let counterpart = |name: &str, found: Result<&str, Lack>| Counterpart {
            name: name.to_owned(),
            version: "1".to_owned(),
            found: found.map(|dir| Build {
                dir: dir.to_owned(),
                version: "1".to_owned(),
            }),
        };
        fs_err::create_dir_all(unpacked.join("a_1")).unwrap();
        fs_err::create_dir_all(dir.path().join("other")).unwrap();
        let mut some = packages();
        assert_eq!(some.counterparts(), None);
        let taken = some.take_over(vec![
            counterpart("a", Ok("a_1")),
            counterpart("b", Err(Lack::Stranger)),
            counterpart("c", Ok("../other")),
            counterpart("d", Ok("d_1")),
            counterpart("doc", Ok("a_1")),
            counterpart("unknown", Ok("a_1")),
        ]);
        assert_eq!(taken, (1, vec![(("b".to_owned(), "1".to_owned()), Lack::Stranger)]));
        let host = |name: &str| &some.known[&(name.to_owned(), "1".to_owned())].host;
        let (dir, version) = (unpacked.join("a_1"), "1".to_owned());
        assert_eq!(*host("a"), Host::At { dir, version });
        assert_eq!(
            (host("c"), host("d"), host("doc")),
            (&Host::Unknown, &Host::Unknown, &Host::None)
        );
        // These are looked for.
        assert!(some.are_wanted() && some.counterparts().is_none());

        let mut all = packages();
        let known = vec![
            counterpart("a", Ok("a_1")),
            counterpart("b", Err(Lack::Missing)),
            counterpart("c", Err(Lack::Missing)),
            counterpart("d", Err(Lack::Ambiguous)),
        ];
        all.take_over(known.clone());
        assert_eq!(all.counterparts(), Some(known));
        all.has_failed = true;
        assert_eq!(all.counterparts(), None, "another time, they may be there");
    }

    #[test]
    fn a_rebuild_has_the_files_of_the_package() {
        let dir = tempfile::tempdir().unwrap();
        let packages = Packages::new(
            dir.path(),
            Arch::Aarch64,
            Arch::X86_64,
            Format::Deb,
            dir.path().join("host"),
        );
        let sum = |path: &str| format!("{}  {path}\n", "0".repeat(32));
        let has = |of_target: &[&str], of_host: &[&str]| {
            let control = dir.path().join("grep/DEBIAN");
            fs_err::create_dir_all(&control).unwrap();
            let text = "Package: grep\nVersion: 3.11-4\nArchitecture: amd64\nMaintainer: x\nDescription: y\n";
            fs_err::write(control.join("control"), text).unwrap();
            let sums: String = of_host.iter().map(|path| sum(path)).collect();
            fs_err::write(control.join("md5sums"), sums).unwrap();
            let archive = dir.path().join("grep.deb");
            let mut build = std::process::Command::new("dpkg-deb");
            build.arg("--build").arg(dir.path().join("grep")).arg(&archive);
            assert!(build.output().unwrap().status.success());
            let sums: Vec<_> = of_target
                .iter()
                .filter_map(|path| Sum::parse(sum(path).trim_end()))
                .collect();
            packages
                .has_files_of(&sums, fs_err::File::open(archive).unwrap().into_parts().0)
                .unwrap()
        };
        let of_target = ["usr/bin/grep", "usr/lib/aarch64-linux-gnu/libx.so.1"];
        let of_host = ["usr/bin/grep", "usr/lib/x86_64-linux-gnu/libx.so.1", "usr/share/doc/x"];
        assert!(has(&of_target, &of_host));
        assert!(!has(&of_target[..1], &of_host), "a library more");
        assert!(!has(&of_target, &of_host[..1]), "a library less");
        assert!(!has(
            &of_target,
            &["usr/bin/grep", "usr/lib/x86_64-linux-gnu/libx.so.2"]
        ));
    }

    #[test]
    fn an_archive_that_was_not_examined_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let mut packages = Packages::new(
            root.path(),
            Arch::Aarch64,
            Arch::X86_64,
            Format::Deb,
            root.path().join("host"),
        );
        assert!(!packages.are_arriving());
        let archives = root.path().join("var/cache/apt/archives");
        fs_err::create_dir_all(archives.join("partial")).unwrap();
        for name in ["lock", "partial/x_1_arm64.deb", "x_1_all.deb"] {
            fs_err::write(archives.join(name), "").unwrap();
        }
        assert!(!packages.are_arriving());
        fs_err::write(archives.join("x_1_arm64.deb"), "").unwrap();
        assert!(packages.are_arriving());
        packages.seen.insert("x_1_arm64.deb".into());
        assert!(!packages.are_arriving());
    }
}
