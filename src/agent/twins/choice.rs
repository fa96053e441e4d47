//! Decides which twins can run now, given all known files of both architectures. Pure: no I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::elf::Kind;

/// Identifies an [`Item`].
pub type Id = u64;

/// A native file that could be published.
#[derive(Debug)]
pub struct Item {
    /// The package that contains it.
    pub package: String,
    /// Paths of its counterpart in the root; several when the package links one file under several names.
    pub paths: Vec<String>,
    /// Path in the host's package.
    pub origin: String,
    /// The key of the file in the root; `None` when only the host's package has the file.
    pub key: Option<String>,
    /// Whether it is executed or loaded.
    pub kind: Kind,
    /// How linked files refer to it; `None` unless it is a shared library.
    pub library: Option<Library>,
    /// The libraries that it needs.
    pub needed: Vec<String>,
    /// The state of its trial.
    pub verdict: Verdict,
    /// What depends on the CPU in a library; `None` if nothing does, or if it does not matter.
    pub finding: Option<String>,
    /// Whether a finding in one of its libraries keeps it emulated.
    pub is_examined: bool,
}

/// A shared library.
#[derive(Debug)]
pub struct Library {
    /// The name by which it is needed.
    pub name: String,
    /// Whether it is in a directory that the loader searches by default.
    pub is_public: bool,
}

/// Whether a file may be used. Later variants outweigh earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// No trial is needed.
    Fine,
    /// Its answers have yet to be compared with those of the emulated program.
    Untried,
    /// Its answers are equal.
    Accepted,
    /// The table forbids it, or its answers differ.
    Refused,
}

/// The intended content of the directory of twins.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Programs and modules by key.
    pub bin: BTreeMap<String, Id>,
    /// Shared libraries by name: those that a chosen file needs, and those that any twin may load by name, since nothing
    /// in them depends on the CPU.
    pub lib: BTreeMap<String, Id>,
    /// Programs whose trial is due, by key.
    pub trial: BTreeMap<String, Id>,
    /// Names of libraries that are needed and that no package provides.
    pub missing: BTreeSet<String>,
    /// Programs and modules that stay emulated because of a library, each with the library and what was found in it.
    pub doubtful: BTreeMap<String, String>,
}

impl Choice {
    /// Chooses every file whose libraries are all available, and those libraries.
    ///
    /// `loader` is the name of the dynamic loader; without it nothing can run.
    pub fn among(items: &BTreeMap<Id, Item>, loader: &str) -> Self {
        let libraries = libraries_of(items);
        let mut choice = Self::default();
        if !libraries.contains_key(loader) {
            choice.missing.insert(loader.to_owned());
            return choice;
        }
        let complete = choice.complete(items, &libraries);
        let doubts = doubts(items, &libraries);
        let mut refused = HashSet::new();
        for (id, item) in items {
            let Some(key) = &item.key else { continue };
            if item.verdict == Verdict::Refused {
                refused.insert(key);
            } else if let Some(library) = doubts.get(id).filter(|_| item.is_examined) {
                let finding = items[library].finding.as_deref().unwrap_or_default();
                let why = format!("{}: {finding}", items[library].origin);
                choice
                    .doubtful
                    .extend(item.paths.first().map(|path| (path.clone(), why)));
            } else if complete.contains(id) {
                let published = if item.verdict == Verdict::Untried {
                    &mut choice.trial
                } else {
                    &mut choice.bin
                };
                published.entry(key.clone()).or_insert(*id);
            }
        }
        // One file can have several names, one of which is forbidden.
        for key in refused {
            choice.bin.remove(key);
            choice.trial.remove(key);
        }
        let needed = choice.needed(items, &libraries);
        let is_clean = |id: &Id| items[id].finding.is_none() && !doubts.contains_key(id);
        choice.lib = libraries
            .into_iter()
            .filter(|(_, id)| complete.contains(id) && (needed.contains(id) || is_clean(id)))
            .map(|(name, id)| (name.to_owned(), id))
            .collect();
        choice
    }

    /// The libraries that the chosen files need, directly and indirectly.
    fn needed(&self, items: &BTreeMap<Id, Item>, libraries: &HashMap<&str, Id>) -> HashSet<Id> {
        let mut needed = HashSet::new();
        let mut next: Vec<Id> = self.bin.values().chain(self.trial.values()).copied().collect();
        while let Some(id) = next.pop() {
            let names = items[&id].needed.iter();
            let of_item = names.filter_map(|name| libraries.get(name.as_str()));
            next.extend(of_item.filter(|id| needed.insert(**id)));
        }
        needed
    }

    /// The items whose libraries are all available, directly and indirectly. Libraries may need each other.
    fn complete(&mut self, items: &BTreeMap<Id, Item>, libraries: &HashMap<&str, Id>) -> HashSet<Id> {
        let mut complete: HashSet<Id> = items.keys().copied().collect();
        let mut users: HashMap<Id, Vec<Id>> = HashMap::new();
        let mut incomplete = Vec::new();
        for (id, item) in items {
            for name in &item.needed {
                if let Some(library) = libraries.get(name.as_str()) {
                    users.entry(*library).or_default().push(*id);
                } else {
                    self.missing.insert(name.clone());
                    incomplete.push(*id);
                }
            }
        }
        while let Some(id) = incomplete.pop() {
            if complete.remove(&id) {
                incomplete.extend(users.remove(&id).into_iter().flatten());
            }
        }
        complete
    }
}

/// The items that need a library with a finding, directly or indirectly, each with one such library.
fn doubts(items: &BTreeMap<Id, Item>, libraries: &HashMap<&str, Id>) -> HashMap<Id, Id> {
    let mut users: HashMap<Id, Vec<Id>> = HashMap::new();
    for (id, item) in items {
        let needed = item.needed.iter().filter_map(|name| libraries.get(name.as_str()));
        needed.for_each(|library| users.entry(*library).or_default().push(*id));
    }
    let mut doubts = HashMap::new();
    let found = items
        .iter()
        .filter(|(_, item)| item.library.is_some() && item.finding.is_some());
    let mut next: Vec<(Id, Id)> = found.map(|(id, _)| (*id, *id)).collect();
    while let Some((id, library)) = next.pop() {
        for user in users.get(&id).into_iter().flatten() {
            if !doubts.contains_key(user) {
                doubts.insert(*user, library);
                next.push((*user, library));
            }
        }
    }
    doubts
}

/// The library that each name refers to. Public libraries take precedence; among several private ones of a name it is
/// impossible to tell which one a program needs, so the name refers to none.
fn libraries_of(items: &BTreeMap<Id, Item>) -> HashMap<&str, Id> {
    let mut candidates: HashMap<&str, (bool, Vec<Id>)> = HashMap::new();
    for (id, item) in items {
        let Some(library) = &item.library else { continue };
        let (public, ids) = candidates.entry(&library.name).or_default();
        if library.is_public && !*public {
            *public = true;
            ids.clear();
        }
        if library.is_public == *public {
            ids.push(*id);
        }
    }
    candidates
        .into_iter()
        .filter_map(|(name, (_, ids))| match ids[..] {
            [id] => Some((name, id)),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADER: &str = "ld.so";

    fn item(key: Option<&str>, name: Option<&str>, needed: &[&str]) -> Item {
        Item {
            package: "package".to_owned(),
            paths: Vec::new(),
            origin: String::new(),
            key: key.map(str::to_owned),
            kind: Kind::Shared,
            library: name.map(|name| Library {
                name: name.to_owned(),
                is_public: true,
            }),
            needed: needed.iter().map(|name| (*name).to_owned()).collect(),
            verdict: Verdict::Fine,
            finding: None,
            is_examined: true,
        }
    }

    fn program(key: &str, needed: &[&str]) -> Item {
        Item {
            kind: Kind::Program,
            ..item(Some(key), None, needed)
        }
    }

    fn among(items: impl IntoIterator<Item = Item>) -> Choice {
        Choice::among(&(0..).zip(items).collect(), LOADER)
    }

    fn keys(names: &BTreeMap<String, Id>) -> Vec<&str> {
        names.keys().map(String::as_str).collect()
    }

    #[test]
    fn a_finding_in_a_library_reaches_every_program_that_is_examined() {
        let library = |name, needed: &[&str], finding: Option<&str>| Item {
            finding: finding.map(str::to_owned),
            ..item(None, Some(name), needed)
        };
        let entry = Item {
            is_examined: false,
            ..program("entry", &["far"])
        };
        let choice = among([
            item(None, Some(LOADER), &[]),
            library("near", &[], Some("it asks")),
            library("far", &["near"], None),
            library("clean", &[], None),
            program("direct", &["near"]),
            program("indirect", &["clean", "far"]),
            program("free", &["clean"]),
            entry,
        ]);
        assert_eq!(keys(&choice.bin), ["entry", "free"]);
    }

    #[test]
    fn a_library_with_a_finding_can_only_be_loaded_by_programs_that_need_it() {
        let library = |name, needed: &[&str], finding: Option<&str>| Item {
            finding: finding.map(str::to_owned),
            ..item(None, Some(name), needed)
        };
        let all = || {
            vec![
                item(None, Some(LOADER), &[]),
                library("asks", &[], Some("it asks")),
                library("user", &["asks"], None),
                library("clean", &[], None),
                program("direct", &["user"]),
            ]
        };
        assert_eq!(keys(&among(all()).lib), ["clean", LOADER]);
        let entry = Item {
            is_examined: false,
            ..program("entry", &["user"])
        };
        assert_eq!(
            keys(&among(all().into_iter().chain([entry])).lib),
            ["asks", "clean", LOADER, "user"]
        );
    }

    #[test]
    fn nothing_runs_without_a_loader() {
        let choice = among([program("a", &[])]);
        assert_eq!((choice.bin.len(), choice.missing.len()), (0, 1));
        assert_eq!(
            keys(&among([item(None, Some(LOADER), &[]), program("a", &[])]).bin),
            ["a"]
        );
    }

    #[test]
    fn a_library_missing_far_down_keeps_everything_above_back() {
        let choice = among([
            item(None, Some(LOADER), &[]),
            item(None, Some("top"), &["middle"]),
            item(None, Some("middle"), &["gone"]),
            item(None, Some("other"), &[LOADER]),
            program("a", &["top"]),
            program("b", &["other"]),
        ]);
        assert_eq!(keys(&choice.bin), ["b"]);
        assert_eq!(keys(&choice.lib), [LOADER, "other"]);
        assert_eq!(choice.missing, ["gone".to_owned()].into());
    }

    #[test]
    fn libraries_that_need_each_other_are_complete_together() {
        let ring = |last: &str| {
            among([
                item(None, Some(LOADER), &["libc"]),
                item(None, Some("libc"), &[LOADER, last]),
                program("a", &["libc"]),
            ])
        };
        assert_eq!(keys(&ring(LOADER).bin), ["a"]);
        assert_eq!(ring("gone").bin.len(), 0);
    }

    #[test]
    fn of_two_libraries_the_public_one_is_meant_and_of_two_private_ones_none() {
        let library = |is_public, key| Item {
            library: Some(Library {
                name: "lib".to_owned(),
                is_public,
            }),
            ..item(Some(key), None, &[])
        };
        let loader = || item(None, Some(LOADER), &[]);
        let both = among([loader(), library(false, "x"), library(true, "y"), library(false, "z")]);
        assert_eq!(both.lib["lib"], 2);
        let none = among([
            loader(),
            library(false, "x"),
            library(false, "y"),
            program("a", &["lib"]),
        ]);
        assert_eq!(keys(&none.lib), [LOADER]);
        assert_eq!(keys(&none.bin), ["x", "y"]);
    }

    #[test]
    fn a_file_with_a_forbidden_name_has_no_twin() {
        let verdict = |verdict, key| Item {
            verdict,
            ..program(key, &[])
        };
        let choice = among([
            item(None, Some(LOADER), &[]),
            verdict(Verdict::Fine, "a"),
            verdict(Verdict::Refused, "a"),
            verdict(Verdict::Untried, "b"),
            verdict(Verdict::Accepted, "c"),
        ]);
        assert_eq!(keys(&choice.bin), ["c"]);
        assert_eq!(keys(&choice.trial), ["b"]);
    }

    #[test]
    fn a_module_without_a_twin_costs_nobody_else_a_twin() {
        let choice = among([
            item(None, Some(LOADER), &[]),
            program("python", &[]),
            item(Some("numpy"), None, &["gone"]),
            item(Some("zlib"), None, &[]),
        ]);
        assert_eq!(keys(&choice.bin), ["python", "zlib"]);
    }
}
