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
    let mut wrong = Vec::new();
    for room in READERS.iter().chain(&["orchestrate/recipe.rs"]) {
        for (name, code) in sources(room) {
            for (number, line) in (1..).zip(code.lines()) {
                if !OWN.contains(&name.as_str()) && OPENERS.iter().any(|opener| line.contains(opener)) {
                    wrong.push(format!("{name}:{number}: {}", line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "read these by kiln_files:\n{}", wrong.join("\n"));
}

/// What connects to a host.
const CONNECTORS: &[&str] = &[
    "Client::builder()",
    "reqwest::Client::new()",
    "ClientBuilder::try_from(",
    "SessionBuilder::default()",
    "TcpStream::connect(",
];

/// The files that connect without looking where, and by whose choice.
const CHOSEN: &[(&str, &str)] = &[
    ("agent/doors.rs", "the sandbox's gateway"),
    ("agent/fetch.rs", "whatever a sandbox may reach, by its network"),
    ("cli/session.rs", "the server that its user named"),
    ("doctor/storage.rs", "the operator's S3"),
    ("orchestrate/agent_address.rs", "the operator's servers"),
    ("proxy/mod.rs", "the operator's proxy"),
    ("remote_nodes.rs", "an `admin`, whose host has to have a known key"),
    ("sandbox/docker/dialect.rs", "the operator's engine"),
    ("sandbox/doors.rs", "the loopback"),
    ("sandbox/kubernetes/cluster.rs", "the operator's cluster"),
    ("traces.rs", "the operator's collector"),
];

#[test]
fn every_client_is_guarded_or_goes_where_its_operator_or_user_chose() {
    let connects = |code: &str| CONNECTORS.iter().any(|connector| code.contains(connector));
    let found: BTreeSet<_> = sources("")
        .into_iter()
        .filter(|(_, code)| connects(code) && !code.contains(".dns_resolver("))
        .map(|(name, _)| name)
        .collect();
    let chosen = CHOSEN.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(
        found, chosen,
        "give these a kiln_addresses::Guard, or say who chose the host"
    );
}

/// The code of the files below a room of the sources, without that of tests.
fn sources(room: &str) -> Vec<(String, String)> {
    let src = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut found, mut pending) = (Vec::new(), vec![src.join(room)]);
    while let Some(path) = pending.pop() {
        let is_tests = ["tests", "tests.rs"].iter().any(|name| path.ends_with(name));
        if path.is_dir() && !is_tests {
            let entries = fs_err::read_dir(&path).unwrap();
            pending.extend(entries.map(|entry| entry.unwrap().path()));
        } else if !is_tests
            && path.extension().is_some_and(|extension| extension == "rs")
            && path != src.join("layers.rs")
        {
            let text = fs_err::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
            found.push((path.strip_prefix(&src).unwrap().display().to_string(), code));
        }
    }
    found
}

/// The rooms in which some types still have methods in other files than their own. Everywhere else a file shows all that its
/// type touches, and what files import is all that they know of each other.
const SPREAD: &[&str] = &[
    "agent",
    "artifacts",
    "client",
    "config",
    "records",
    "s3",
    "sandbox",
    "squashfs",
    "store",
    "web",
];

#[test]
fn methods_stand_with_their_types() {
    let word = |text: &str| -> String {
        let is_word = |letter: &char| letter.is_alphanumeric() || *letter == '_';
        text.chars().take_while(is_word).collect()
    };
    let mut wrong = Vec::new();
    let is_whole = |file: &str| !SPREAD.iter().any(|room| file.starts_with(&format!("{room}/")));
    for (file, code) in sources("").into_iter().filter(|(file, _)| is_whole(file)) {
        let defined: BTreeSet<_> = code
            .lines()
            .flat_map(|line| ["struct ", "enum "].map(|kind| line.split_once(kind)))
            .flatten()
            .filter(|(before, _)| before.is_empty() || before.starts_with("pub"))
            .map(|(_, rest)| word(rest))
            .collect();
        for line in code.lines() {
            let of = line.strip_prefix("impl").map(without_generics);
            // Of a trait, each type may say elsewhere how it does that.
            if let Some(of) = of.filter(|of| !of.contains(" for ") && !defined.contains(&word(of))) {
                wrong.push(format!("{file}: {of}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "give these a type of their own:\n{}",
        wrong.join("\n")
    );
}

/// What follows the generics of an `impl`, if it has any.
fn without_generics(text: &str) -> &str {
    let mut depth = 0_usize;
    let end = text.char_indices().find(|(_, letter)| {
        match letter {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *letter == ' '
    });
    end.map_or(text, |(at, _)| text[at..].trim_start())
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
