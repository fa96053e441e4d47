//! The order of the modules: which ones may import which, with tests that enforce it. Compiled for tests only; reads
//! `src`.
//!
//! Cargo keeps the crates apart. In this one, [`ROWS`] is the architecture: a module imports only modules of earlier
//! rows, so the modules of one row do not know each other. Below the top level, and in all of the other crates, the
//! children of one module form no circle either. A parent and its child are one unit and may know each other. Code that
//! is compiled for tests only is exempt.

use std::collections::{BTreeMap, BTreeSet};

use self::imports::Tree;

mod imports;

/// The lowest row comes first.
const ROWS: &[&[&str]] = &[
    &[
        "client",
        "disk",
        "glance",
        "host",
        "metrics",
        "origin",
        "proxy",
        "remote_nodes",
        "settings",
        "squashfs",
        "tls",
    ],
    &["config", "sandbox", "store"],
    &["artifacts", "boot", "traces", "webhooks"],
    &["import", "orchestrate", "retention"],
    &["api"],
    &["web"],
    &["site"],
    &["doctor"],
    &["cli"],
];

#[test]
fn modules_import_only_what_stands_before_them() {
    let tree = Tree::of_kiln();
    let mut wrong = BTreeSet::new();
    // What the root itself has is from another crate.
    for (module, import) in tree.imports().filter(|(_, import)| !import.target.is_empty()) {
        let (from, to) = (layer(&module.path), layer(&import.target));
        if from != to && !may_import(from, to) {
            wrong.insert(format!("{}:{}: {from} → {to}", module.file.display(), import.line));
        }
    }
    assert!(
        wrong.is_empty(),
        "imports against the order in {}:\n{}",
        file!(),
        Vec::from_iter(wrong).join("\n")
    );
}

#[test]
fn every_module_has_its_place_in_the_order() {
    let placed: BTreeSet<&str> = all().collect();
    assert_eq!(placed.len(), all().count(), "a module has two places");
    let tree = Tree::of_kiln();
    let there: BTreeSet<String> = tree.modules.keys().map(|path| path.join("::")).collect();
    for name in placed {
        assert!(there.contains(name), "there is no module {name}");
    }
    for path in tree.modules.keys().filter(|path| !path.is_empty()) {
        assert!(
            all().any(|name| name == layer(path)),
            "{} has no place",
            path.join("::")
        );
    }
}

/// The rooms that read what others bring, in files that are not Kiln's own. They read by `kiln_files`.
const READERS: &[&str] = &[
    "cli",
    "client",
    "glance",
    "import",
    "orchestrate/recipe",
    "origin",
    "registry",
];

/// What opens whatever a path leads to.
const OPENERS: &[&str] = &["fs_err::read(", "fs_err::read_to_string(", "File::open("];

/// The files that open Kiln's own files, its sources, or `/proc`.
const OWN: &[&str] = &[
    "cli/documented.rs",
    "cli/foreground.rs",
    "glance/mod.rs",
    "import/files.rs",
];

#[test]
fn what_others_bring_is_opened_in_one_place() {
    let src = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    let mut pending: Vec<_> = READERS.iter().map(|room| src.join(room)).collect();
    pending.push(src.join("orchestrate/recipe.rs"));
    while let Some(path) = pending.pop() {
        let name = path.strip_prefix(&src).unwrap().display().to_string();
        if path.is_dir() {
            let is_tests = path.file_name().is_some_and(|name| name == "tests");
            let entries = fs_err::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
            pending.extend(entries.filter(|_| !is_tests));
            continue;
        }
        let text = fs_err::read_to_string(&path).unwrap_or_default();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in (1..).zip(code.lines()) {
            if path.extension().is_some_and(|extension| extension == "rs")
                && !OWN.contains(&name.as_str())
                && OPENERS.iter().any(|opener| line.contains(opener))
            {
                wrong.push(format!("{name}:{number}: {}", line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "read these by kiln_files:\n{}", wrong.join("\n"));
}

#[test]
fn siblings_form_no_circle() {
    let circles: Vec<String> = Tree::of_all().iter().flat_map(circles).collect();
    assert!(
        circles.is_empty(),
        "imports that close a circle:\n{}",
        circles.join("\n")
    );
}

fn circles(tree: &Tree) -> Vec<String> {
    // For each parent: which child imports which other one, and where.
    let mut arrows: BTreeMap<&[String], BTreeMap<(&str, &str), String>> = BTreeMap::new();
    for (module, import) in tree.imports() {
        let shared = module.path.iter().zip(&import.target);
        let shared = shared.take_while(|(one, other)| one == other).count();
        if let (Some(from), Some(to)) = (module.path.get(shared), import.target.get(shared)) {
            let place = format!("{}:{}", module.file.display(), import.line);
            let siblings = arrows.entry(&module.path[..shared]).or_default();
            siblings.entry((from, to)).or_insert(place);
        }
    }
    let mut circles = Vec::new();
    for (parent, arrows) in &arrows {
        for ((from, to), place) in arrows {
            if is_reached(arrows, to, from) {
                circles.push(format!("{place}: in {}, {from} → {to}", parent.join("::")));
            }
        }
    }
    circles
}

/// Whether the arrows lead from `start` to `end`.
fn is_reached(arrows: &BTreeMap<(&str, &str), String>, start: &str, end: &str) -> bool {
    let (mut seen, mut next) = (BTreeSet::from([start]), vec![start]);
    while let Some(here) = next.pop() {
        if here == end {
            return true;
        }
        let ahead = arrows.keys().filter(|(from, _)| *from == here);
        next.extend(ahead.map(|(_, to)| *to).filter(|to| seen.insert(to)));
    }
    false
}

/// The entry of a module in the order: the first part of its path.
fn layer(path: &[String]) -> &str {
    path.first().map(String::as_str).unwrap_or_default()
}

fn all() -> impl Iterator<Item = &'static str> {
    ROWS.iter().copied().flatten().copied()
}

fn may_import(from: &str, to: &str) -> bool {
    let place = |name| ROWS.iter().position(|row| row.contains(&name));
    matches!((place(from), place(to)), (Some(from), Some(to)) if to < from)
}
