//! Generates the tables of `docs/metrics.md`, and checks the definitions. Only a test: it reads the page, or writes it if
//! asked.

use std::{collections::BTreeSet, fmt::Write};

use super::{
    MOST_PLACES,
    definition::{Kind, Source, Values},
    table,
};

/// Rewrites the page if this variable is set.
const UPDATE: &str = "KILN_UPDATE_METRICS";

/// What is above the tables on the page, and stays as it is.
const MARK: &str =
    "<!-- Made from src/metrics/table.rs: KILN_UPDATE_METRICS=1 cargo test -p kiln --lib metrics_page -->\n";

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");

/// The most values of a label that the page lists.
const MOST_VALUES: usize = 20;

fn tables() -> String {
    let mut text = String::new();
    for (heading, source) in [
        ("Of the records", Source::Records),
        ("Of one server", Source::Server),
        ("Counted by one process", Source::Process),
    ] {
        let _ = write!(
            text,
            "\n## {heading}\n\n| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n"
        );
        for metric in table::all() {
            let about = metric.about();
            if about.source != source {
                continue;
            }
            let kind = match metric.kind() {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let labels: Vec<String> = about.labels.iter().map(|label| format!("`{}`", label.name)).collect();
            let labels = if labels.is_empty() {
                "–".to_owned()
            } else {
                labels.join(", ")
            };
            let _ = writeln!(text, "| `{}` | {kind} | {labels} | {} |", about.name, about.help);
        }
    }
    text.push_str("\n## Labels\n\n| Label | Of | Values |\n|---|---|---|\n");
    let mut seen = BTreeSet::new();
    for metric in table::all() {
        for label in metric.about().labels {
            let values = match label.values {
                Values::Places => format!("names of places, {MOST_PLACES} of them; the rest count as `others`"),
                Values::Fixed => "the version".to_owned(),
                Values::Are(values) => {
                    let values = values();
                    if values.len() > MOST_VALUES {
                        format!("one of {}: see [errors.md](errors.md)", values.len())
                    } else {
                        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
                        values.join(", ")
                    }
                }
            };
            let of: Vec<String> = table::all()
                .iter()
                .filter(|other| other.about().labels.iter().any(|other| same(other, label)))
                .map(|other| format!("`{}`", other.about().name))
                .collect();
            let of = if of.len() > 3 {
                "several".to_owned()
            } else {
                of.join(", ")
            };
            if seen.insert((label.name, values.clone())) {
                let _ = writeln!(text, "| `{}` | {of} | {values} |", label.name);
            }
        }
    }
    text
}

fn same(one: &super::definition::Label, other: &super::definition::Label) -> bool {
    let values = |label: &super::definition::Label| match label.values {
        Values::Are(values) => values(),
        Values::Places => vec!["places"],
        Values::Fixed => vec!["fixed"],
    };
    one.name == other.name && values(one) == values(other)
}

#[test]
fn the_metrics_page_is_the_table() {
    let page = fs_err::read_to_string(PAGE).unwrap();
    let (above, _) = page.split_once(MARK).expect("the page has the mark");
    let made = format!("{above}{MARK}{}", tables());
    if std::env::var_os(UPDATE).is_some() {
        fs_err::write(PAGE, made).unwrap();
        return;
    }
    assert!(
        page == made,
        "docs/metrics.md is not what src/metrics/table.rs says; write it anew with\n\n    \
         {UPDATE}=1 cargo test -p kiln --lib metrics_page"
    );
}

#[test]
fn metrics_have_the_names_that_prometheus_expects() {
    let mut names = BTreeSet::new();
    for metric in table::all() {
        let about = metric.about();
        let name = about.name;
        assert!(names.insert(name), "{name} is there twice");
        assert!(name.starts_with("kiln_") && !about.help.is_empty() && !about.help.contains('|'));
        assert_eq!(name.ends_with("_total"), metric.kind() == Kind::Counter, "{name}");
        if metric.kind() == Kind::Histogram {
            assert!(name.ends_with("_duration_seconds"), "{name}");
        }
        let labels: BTreeSet<_> = about.names().into_iter().collect();
        assert_eq!(labels.len(), about.labels.len(), "{name}");
        assert!(!labels.contains("le") && !labels.contains("job"), "{name}");
    }
}

/// However jobs and callers behave, there are no more series than this.
#[test]
fn the_number_of_series_is_bounded() {
    let values = |values| match values {
        Values::Are(values) => values().len(),
        Values::Places => MOST_PLACES + 1,
        Values::Fixed => 1,
    };
    for metric in table::all() {
        let about = metric.about();
        let series: usize = about.labels.iter().map(|label| values(label.values)).product();
        // Most combinations never occur: the isolation, for one, follows from the driver.
        assert!(series <= 1200, "{} may have {series} series", about.name);
    }
}
