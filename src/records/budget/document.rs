//! Generates the table of docs/security.md from that of the budgets. Only a test: it reads the page, or writes it if asked.

use std::fmt::Write;

use super::{BUDGETS, Budget, Most, Of};

/// Rewrites the page if this variable is set.
const UPDATE: &str = "KILN_UPDATE_BUDGETS";

/// What stands before the table, and what after it.
const MARKS: (&str, &str) = (
    "<!-- Made from src/records/budget.rs: KILN_UPDATE_BUDGETS=1 cargo test --lib budgets -->\n",
    "<!-- end of the budgets -->\n",
);

fn table() -> String {
    let mut text = "\n| What | Most | Of | Beyond it |\n|---|---|---|---|\n".to_owned();
    for Budget { what, most, of, beyond } in BUDGETS {
        let most = match most {
            Most::Count(count) => count.to_string(),
            Most::Bytes(bytes) if bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
            Most::Bytes(bytes) => format!("{} KiB", bytes >> 10),
            Most::Setting(key) => {
                let (section, key) = key.split_once('.').unwrap();
                format!("`{key}` in `[{section}]`")
            }
        };
        let of = match of {
            Of::Caller => "each caller",
            Of::Address => "each address",
            Of::Record => "each record",
            Of::Request => "each request",
            Of::Receiver => "each receiver",
            Of::Job => "each job",
            Of::Channel => "each channel of a name",
            Of::All => "all together",
        };
        let _ = writeln!(text, "| {what} | {most} | {of} | {beyond} |");
    }
    text.push('\n');
    text
}

#[test]
fn the_table_of_the_security_page_is_that_of_the_budgets() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");
    let page = fs_err::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(MARKS.0).unwrap();
    let (found, after) = rest.split_once(MARKS.1).unwrap();
    if std::env::var_os(UPDATE).is_some() {
        let page = format!("{before}{}{}{}{after}", MARKS.0, table(), MARKS.1);
        fs_err::write(path, page).unwrap();
        return;
    }
    assert!(
        found == table(),
        "docs/security.md has not the budgets of src/records/budget.rs; write them anew with\n\n    \
         {UPDATE}=1 cargo test --lib budgets"
    );
}

#[test]
fn each_budget_stands_once() {
    for (at, one) in BUDGETS.iter().enumerate() {
        assert!(!one.what.contains('|') && !one.beyond.contains('|'), "{one:?}");
        let others = &BUDGETS[at + 1..];
        assert!(
            others.iter().all(|other| (other.what, other.of) != (one.what, one.of)),
            "{one:?}"
        );
    }
}
