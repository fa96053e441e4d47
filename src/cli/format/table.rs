//! Formats results as tables: one line for each record, no wider than the terminal. Asks the terminal for its width;
//! otherwise pure.

use std::io::IsTerminal;

use dialoguer::console::{Term, measure_text_width, truncate_str};
use kiln_records::{Moment, names::is_invisible};

use crate::client::{Collection, Data};

/// The spaces between columns.
const GAP: usize = 2;

/// The smallest width of a shortened column.
const NARROWEST: usize = 8;

/// The width of the terminal; none when results go elsewhere and nothing is to be cut.
pub(super) fn terminal_width() -> Option<usize> {
    let columns = || Some(usize::from(Term::stdout().size_checked()?.1));
    std::io::stdout().is_terminal().then(columns).flatten()
}

pub(super) fn list(collection: &Collection, records: &[Data], width: Option<usize>) -> String {
    let headings = collection
        .columns
        .iter()
        .map(|(heading, _)| (*heading).to_owned())
        .collect();
    let mut rows: Vec<Vec<String>> = vec![headings];
    for record in records {
        rows.push(
            collection
                .columns
                .iter()
                .map(|(_, member)| cell(member, record.get(member)))
                .collect(),
        );
    }
    // A shortened id is useless, so the first column keeps its width as long as others can shrink.
    lay_out(&rows, width)
}

/// One member per line, nested ones with their path.
pub(super) fn record(data: &Data) -> String {
    let mut rows = Vec::new();
    flatten("", data, &mut rows);
    lay_out(&rows, None)
}

fn flatten(path: &str, data: &Data, rows: &mut Vec<Vec<String>>) {
    let below = |name: &str| {
        if path.is_empty() {
            clean(name)
        } else {
            format!("{path}.{}", clean(name))
        }
    };
    match data {
        Data::Map(members) if !members.is_empty() => {
            for (name, value) in members {
                flatten(&below(name), value, rows);
            }
        }
        Data::List(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                flatten(&below(&index.to_string()), item, rows);
            }
        }
        other => {
            let text = cell("", other);
            rows.push(if path.is_empty() {
                vec![text]
            } else {
                vec![path.to_owned(), text]
            });
        }
    }
}

/// Whether a member has the time at which something was, or will be.
fn is_time(member: &str) -> bool {
    matches!(
        member,
        "at" | "created" | "deleted" | "due" | "last_run" | "next_run" | "next_try" | "time"
    )
}

/// A value on one line: `-` for nothing, `k=v` for members, moments to the second.
fn cell(member: &str, data: &Data) -> String {
    match data {
        Data::Null => "-".to_owned(),
        Data::Bool(value) => if *value { "yes" } else { "no" }.to_owned(),
        Data::Number(number) => number.to_string(),
        Data::Text(text) if text.is_empty() => "-".to_owned(),
        Data::Text(text) if is_time(member) => text
            .parse()
            .map_or_else(|_| clean(text), |moment: Moment| moment.to_the_second().to_string()),
        Data::Text(text) => clean(text),
        Data::List(items) if items.is_empty() => "-".to_owned(),
        Data::List(items) => items.iter().map(|item| cell("", item)).collect::<Vec<_>>().join(" "),
        Data::Map(members) if members.is_empty() => "-".to_owned(),
        Data::Map(members) => {
            let pairs = members
                .iter()
                .map(|(key, value)| format!("{}={}", clean(key), cell("", value)));
            pairs.collect::<Vec<_>>().join(" ")
        }
    }
}

/// Replaces control characters for terminals by a mark.
fn clean(text: &str) -> String {
    if text.contains(is_invisible) {
        text.replace(is_invisible, "\u{fffd}")
    } else {
        text.to_owned()
    }
}

fn lay_out(rows: &[Vec<String>], limit: Option<usize>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut widths = vec![0; columns];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(width_of(cell));
        }
    }
    if let Some(limit) = limit {
        narrow(&mut widths, limit);
    }
    let mut text = String::new();
    for row in rows {
        let begin = text.len();
        for (cell, width) in row.iter().zip(&widths) {
            if text.len() > begin {
                text.push_str("  ");
            }
            let shown = truncate_str(cell, *width, "…");
            text.push_str(&shown);
            text.extend(std::iter::repeat_n(' ', width.saturating_sub(width_of(&shown))));
        }
        text.truncate(begin + text[begin..].trim_end().len());
        text.push('\n');
    }
    text.pop();
    text
}

fn width_of(cell: &str) -> usize {
    if cell.is_ascii() {
        cell.len()
    } else {
        measure_text_width(cell)
    }
}

/// Shrinks the widest column except the first until all fit, and the first only as a last resort.
fn narrow(widths: &mut [usize], limit: usize) {
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
    while total(widths) > limit {
        let others = widths.iter_mut().skip(1).filter(|width| **width > NARROWEST);
        if let Some(widest) = others.max_by_key(|width| **width) {
            *widest -= 1;
        } else if let Some(first) = widths.first_mut().filter(|width| **width > NARROWEST) {
            *first -= 1;
        } else {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::collection::IMAGES;

    fn images() -> Vec<Data> {
        let text = r#"[
            {"id":"6f3c0f5e-9a43-4f0e-8f2b-0c5c0e2f0a11","name":"cray-shasta-compute-sles15sp5.x86_64-23.09","arch":"x86_64","created":"2026-11-20T13:53:42.680608","metadata":{"project":"csm"}},
            {"id":"0a11","name":"\u001b[31m日本\u202e\n","arch":"aarch64","created":"2026-11-20T13:53:42","metadata":{}}]"#;
        serde_json::from_str::<Data>(text).unwrap().into_items()
    }

    #[test]
    fn nothing_is_cut_without_a_terminal() {
        insta::assert_snapshot!(list(&IMAGES, &images(), None), @"
        ID                                    NAME                                        ARCH     CREATED               METADATA
        6f3c0f5e-9a43-4f0e-8f2b-0c5c0e2f0a11  cray-shasta-compute-sles15sp5.x86_64-23.09  x86_64   2026-11-20T13:53:42Z  project=csm
        0a11                                  �[31m日本��                                 aarch64  2026-11-20T13:53:42Z  -
        ");
    }

    #[test]
    fn the_id_is_cut_last() {
        let text = list(&IMAGES, &images(), Some(100));
        assert!(text.lines().all(|line| measure_text_width(line) <= 100), "{text}");
        assert!(text.contains("6f3c0f5e-9a43-4f0e-8f2b-0c5c0e2f0a11  cray"), "{text}");
        let text = list(&IMAGES, &images(), Some(60));
        assert!(text.lines().all(|line| measure_text_width(line) <= 60), "{text}");
    }

    #[test]
    fn a_record_is_shown_member_by_member() {
        let data =
            r#"{"id":"a","link":{"path":"s3://b/k","etag":""},"list":[{"key":"A"},{"key":"B"}],"none":null,"on":true}"#;
        insta::assert_snapshot!(record(&serde_json::from_str(data).unwrap()), @"
        id          a
        link.path   s3://b/k
        link.etag   -
        list.0.key  A
        list.1.key  B
        none        -
        on          yes
        ");
    }
}
