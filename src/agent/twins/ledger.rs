//! Notes why programs of a root have no twins, and gives the [`Account`] of all of them in the end. Reads the root.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::{Path, PathBuf},
};

use kiln_records::{
    Account, FailedTwin, TwinLevel,
    account::{self, Ground, Reason},
    arch::Arch,
};

use super::{
    choice::{Choice, Id, Item, Verdict},
    elf::{Elf, Kind},
    gather::{Found, Gatherer, Package, Refused},
    table::Table,
};

/// What is known of the packages of a root, by name.
#[derive(Debug, Default)]
pub struct Ledger {
    packages: BTreeMap<String, Known>,
    /// Keys of programs that answer otherwise than under the emulator.
    differ: HashSet<String>,
    /// Pairs that failed in earlier jobs.
    failed: Vec<FailedTwin>,
}

/// What is known of a package.
#[derive(Debug, Default)]
struct Known {
    version: String,
    /// Its files in the root.
    files: Vec<PathBuf>,
    /// Why these have no twin.
    refused: BTreeMap<String, Reason>,
    /// Whether there is a build for the host.
    has_twin: bool,
}

/// The state of the directory of twins.
pub(super) struct State<'a> {
    pub(super) items: &'a BTreeMap<Id, Item>,
    pub(super) shown: &'a Choice,
    pub(super) gatherer: &'a Gatherer,
}

impl Ledger {
    /// Learns pairs that must not be used.
    pub(super) fn distrust(&mut self, failed: Vec<FailedTwin>) {
        self.failed = failed;
    }

    /// Notes a package, or more files of one, and what was refused of it. Pairs that failed earlier are refused, too.
    pub(super) fn note(&mut self, package: &Package, found: &mut [Found], refused: &mut Vec<Refused>, host: Arch) {
        for Found { item, .. } in found {
            let is_it = |failed: &&FailedTwin| {
                let pair = &failed.pair;
                (pair.package.as_str(), pair.version.as_str(), pair.host) == (&package.name, &package.version, host)
                    && item.paths.contains(&pair.path)
            };
            if let Some(FailedTwin { pair, job, code, .. }) = self.failed.iter().find(is_it) {
                let why = format!("in job {job} ({code}), and the build succeeded without it");
                refused.push(Refused::new(&pair.path, Ground::Failed, &why));
                item.verdict = Verdict::Refused;
            }
        }
        let known = self.packages.entry(package.name.clone()).or_default();
        known.version.clone_from(&package.version);
        known.files.clone_from(&package.files);
        known.has_twin = true;
        let files: HashSet<&str> = package.files.iter().filter_map(|path| path.to_str()).collect();
        let own = refused.iter().filter(|refused| files.contains(refused.path.as_str()));
        known
            .refused
            .extend(own.map(|refused| (refused.path.clone(), because_of(refused))));
    }

    /// Notes a package without a twin.
    pub(super) fn note_emulated(&mut self, package: &str, version: &str, files: &[PathBuf]) {
        let known = Known {
            version: version.to_owned(),
            files: files.to_owned(),
            ..Known::default()
        };
        self.packages.insert(package.to_owned(), known);
    }

    /// Notes that the program with this key answers otherwise than under the emulator.
    pub(super) fn note_difference(&mut self, key: &str) {
        self.differ.insert(key.to_owned());
    }

    /// Forgets a package that is no longer in the root.
    pub(super) fn forget(&mut self, package: &str) {
        self.packages.remove(package);
    }

    /// The account of all programs and modules. `lack` says why a package, of this name and version, has no twin.
    pub(super) fn account(
        &self,
        state: &State<'_>,
        lack: impl Fn(&str, &str) -> Option<String>,
        ended: Option<String>,
    ) -> Account {
        let mut rows = Vec::new();
        let unavailable = unavailable(state);
        let refused: HashMap<&str, &Item> = state
            .items
            .values()
            .filter(|item| item.verdict == Verdict::Refused)
            .filter_map(|item| Some((item.key.as_deref()?, item)))
            .collect();
        let mut told: HashSet<&str> = HashSet::new();
        for (id, item) in state.items {
            told.extend(item.paths.iter().map(String::as_str));
            for path in item.paths.iter().filter(|_| item.library.is_none()) {
                let reason = self.of_item(state, *id, item, path, &refused, &unavailable);
                rows.push((path.clone(), self.package(&item.package), reason));
            }
        }
        for (name, known) in &self.packages {
            let paths = known.files.iter().filter_map(|path| path.to_str());
            for path in paths.filter(|path| !told.contains(path)) {
                let Some(is_static) = state.gatherer.is_program(path) else {
                    continue;
                };
                let reason = match known.refused.get(path) {
                    Some(reason) => reason.clone(),
                    None if !known.has_twin => {
                        because(Ground::PackageMissing, lack(name, &known.version).unwrap_or_default())
                    }
                    None if is_static => because(Ground::Static, ""),
                    None => because(Ground::FileMissing, ""),
                };
                rows.push((path.to_owned(), self.package(name), reason));
            }
        }
        Account::of(state.gatherer.host, rows, ended)
    }

    fn package(&self, name: &str) -> account::Package {
        let known = self.packages.get(name);
        account::Package {
            name: name.to_owned(),
            version: known.map(|known| known.version.clone()).unwrap_or_default(),
        }
    }

    /// Why the file at `path` of an item was run as it was.
    fn of_item(
        &self,
        state: &State<'_>,
        id: Id,
        item: &Item,
        path: &str,
        refused: &HashMap<&str, &Item>,
        unavailable: &HashMap<Id, &str>,
    ) -> Reason {
        let State { shown, gatherer, .. } = state;
        let key = item.key.as_deref().unwrap_or_default();
        if shown.bin.contains_key(key) {
            return of_twin(item, path, &gatherer.table);
        }
        if let Some(refused) = refused.get(key) {
            return self.of_refused(refused, key, &gatherer.table, gatherer.level);
        }
        let of_any = |whys: &BTreeMap<String, String>| item.paths.iter().find_map(|path| whys.get(path).cloned());
        if let Some(why) = of_any(&shown.doubtful) {
            because(Ground::Library, why)
        } else if shown.trial.contains_key(key) {
            because(Ground::Untried, "")
        } else {
            because(
                Ground::LibraryMissing,
                unavailable.get(&id).copied().unwrap_or_default(),
            )
        }
    }

    fn of_refused(&self, item: &Item, key: &str, table: &Table, level: TwinLevel) -> Reason {
        let known = self.packages.get(&item.package);
        if let Some(reason) = known.and_then(|known| item.paths.iter().find_map(|path| known.refused.get(path))) {
            return reason.clone();
        }
        if self.differ.contains(key) {
            return because(Ground::Answers, "");
        }
        for path in &item.paths {
            let why = || table.why(path, &item.package).unwrap_or_default();
            match table.level_of(path, &item.package) {
                None => return because(Ground::Never, why()),
                Some(needed) if needed > level => return because(Ground::Level, needed.name()),
                Some(_) => {}
            }
        }
        because(Ground::Never, "")
    }
}

fn because_of(refused: &Refused) -> Reason {
    let Refused { ground, why, .. } = refused;
    // That it has none is the whole reason.
    because(*ground, if *ground == Ground::NoBuildId { "" } else { why })
}

fn because(ground: Ground, detail: impl Into<String>) -> Reason {
    let detail = detail.into();
    Reason { ground, detail }
}

/// Why the file at `path` is a twin.
fn of_twin(item: &Item, path: &str, table: &Table) -> Reason {
    if item.is_examined {
        return because(Ground::Examined, "");
    }
    because(Ground::Entry, table.why(path, &item.package).unwrap_or_default())
}

/// The items that need a library which is missing, directly or indirectly, each with its name.
fn unavailable<'a>(state: &State<'a>) -> HashMap<Id, &'a str> {
    let missing = &state.shown.missing;
    let mut users: HashMap<&str, Vec<Id>> = HashMap::new();
    for (id, item) in state.items {
        for name in &item.needed {
            users.entry(name).or_default().push(*id);
        }
    }
    let mut found: HashMap<Id, &str> = HashMap::new();
    for name in missing {
        let (mut next, mut seen) = (vec![name.as_str()], BTreeSet::new());
        while let Some(library) = next.pop() {
            for id in users.get(library).into_iter().flatten() {
                found.entry(*id).or_insert(name);
                let user = state.items.get(id).and_then(|item| item.library.as_ref());
                next.extend(user.map(|user| user.name.as_str()).filter(|user| seen.insert(*user)));
            }
        }
    }
    found
}

impl Gatherer {
    /// Whether the file of the root is a program that is linked statically; `None` if it is neither a program nor a
    /// module.
    fn is_program(&self, path: &str) -> Option<bool> {
        let (file, _) = self.root.file(Path::new(path)).ok()??;
        match Elf::read(&file, self.target.elf_machine()) {
            Ok(Some(elf)) => (elf.kind == Kind::Program || elf.soname.is_none()).then_some(false),
            Ok(None) => Some(true),
            Err(_) => None,
        }
    }
}
