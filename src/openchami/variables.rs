//! Files of variables for templates, with their values as Go would print them. Pure: no I/O.

use std::collections::BTreeMap;

use crate::{
    Wrong,
    yaml::{Node, Value, parse},
};

/// The variables of a file, in YAML or JSON. One in a mapping has the name of all keys that lead to it, such as `site.name`.
///
/// # Errors
///
/// The text is no YAML, or no mapping.
pub fn read_variables(text: &str) -> Result<BTreeMap<String, String>, Wrong> {
    let node = parse(text, true)?;
    let mut variables = BTreeMap::new();
    match &node.value {
        Value::Map(entries) => flat("", entries, &mut variables),
        _ if node.is_null() => {}
        _ => {
            return Err(Wrong::Type {
                key: "the file".to_owned(),
                line: node.line,
                wanted: "a mapping",
            });
        }
    }
    Ok(variables)
}

fn flat(path: &str, entries: &[(String, Node)], variables: &mut BTreeMap<String, String>) {
    for (key, node) in entries {
        let name = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        match &node.value {
            Value::Map(entries) => flat(&name, entries, variables),
            _ => _ = variables.insert(name, printed(node)),
        }
    }
}

fn printed(node: &Node) -> String {
    match &node.value {
        _ if node.is_null() => "<no value>".to_owned(),
        Value::Scalar { text, plain: false } => text.clone(),
        Value::Scalar { text, plain: true } => number(text).unwrap_or_else(|| match text.as_str() {
            "true" | "True" | "TRUE" => "true".to_owned(),
            "false" | "False" | "FALSE" => "false".to_owned(),
            _ => text.clone(),
        }),
        Value::List(items) => format!("[{}]", items.iter().map(printed).collect::<Vec<_>>().join(" ")),
        Value::Map(entries) => {
            let pairs: BTreeMap<&str, String> = entries
                .iter()
                .map(|(key, node)| (key.as_str(), printed(node)))
                .collect();
            format!(
                "map[{}]",
                pairs
                    .iter()
                    .map(|(key, value)| format!("{key}:{value}"))
                    .collect::<Vec<_>>()
                    .join(" ")
            )
        }
    }
}

/// A number, as yaml.v3 reads it and Go prints it.
fn number(text: &str) -> Option<String> {
    let (sign, digits) = text
        .strip_prefix(['-', '+'])
        .map_or(("", text), |rest| (if text.starts_with('-') { "-" } else { "" }, rest));
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let plain = digits.replace('_', "");
    let radix = |digits: &str, radix| u64::from_str_radix(digits, radix).ok();
    let integer = match plain.as_bytes() {
        [b'0', b'x', ..] => radix(&plain[2..], 16),
        [b'0', b'o', ..] => radix(&plain[2..], 8),
        [b'0', b'b', ..] => radix(&plain[2..], 2),
        [b'0', _, ..] => radix(&plain[1..], 8),
        _ => plain.parse().ok(),
    };
    if let Some(integer) = integer {
        return Some(format!("{}{integer}", if integer == 0 { "" } else { sign }));
    }
    let float = plain
        .chars()
        .all(|c| c.is_ascii_digit() || "+-.eE".contains(c))
        .then(|| plain.parse::<f64>().ok())??;
    let exponent = format!("{float:e}");
    let (mantissa, power) = exponent.split_once('e')?;
    let power: i32 = power.parse().ok()?;
    Some(if (-4..6).contains(&power) {
        format!("{sign}{float}")
    } else {
        let direction = if power < 0 { '-' } else { '+' };
        format!("{sign}{mantissa}e{direction}{:02}", power.abs())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed_as_go_does() {
        for (text, wanted) in [
            ("9.10", "9.1"),
            ("'9.10'", "9.10"),
            ("0755", "493"),
            ("0x10", "16"),
            ("-3", "-3"),
            ("1_000", "1000"),
            ("1e3", "1000"),
            ("1234567.0", "1.234567e+06"),
            ("0.00001", "1e-05"),
            ("yes", "yes"),
            ("True", "true"),
            ("~", "<no value>"),
            ("1.2.3", "1.2.3"),
            ("089", "89"),
            ("[a, 1.50]", "[a 1.5]"),
        ] {
            assert_eq!(read_variables(&format!("a: {text}")).unwrap()["a"], wanted, "{text}");
        }
        let nested = read_variables("a: {b: {c: 1}}\nd:\n").unwrap();
        assert_eq!((nested["a.b.c"].as_str(), nested.len()), ("1", 2));
        assert!(read_variables("").unwrap().is_empty());
        assert_eq!(
            read_variables("- a").unwrap_err().to_string(),
            "the file (line 1) must be a mapping"
        );
    }
}
