//! Generates `docs/errors.md` from the table of failures. Only a test: it reads the page, or writes it if asked.

use std::fmt::Write;

use super::{row::Chance, table::Code, table::GROUPS};

/// A section of the page.
pub(super) struct Group {
    pub(super) name: &'static str,
    /// The text above its table; may be empty.
    pub(super) about: &'static str,
    pub(super) rows: &'static [Row],
}

/// A failure.
pub(super) struct Row {
    pub(super) code: Code,
    pub(super) when: &'static str,
    pub(super) advice: &'static str,
}

/// Rewrites the page if this variable is set.
const UPDATE: &str = "KILN_UPDATE_ERRORS";

const HEAD: &str = "\
# Failures

<!-- Made from src/records/failure/table.rs: KILN_UPDATE_ERRORS=1 cargo test --lib errors_page -->

Every failure has a stable code, a cause on one line and, in most cases, a hint. `kiln jobs status` shows those of a job, with
the step (`error`), whether a server or `kiln build` carried it out; `kiln build` itself prints cause and hint. When a build
fails, the line `log` before the error gives the command that prints the whole log, which has the messages of the tools about
the cause.

A request refused because of a failure is answered with its **Status**, and with `code`, `hint` and the `type`
`urn:kiln:failure:CODE` in the problem ([api.md](api.md#errors)). A command that fails because of it exits with its **Exit**
code. **Again** is Kiln's own reaction:

| Again | |
|---|---|
| waits | the failure may pass: agents retry later, a finished job waits up to 15 minutes for its image, a schedule up to an hour, and `--follow` reconnects; otherwise as below |
| retries | the cause is in the infrastructure: a running job is retried. An attempt counts for what failed: the place or the storage (`attempts` in `[watch]` each), or neither, when something was killed (`interruptions`) |
| without twins | a program of the image failed: if it ran as a native twin, or may have been misled by one, the job is tried once more by plain emulation ([emulation.md](emulation.md#when-a-build-with-twins-fails)); otherwise as below |
| – | none: the failure lasts until its cause is removed |
";

fn page() -> String {
    let mut text = HEAD.to_owned();
    for group in GROUPS {
        let _ = writeln!(text, "\n## {}\n", group.name);
        if !group.about.is_empty() {
            let _ = writeln!(text, "{}\n", group.about);
        }
        text.push_str("| Code | When | What to do | Status | Exit | Again |\n|---|---|---|---|---|---|\n");
        for Row { code, when, advice } in group.rows {
            let again = match code.chance() {
                Chance::PassingPlace | Chance::PassingStorage | Chance::PassingKilled => "waits",
                Chance::OfThePlace | Chance::OfStorage | Chance::Killed => "retries",
                Chance::OfTwins => "without twins",
                Chance::Lasting => "–",
            };
            let (status, exit) = (code.status(), code.exit());
            let _ = writeln!(text, "| `{code}` | {when} | {advice} | {status} | {exit} | {again} |");
        }
    }
    text
}

#[test]
fn the_errors_page_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
    if std::env::var_os(UPDATE).is_some() {
        fs_err::write(path, page()).unwrap();
        return;
    }
    assert!(
        fs_err::read_to_string(path).unwrap() == page(),
        "docs/errors.md is not what src/records/failure/table.rs says; write it anew with\n\n    \
         {UPDATE}=1 cargo test --lib errors_page"
    );
}

#[test]
fn every_code_is_explained() {
    let rows = GROUPS.iter().flat_map(|group| group.rows);
    assert_eq!(rows.clone().count(), Code::ALL.len());
    for row in rows {
        assert!(!row.when.is_empty(), "{}", row.code);
        assert!(!row.when.contains('|') && !row.advice.contains('|'), "{}", row.code);
    }
}
