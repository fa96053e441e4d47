//! `kiln-exec` in front of the real emulator: programs behave as under the plain emulator, with twins and without.

use crate::support;
mod roots;

use std::{
    collections::BTreeMap,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use kiln_agent::twins::{join::join, key};
use kiln_inside::emulation::binfmt::emulation_of;
use roots::Root;
use serde::Deserialize;

/// The outcome of one case of the corpus.
#[derive(Debug, Deserialize)]
struct Outcome {
    status: i32,
    said: String,
    /// How many twins and emulated programs there should be where there are twins.
    wanted: Option<[u64; 2]>,
    /// How many there were.
    ran: [u64; 2],
}

type Outcomes = BTreeMap<String, Outcome>;

/// Runs the corpus in a root.
fn corpus(root: &Root, interpreter: &Path) -> Outcomes {
    let mut entry = emulation_of(support::foreign().parse().unwrap()).unwrap().entry;
    entry.interpreter = interpreter.display().to_string();
    let output = Command::new("python3")
        .arg(support::source_dir().join("tests/kiln_exec/corpus.py"))
        .args([root.path().as_os_str(), entry.registration().as_ref()])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// How it goes under the plain emulator.
fn plain() -> &'static Outcomes {
    static PLAIN: LazyLock<Outcomes> = LazyLock::new(|| {
        let dir = roots::directory();
        corpus(&Root::new(dir.path()), &roots::emulator())
    });
    &PLAIN
}

fn assert_same(plain: &Outcomes, other: &Outcomes) {
    assert!(plain.len() > 40);
    let same = |(name, plain): &(&String, &Outcome)| {
        let other = &other[*name];
        // Addresses decide what the loader itself makes of a damaged file: whether it crashes, for instance.
        let is_open = name.starts_with("damaged") && other.ran[0] == 0;
        is_open || (other.status, &other.said) == (plain.status, &plain.said)
    };
    let different: Vec<_> = plain
        .iter()
        .filter(|case| !same(case))
        .map(|(name, plain)| (name, plain, &other[name]))
        .collect();
    assert!(different.is_empty(), "{different:#?}");
}

/// Checks that in every case as many programs ran as twins and under the emulator as `wanted` computes for it.
fn assert_ran(outcomes: &Outcomes, wanted: impl Fn([u64; 2]) -> [u64; 2]) {
    let wrong: Vec<_> = outcomes
        .iter()
        .filter(|(_, outcome)| outcome.wanted.is_some_and(|numbers| wanted(numbers) != outcome.ran))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The joined file, under the emulator's own name, which prefixes its messages.
fn joined(dir: &Path) -> PathBuf {
    let emulator = roots::emulator();
    let joined = dir.join(emulator.file_name().unwrap());
    join(&emulator, &roots::kiln_exec(), &joined).unwrap();
    joined
}

#[test]
fn odd_programs_behave_as_under_the_plain_emulator() {
    needs!(support::no_emulation(), support::not_root());
    let dir = roots::directory();
    let plain = plain();
    assert_eq!(plain["exit code"].status, 77, "{plain:?}");
    assert_eq!(plain["setuid"].said, "0\n", "{plain:?}");
    assert_eq!(plain["fork storm"].said, "0 failed\n", "{plain:?}");

    let joined = joined(dir.path());
    assert_same(plain, &corpus(&Root::new(dir.path()), &joined));

    let root = Root::new(dir.path());
    root.add_twins(&plain["loader's version"].said);
    let twins = corpus(&root, &joined);
    assert_same(plain, &twins);
    assert_ran(&twins, |numbers| numbers);
    assert_eq!(twins["pipes"].ran[1], 0, "{twins:?}");
    let answered = |(name, outcome): &(&String, &Outcome)| name.starts_with("damaged") && outcome.ran[0] == 1;
    assert!(twins.iter().filter(answered).count() > 10, "{twins:?}");
}

#[test]
fn twins_that_cannot_be_started_are_emulated() {
    needs!(support::no_emulation(), support::not_root());
    let dir = roots::directory();
    let root = Root::new(dir.path());
    root.add_twins(&plain()["loader's version"].said);
    fs_err::remove_dir_all(root.path().join(".kiln/loaders")).unwrap();
    let loader = root.path().join(".kiln/loader");
    fs_err::set_permissions(loader, std::fs::Permissions::from_mode(0o644)).unwrap();
    let without_loader = corpus(&root, &joined(dir.path()));
    assert_same(plain(), &without_loader);
    assert_ran(&without_loader, |[twins, emulated]| [0, twins + emulated]);
}

/// `kiln-exec` as GNU ld links it for aarch64: with the first words of a table behind the dynamic section, the first of which has
/// that section's address and the second this `word`.
fn with_table(word: u64, to: &Path) -> PathBuf {
    let mut bytes = fs_err::read(roots::kiln_exec()).unwrap();
    let number = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let headers = (0..usize::from(bytes[56])).map(|entry| 64 + 56 * entry);
    let [segment, section] = [1, 2].map(|kind| {
        let is_it = |at: &usize| bytes[*at] == kind && bytes[*at + 4] & 2 != 0;
        headers.clone().find(is_it).unwrap()
    });
    assert_eq!(number(&bytes, segment + 16), number(&bytes, section + 16));
    let address = number(&bytes, section + 16);
    let size = usize::try_from(number(&bytes, section + 32)).unwrap();
    let begin = usize::try_from(number(&bytes, section + 8)).unwrap() + size;
    let table = [address, word, 0, 0].map(u64::to_le_bytes).concat();
    bytes.resize(bytes.len().max(begin + table.len()), 0);
    bytes[begin..begin + table.len()].copy_from_slice(&table);
    for at in [segment + 32, segment + 40] {
        bytes[at..at + 8].copy_from_slice(&(size as u64 + 32).to_le_bytes());
    }
    fs_err::write(to, bytes).unwrap();
    to.to_owned()
}

#[test]
fn only_what_fits_is_joined() {
    let dir = tempfile::tempdir().unwrap();
    let (joined, emulator, exec) = (dir.path().join("joined"), roots::emulator(), roots::kiln_exec());
    let refused = |emulator: &Path, prelude: &Path| {
        let failure = join(emulator, prelude, &joined).unwrap_err();
        assert_eq!(failure.code.name(), "twins_join");
        assert!(!joined.exists());
        failure.detail
    };
    assert!(refused(&emulator, &emulator).contains("writable data"));
    assert!(refused(Path::new("/bin/sh"), &exec).contains("not static"));
    assert!(refused(&support::source_dir().join("Cargo.toml"), &exec).contains("not a 64-bit ELF"));

    let other = dir.path().join("other");
    assert!(refused(&emulator, &with_table(5, &other)).contains("writable data"));
    join(&emulator, &with_table(0, &other), &joined).unwrap();
    join(&emulator, &exec, &joined).unwrap();
    // It gave away another note than that of its build-id.
    let head = fs_err::read(&joined).unwrap();
    assert!(
        key::build_id(&head[..key::HEAD]).is_some(),
        "the emulator's own notes are damaged"
    );
    // Without binfmt_misc it is the emulator, and nothing else.
    let version = |program: &Path| Command::new(program).arg("--version").output().unwrap().stdout;
    assert_eq!(version(&joined), version(&emulator));
}
