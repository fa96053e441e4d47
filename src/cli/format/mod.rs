//! Formats results: like `cray`, as TOML, JSON or YAML, or as a table for people. Pure: no I/O.

use clap::ValueEnum;
use kiln_records::{Code, Failure};

use crate::client::{Collection, Data};

mod json;
mod table;
mod toml;

/// A format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Toml,
    Json,
    Yaml,
    Table,
}

impl Format {
    /// A record, or any other single answer.
    pub(super) fn record(self, data: &Data) -> Result<String, Failure> {
        match self {
            Format::Toml => Ok(toml::record(data)),
            Format::Json => json::write(data),
            Format::Yaml => yaml(data),
            Format::Table => Ok(table::record(data)),
        }
    }

    /// A list of records.
    pub(super) fn list(self, collection: &Collection, records: Vec<Data>) -> Result<String, Failure> {
        match self {
            Format::Toml => Ok(toml::list(&records)),
            Format::Json => json::write(&Data::List(records)),
            Format::Yaml => yaml(&Data::List(records)),
            Format::Table => Ok(table::list(collection, &records, table::terminal_width())),
        }
    }
}

/// The width of the terminal that results go to, if they do.
pub(super) fn terminal_width() -> Option<usize> {
    table::terminal_width()
}

/// A list for people, no wider than this.
pub(super) fn table(collection: &Collection, records: &[Data], width: Option<usize>) -> String {
    table::list(collection, records, width)
}

fn yaml(data: &Data) -> Result<String, Failure> {
    let options = serde_saphyr::ser_options! { compact_list_indent: true, prefer_block_scalars: false };
    let mut text = String::new();
    serde_saphyr::to_fmt_writer_with_options(&mut text, data, options)
        .map_err(|error| Failure::new(Code::Format, format!("the answer cannot be written as YAML: {error}")))?;
    text.truncate(text.trim_end_matches('\n').len());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_records::names::is_invisible;

    /// Texts with another meaning in YAML, or with control characters for a terminal.
    const AWKWARD: &str = r#"[{"id":"123","t":"2026-11-20T13:53:42.680608","yes":"yes","n":null,"e":"","tilde":"~",
        "num":"1e5","hex":"0x12","oct":"0o7","on":"on","esc":"\u001b[31m\u009b\u202e\u200b\ufeff\udb40\udc41","nl":"a\nb","q":"a \"b\" 'c' \\","hash":"a #b","colon":"a: b",
        "dash":"- x","brace":"{x}","sp":" x ","null":"null","empty":{},"none":[],"list":["a",1,true],
        "link":{"path":"s3://b/k","etag":"","type":"s3"},
        "deep":[{"a":{"b":[{"c":1}]}},{"key":"A","value":"x"}]}]"#;

    fn awkward() -> Data {
        serde_json::from_str(AWKWARD).unwrap()
    }

    #[test]
    fn yaml_reads_back_as_it_was() {
        let text = yaml(&awkward()).unwrap();
        assert!(!text.contains(['\u{1b}', '\u{9b}']), "{text:?}");
        assert_eq!(serde_saphyr::from_str::<Data>(&text).unwrap(), awkward(), "{text}");
    }

    #[test]
    fn json_reads_back_as_it_was() {
        let text = json::write(&awkward()).unwrap();
        assert!(!text.contains(|c: char| c != '\n' && is_invisible(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<Data>(&text).unwrap(), awkward());
    }
}
