//! Decides which twins can run now, given all known files of both architectures. Pure: no I/O.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::Path,
};

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

/// Directories of interpreters' modules, each with the beginning of the interpreter's name.
const INTERPRETERS: [(&str, &str); 3] = [("/perl", "perl"), ("/python", "python"), ("/ruby", "ruby")];

/// Whether the file at `path` is a module that an interpreter loads.
pub fn is_interpreters(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|end| end == "so") && INTERPRETERS.iter().any(|(dir, _)| path.contains(dir))
}

/// The intended content of the directory of twins.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Programs and modules by key.
    pub bin: BTreeMap<String, Id>,
    /// Shared libraries by name.
    pub lib: BTreeMap<String, Id>,
    /// Programs whose trial is due, by key.
    pub trial: BTreeMap<String, Id>,
    /// Names of libraries that are needed and that no package provides.
    pub missing: BTreeSet<String>,
    /// Interpreters that stay emulated because a module has no twin, each with one such module.
    pub held: BTreeMap<String, String>,
}

impl Item {
    /// One of its paths and the module that keeps it emulated, if there is one.
    fn held_back<'a>(&self, lacking: &BTreeMap<&str, &'a str>) -> Option<(&str, &'a str)> {
        if self.kind != Kind::Program {
            return None;
        }
        self.paths.iter().find_map(|path| {
            let name = path.rsplit('/').next()?;
            let (_, module) = lacking
                .iter()
                .find(|(interpreter, _)| name.starts_with(**interpreter))?;
            Some((path.as_str(), *module))
        })
    }
}

impl Choice {
    /// Chooses every file whose libraries are all available, and those libraries.
    ///
    /// `loader` is the name of the dynamic loader; without it nothing can run. `orphans` are modules of the root
    /// without a native build: an emulated interpreter can load them, a native one cannot.
    pub fn among<'a>(items: &'a BTreeMap<Id, Item>, orphans: impl Iterator<Item = &'a str>, loader: &str) -> Self {
        let libraries = libraries_of(items);
        let mut choice = Self::default();
        if !libraries.contains_key(loader) {
            choice.missing.insert(loader.to_owned());
            return choice;
        }
        let complete = choice.complete(items, &libraries);
        choice.lib = libraries
            .iter()
            .filter(|(_, id)| complete.contains(*id))
            .map(|(name, id)| ((*name).to_owned(), *id))
            .collect();
        let waiting = items.iter().filter(|(id, item)| {
            let is_usable = complete.contains(*id) && item.verdict != Verdict::Refused;
            item.kind == Kind::Shared && item.library.is_none() && !is_usable
        });
        let modules = waiting.flat_map(|(_, item)| item.paths.iter().map(String::as_str));
        let lacking = interpreters_of(modules.chain(orphans));
        let mut refused = HashSet::new();
        for (id, item) in items {
            let Some(key) = &item.key else { continue };
            if item.verdict == Verdict::Refused {
                refused.insert(key);
            } else if let Some((path, module)) = item.held_back(&lacking) {
                choice.held.insert(path.to_owned(), module.to_owned());
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
        choice
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

/// The beginnings of the names of the interpreters that these modules belong to, each with one module.
fn interpreters_of<'a>(modules: impl Iterator<Item = &'a str>) -> BTreeMap<&'static str, &'a str> {
    modules
        .filter(|path| is_interpreters(path))
        .flat_map(|path| INTERPRETERS.iter().map(move |(dir, name)| (path, *dir, *name)))
        .filter(|(path, dir, _)| path.contains(dir))
        .map(|(path, _, name)| (name, path))
        .collect()
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
        }
    }

    fn program(key: &str, needed: &[&str]) -> Item {
        Item {
            kind: Kind::Program,
            ..item(Some(key), None, needed)
        }
    }

    fn among(items: impl IntoIterator<Item = Item>) -> Choice {
        Choice::among(&(0..).zip(items).collect(), [].into_iter(), LOADER)
    }

    fn keys(names: &BTreeMap<String, Id>) -> Vec<&str> {
        names.keys().map(String::as_str).collect()
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
    fn an_interpreter_waits_for_its_modules() {
        let named = |path: &str, item: Item| Item {
            paths: vec![path.to_owned()],
            ..item
        };
        let items: BTreeMap<Id, Item> = (0..)
            .zip([
                item(None, Some(LOADER), &[]),
                named("/usr/bin/python3.11", program("python", &[])),
                named("/usr/bin/perl", program("perl", &[])),
                named("/usr/bin/cat", program("cat", &[])),
                named(
                    "/usr/lib/python3/dist-packages/numpy/x.so",
                    item(Some("x"), None, &["gone"]),
                ),
                named("/usr/lib/perl5/y.so", item(Some("y"), None, &[])),
            ])
            .collect();
        let choice = Choice::among(&items, [].into_iter(), LOADER);
        assert_eq!(keys(&choice.bin), ["cat", "perl", "y"]);
        assert_eq!(choice.held.keys().collect::<Vec<_>>(), ["/usr/bin/python3.11"]);
        let choice = Choice::among(&items, ["/usr/lib/perl5/z.so"].into_iter(), LOADER);
        assert_eq!(keys(&choice.bin), ["cat", "y"]);
        assert_eq!(choice.held["/usr/bin/perl"], "/usr/lib/perl5/z.so");
    }
}
