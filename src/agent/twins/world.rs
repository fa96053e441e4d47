//! The directory of twins of a root, filled from pairs of packages while the root grows. Reads the root and packages;
//! writes only the directory of twins.
//!
//! A twin is published when every library it needs is available, and removed when one goes. Publishing is a rename, so
//! programs that start meanwhile see either all of a file or nothing.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    path::{Path, PathBuf},
};

use super::{
    choice::{Choice, Id, Item},
    elf::Kind,
    gather::{Found, Gathered, Gatherer},
    layout,
    ledger::{Ledger, State},
    pairs,
    root::Root,
    shelf::{Shelf, below_mount},
    side_by_side::side_by_side,
    table::Table,
    truth,
};
use kiln_records::{Account, Code, FailedTwin, Failure, TwinLevel, arch::Arch, twins::no_twins_between};

mod trials;

pub use super::gather::{Package, Refused};

/// The number of packages that are gathered at a time, and on how many threads.
const GATHERED: usize = 16;
const GATHERERS: usize = 2;

/// The result of adding packages.
#[derive(Debug, Default)]
pub struct Added {
    /// Programs to compare with the emulated ones before they are used.
    pub trials: Vec<Trial>,
    /// Files that both builds have but that cannot be twins.
    pub refused: Vec<Refused>,
}

/// A program whose answers have to be tried. [`World::accept`] publishes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// Its key.
    pub key: String,
    /// Its path in the root.
    pub path: String,
    /// Its package.
    pub package: String,
    /// The twin's path, seen from inside the root.
    pub twin: PathBuf,
}

/// How many files there are of each sort.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Programs that run as twins.
    pub programs: usize,
    /// Files that twins load by path.
    pub modules: usize,
    /// Shared libraries.
    pub libraries: usize,
    /// Programs whose trial is due.
    pub trials: usize,
}

/// The directory of twins of one root.
#[derive(Debug)]
pub struct World {
    shelf: Shelf,
    gatherer: Gatherer,
    loader: &'static str,
    versions: HashMap<String, String>,
    items: BTreeMap<Id, Item>,
    /// The published files.
    shown: Choice,
    /// Tables of character sets and other data below `lib/`, with their packages.
    data: BTreeMap<String, String>,
    /// Keys of programs to be tried once they are in the root, by package.
    expected: HashMap<String, Vec<String>>,
    /// Libraries that are no longer needed. They are removed with the next change, so that programs that are being
    /// started still find them.
    stale: Vec<String>,
    ledger: Ledger,
    next: Id,
}

impl World {
    /// Makes an empty directory of twins in `dir`, for the image whose root is `root`.
    ///
    /// `dir` must be empty and outside the root; it should be on the file system of the host's packages. `answers` is
    /// the library `answers.so`.
    ///
    /// # Errors
    ///
    /// `no_twins` when programs of `host` cannot replace those of `target`: caches that tools write in their own byte
    /// order and word size would be wrong.
    pub fn open(
        dir: &Path,
        root: &Path,
        answers: &Path,
        host: Arch,
        target: Arch,
        table: Table,
        level: TwinLevel,
    ) -> Result<Self, Failure> {
        if let Some(why) = no_twins_between(target, host) {
            return Err(Failure::new(Code::NoTwins, why));
        }
        let io = |error: io::Error| Failure::io("cannot make the directory of twins", &error);
        let shelf = Shelf::new(dir).map_err(io)?;
        for name in [
            "bin",
            "lib",
            "lib/gconv",
            "lib/gconv/gconv-modules.d",
            "loaders",
            "trial",
        ] {
            shelf.make_dir(name).map_err(io)?;
        }
        let (answers, facts) = (fs_err::read(answers).map_err(io)?, truth::facts(host, target));
        let files: [(&str, &[u8], u32); 5] = [
            (layout::ANSWERS, &answers, 0o644),
            (layout::TARGET, facts.as_bytes(), 0o644),
            (layout::LOOKS, &layout::NO_LOOKS.to_ne_bytes(), 0o644),
            // Programs of every user count.
            (layout::COUNTS, &[0; 16], 0o666),
            (layout::COMMANDS_GIVEN_UP, &[], 0o666),
        ];
        for (name, bytes, mode) in files {
            shelf.publish_bytes(below_mount(name), bytes, mode).map_err(io)?;
        }
        Ok(Self {
            shelf,
            gatherer: Gatherer {
                root: Root::open(root).map_err(io)?,
                host,
                target,
                table,
                level,
            },
            loader: pairs::loader_name(host),
            versions: HashMap::new(),
            items: BTreeMap::new(),
            shown: Choice::default(),
            data: BTreeMap::new(),
            expected: HashMap::new(),
            stale: Vec::new(),
            ledger: Ledger::default(),
            next: 0,
        })
    }

    /// The directory to be mounted at [`layout::MOUNT`] in the root.
    pub fn mounted(&self) -> &Path {
        self.shelf.mounted()
    }

    /// Publishes an empty record of writers, which twins then fill.
    pub fn record_writers(&self) -> Result<(), Failure> {
        // Programs of every user write it.
        let written = self.shelf.publish_bytes(below_mount(layout::WRITERS), &[], 0o666);
        written.map_err(|error| Failure::io("cannot make the record of writers", &error))
    }

    /// Publishes the commands that start over under the emulator at once.
    pub fn emulate(&self, commands: &[u8]) -> Result<(), Failure> {
        let written = self
            .shelf
            .publish_bytes(below_mount(layout::COMMANDS_EMULATED), commands, 0o644);
        written.map_err(|error| Failure::io("cannot list the commands for the emulator", &error))
    }

    /// Publishes the text that programs read in place of the host's `/proc/cpuinfo`.
    pub fn put_cpuinfo(&self, text: &[u8]) -> Result<(), Failure> {
        let written = self.shelf.publish_bytes(below_mount(layout::CPUINFO), text, 0o644);
        written.map_err(|error| Failure::io("cannot write the target's cpuinfo", &error))
    }

    /// The image's dynamic loaders among the files of these packages: key and path of each.
    pub fn loaders(&self, packages: &[Package]) -> Vec<(String, String)> {
        packages
            .iter()
            .flat_map(|package| self.gatherer.loaders(package))
            .collect()
    }

    /// Publishes what the loader with this key says of its version, so that it need not be started for it.
    pub fn put_loader(&self, key: &str, version: &[u8]) -> Result<(), Failure> {
        let name = in_dir(layout::LOADERS, key);
        let written = self.shelf.publish_bytes(&name, version, 0o644);
        written.map_err(|error| Failure::io("cannot write what the loader says", &error))
    }

    /// Publishes how often the root was compared with its packages. Twins that load a module without a twin wait for the
    /// second look after it.
    ///
    /// # Errors
    ///
    /// The directory of twins cannot be written.
    pub fn put_looks(&self, count: u64) -> Result<(), Failure> {
        let written = self
            .shelf
            .publish_bytes(below_mount(layout::LOOKS), &count.to_ne_bytes(), 0o644);
        written.map_err(|error| Failure::io("cannot count looks at the root", &error))
    }

    /// Adds packages, or more files of packages that were added before. A package replaces an earlier version of
    /// itself without a moment in which its libraries are missing.
    ///
    /// # Errors
    ///
    /// The directory of twins cannot be written. Malformed files are refused instead.
    pub fn add(&mut self, packages: &[Package]) -> Result<Added, Failure> {
        let mut added = Added::default();
        // In parts, since what was gathered is in memory.
        for some in packages.chunks(GATHERED) {
            let gathered = side_by_side(some.iter().collect(), GATHERERS, |package| {
                let mut refused = Vec::new();
                let gathered = self.gatherer.gather(package, &mut refused);
                (gathered, refused)
            });
            for (package, (gathered, mut refused)) in gathered {
                let add = gathered.and_then(|found| self.add_one(package, found, &mut refused));
                add.map_err(|error| Failure::io(format!("cannot make twins of {}", package.name), &error))?;
                added.refused.extend(refused);
            }
        }
        self.publish(&mut added.trials)?;
        for package in packages {
            self.settle(&package.name)?;
        }
        Ok(added)
    }

    /// Notes a package, or more files of one, that has no build for the host in its version. Nothing of it is published.
    pub fn note_emulated(&mut self, package: &str, version: &str, files: &[PathBuf]) {
        self.ledger.note_emulated(package, version, files);
    }

    /// Removes a package that is no longer in the root, with every twin that needs its libraries.
    pub fn remove(&mut self, package: &str) -> Result<(), Failure> {
        let forget = self.forget(package, &HashSet::new());
        forget.map_err(|error| Failure::io(format!("cannot remove the twins of {package}"), &error))?;
        self.publish(&mut Vec::new())
    }

    /// Counts the published files.
    pub fn census(&self) -> Census {
        let is_program = |id: &&Id| self.items.get(*id).is_some_and(|item| item.kind == Kind::Program);
        let programs = self.shown.bin.values().filter(is_program).count();
        Census {
            programs,
            modules: self.shown.bin.len() - programs,
            libraries: self.shown.lib.len(),
            trials: self.shown.trial.len(),
        }
    }

    /// Names of libraries for which files wait.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        self.shown.missing.iter().map(String::as_str)
    }

    /// Programs and modules that stay emulated because of a library, each with the reason.
    pub fn doubtful(&self) -> impl Iterator<Item = (&str, &str)> {
        let doubtful = self.shown.doubtful.iter();
        doubtful.map(|(path, why)| (path.as_str(), why.as_str()))
    }

    /// Gives these pairs no twins: they failed in earlier jobs. Before the first package is added.
    pub fn distrust(&mut self, failed: Vec<FailedTwin>) {
        self.ledger.distrust(failed);
    }

    /// An account of how each program and module of the packages runs now, and why. `lack` says why a package, of this
    /// name and version, has no twin; `ended`, why no more twins were made.
    pub fn account(&self, lack: impl Fn(&str, &str) -> Option<String>, ended: Option<String>) -> Account {
        let state = State {
            items: &self.items,
            shown: &self.shown,
            gatherer: &self.gatherer,
        };
        self.ledger.account(&state, lack, ended)
    }

    fn add_one(&mut self, package: &Package, mut found: Gathered, refused: &mut Vec<Refused>) -> io::Result<()> {
        let version = self.versions.insert(package.name.clone(), package.version.clone());
        if version.is_some_and(|version| version != package.version) {
            let data = found.data.iter().map(|(name, _)| name.as_str()).collect();
            self.forget(&package.name, &data)?;
            self.versions.insert(package.name.clone(), package.version.clone());
        }
        self.ledger.note(package, &mut found.items, refused, self.gatherer.host);
        let known = self.origins_of(&package.name);
        for Found { mut item, content } in found.items {
            if let Some(id) = known.get(&item.origin)
                && let Some(old) = self.items.get(id)
            {
                if item.key.is_none() || (old.key == item.key && item.paths.iter().all(|path| old.paths.contains(path)))
                {
                    continue;
                }
                if old.key == item.key {
                    item.paths.extend(old.paths.iter().cloned());
                    item.verdict = item.verdict.max(old.verdict);
                }
                self.items.remove(id);
                self.shelf.discard(*id)?;
            }
            let id = self.next;
            self.next += 1;
            // Only files with an x bit are ever started.
            let is_loader = item.library.as_ref().is_some_and(|library| library.name == self.loader);
            let mode = if item.kind == Kind::Program || is_loader {
                0o755
            } else {
                0o644
            };
            match content {
                Some(bytes) => self.shelf.keep_bytes(id, &bytes, mode)?,
                None => self.shelf.keep(id, &package.host.join(&item.origin), mode)?,
            }
            self.items.insert(id, item);
        }
        for (name, bytes) in found.data {
            self.shelf.publish_bytes(&name, &bytes, 0o644)?;
            self.data.insert(name, package.name.clone());
        }
        Ok(())
    }

    fn origins_of(&self, package: &str) -> HashMap<String, Id> {
        let items = self.items.iter().filter(|(_, item)| item.package == package);
        items.map(|(id, item)| (item.origin.clone(), *id)).collect()
    }

    /// Removes a package, except for the data that is about to be replaced.
    fn forget(&mut self, package: &str, replaced: &HashSet<&str>) -> io::Result<()> {
        self.versions.remove(package);
        self.ledger.forget(package);
        let items: Vec<Id> = self.origins_of(package).into_values().collect();
        for id in items {
            self.items.remove(&id);
            self.shelf.discard(id)?;
        }
        let is_gone = |name: &str, owner: &str| owner == package && !replaced.contains(name);
        for (name, _) in self.data.extract_if(.., |name, owner| is_gone(name, owner)) {
            self.shelf.withdraw(&name)?;
        }
        Ok(())
    }

    /// Updates the directory to the files that can run now.
    fn publish(&mut self, trials: &mut Vec<Trial>) -> Result<(), Failure> {
        let wanted = Choice::among(&self.items, self.loader);
        let show = self.show(&wanted);
        show.map_err(|error| Failure::io("cannot publish twins", &error))?;
        for (key, id) in &wanted.trial {
            if self.shown.trial.get(key) != Some(id)
                && let Some(item) = self.items.get(id)
            {
                trials.push(Trial {
                    key: key.clone(),
                    path: item.paths.first().cloned().unwrap_or_default(),
                    package: item.package.clone(),
                    twin: Path::new(layout::TRIAL).join(key),
                });
            }
        }
        self.shown = wanted;
        Ok(())
    }

    fn show(&mut self, wanted: &Choice) -> io::Result<()> {
        for name in std::mem::take(&mut self.stale) {
            if !wanted.lib.contains_key(&name) {
                self.shelf.withdraw(&in_lib(&name))?;
            }
        }
        // Programs are removed before their libraries, and published after them.
        let programs = [
            (layout::BIN, &self.shown.bin, &wanted.bin),
            (layout::TRIAL, &self.shown.trial, &wanted.trial),
        ];
        let [(dir, shown, ends), trials] = programs;
        for key in shown.keys().filter(|key| !ends.contains_key(*key)) {
            self.shelf.withdraw(&in_dir(dir, key))?;
        }
        for (name, id) in &wanted.lib {
            if self.shown.lib.get(name) != Some(id) {
                self.shelf.publish(*id, &in_lib(name))?;
                if name == self.loader {
                    self.shelf.publish(*id, below_mount(layout::LOADER))?;
                }
            }
        }
        for (dir, shown, wanted) in programs {
            for (key, id) in wanted.iter().filter(|(key, id)| shown.get(*key) != Some(id)) {
                self.shelf.publish(*id, &in_dir(dir, key))?;
            }
        }
        // A program that waits for the end of a trial looks for the twin next.
        let (dir, shown, goes_on) = trials;
        for key in shown.keys().filter(|key| !goes_on.contains_key(*key)) {
            self.shelf.withdraw(&in_dir(dir, key))?;
        }
        let gone = self.shown.lib.keys().filter(|name| !wanted.lib.contains_key(*name));
        self.stale.extend(gone.cloned());
        Ok(())
    }
}

fn in_dir(dir: &str, name: &str) -> String {
    format!("{}/{name}", below_mount(dir))
}

fn in_lib(name: &str) -> String {
    in_dir(layout::LIB, name)
}
