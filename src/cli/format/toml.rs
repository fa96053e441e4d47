//! Formats results as TOML, like `cray`: a list is the array of tables `results`, and nulls, which TOML lacks, are left
//! out. Pure: no I/O.
//!
//! A formatter of its own keeps the order of the answer as far as TOML allows, and writes a long list in one go.

use std::fmt::Write;

use kiln_records::names::is_invisible;

use crate::client::Data;

pub(super) fn list(records: &[Data]) -> String {
    let mut text = String::new();
    if records.is_empty() {
        return "results = []".to_owned();
    }
    if records.iter().all(|record| matches!(record, Data::Map(_))) {
        array_of_tables(&mut text, "results", records);
    } else {
        text.push_str("results = ");
        inline(&mut text, &Data::List(records.to_vec()));
    }
    finish(text)
}

pub(super) fn record(data: &Data) -> String {
    let mut text = String::new();
    match data {
        Data::Map(members) => table(&mut text, "", members),
        Data::List(records) => return list(records),
        other => inline(&mut text, other),
    }
    finish(text)
}

fn finish(mut text: String) -> String {
    text.truncate(text.trim_end_matches('\n').len());
    text
}

/// One-line values come first, since everything after a heading belongs to that heading.
fn table(text: &mut String, path: &str, members: &[(String, Data)]) {
    let mut deeper = Vec::new();
    for (name, value) in members {
        match value {
            Data::Null => {}
            Data::Map(_) => deeper.push((name, value)),
            Data::List(items) if is_array_of_tables(items) => deeper.push((name, value)),
            other => {
                key(text, name);
                text.push_str(" = ");
                inline(text, other);
                text.push('\n');
            }
        }
    }
    for (name, value) in deeper {
        let mut path = path.to_owned();
        if !path.is_empty() {
            path.push('.');
        }
        key(&mut path, name);
        match value {
            Data::Map(members) => {
                blank_line(text);
                let _ = writeln!(text, "[{path}]");
                table(text, &path, members);
            }
            Data::List(items) => array_of_tables(text, &path, items),
            _ => {}
        }
    }
}

fn array_of_tables(text: &mut String, path: &str, items: &[Data]) {
    for item in items {
        let Data::Map(members) = item else { continue };
        blank_line(text);
        let _ = writeln!(text, "[[{path}]]");
        table(text, path, members);
    }
}

fn blank_line(text: &mut String) {
    if !text.is_empty() {
        text.push('\n');
    }
}

fn is_array_of_tables(items: &[Data]) -> bool {
    !items.is_empty() && items.iter().all(|item| matches!(item, Data::Map(_)))
}

fn inline(text: &mut String, data: &Data) {
    match data {
        Data::Null => text.push_str("\"\""),
        Data::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
        Data::Number(number) => {
            let _ = write!(text, "{number}");
        }
        Data::Text(value) => string(text, value),
        Data::List(items) => {
            text.push('[');
            for (index, item) in items.iter().filter(|item| **item != Data::Null).enumerate() {
                text.push_str(if index == 0 { " " } else { ", " });
                inline(text, item);
            }
            text.push_str(if items.is_empty() { "]" } else { " ]" });
        }
        Data::Map(members) => {
            text.push('{');
            for (index, (name, value)) in members.iter().filter(|(_, value)| *value != Data::Null).enumerate() {
                text.push_str(if index == 0 { " " } else { ", " });
                key(text, name);
                text.push_str(" = ");
                inline(text, value);
            }
            text.push_str(" }");
        }
    }
}

fn key(text: &mut String, name: &str) {
    let is_bare = !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if is_bare {
        text.push_str(name);
    } else {
        string(text, name);
    }
}

fn string(text: &mut String, value: &str) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            hidden if is_invisible(hidden) => {
                let number = u32::from(hidden);
                let _ = if number > 0xffff {
                    write!(text, "\\U{number:08X}")
                } else {
                    write!(text, "\\u{number:04X}")
                };
            }
            plain => text.push(plain),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str) -> Data {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn looks_as_cray_writes_it() {
        let records = data(
            r#"[{"id":"a","link":{"path":"s3://b/k","etag":"","type":"s3"},"template_dictionary":[{"key":"A","value":"x"},{"key":"B","value":"y"}],"name":"n"},
                {"id":"b","link":null,"template_dictionary":[],"name":"Ö \"x\" \\ \u001b\n","metadata":{"a b":"c"},"size":3,"on":false}]"#,
        );
        insta::assert_snapshot!(list(&records.into_items()), @r#"
        [[results]]
        id = "a"
        name = "n"

        [results.link]
        path = "s3://b/k"
        etag = ""
        type = "s3"

        [[results.template_dictionary]]
        key = "A"
        value = "x"

        [[results.template_dictionary]]
        key = "B"
        value = "y"

        [[results]]
        id = "b"
        template_dictionary = []
        name = "Ö \"x\" \\ \u001B\n"
        size = 3
        on = false

        [results.metadata]
        "a b" = "c"
        "#);
        assert_eq!(list(&[]), "results = []");
        assert_eq!(record(&data(r#"{"version":"1.0"}"#)), "version = \"1.0\"");
    }

    #[test]
    fn is_toml() {
        let odd = r#"{"a":[[1,{"b":null,"c":[]}],"x"],"":{"":{"deep.er":[{"k":[{"m":{"n":"\u007f\u202e"}}]}]}},"mixed":[{"a":1},2],"f":1.5}"#;
        let parsed: toml::Table = toml::from_str(&record(&data(odd))).unwrap();
        assert_eq!(parsed["f"].as_float(), Some(1.5));
        assert_eq!(
            parsed[""][""]["deep.er"][0]["k"][0]["m"]["n"].as_str(),
            Some("\u{7f}\u{202e}")
        );
    }
}
