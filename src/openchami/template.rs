//! The templates of image-thrillhouse's files, as far as files of layers use them. Pure: no I/O.
//!
//! Such a file is a template of Go's `text/template`. Here are variables, texts, comments and the trimming of white space; other
//! actions are refused by name. The one crate for all of Go's language (gtmpl) is no longer developed.

use std::collections::BTreeMap;

use crate::Wrong;

/// The text with values of variables in it. A variable without a value is an error, as with Go's `missingkey=error`; one in a map
/// is asked for by its whole name, such as `site.name`.
pub(crate) fn render(text: &str, variables: &BTreeMap<String, String>) -> Result<String, Wrong> {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(begin) = rest.find("{{") {
        let line = text[..text.len() - rest.len() + begin].matches('\n').count() + 1;
        let unclosed = || Wrong::Template {
            action: "without an end".to_owned(),
            line,
        };
        out.push_str(&rest[..begin]);
        let mut inner = &rest[begin + 2..];
        if let Some(trimmed) = inner.strip_prefix('-').filter(|inner| inner.starts_with(white)) {
            out.truncate(out.trim_end_matches(white).len());
            inner = trimmed;
        }
        let end = end(inner).ok_or_else(unclosed)?;
        rest = &inner[end + 2..];
        let mut action = &inner[..end];
        if let Some(trimmed) = action.strip_suffix('-').filter(|action| action.ends_with(white)) {
            action = trimmed;
            rest = rest.trim_start_matches(white);
        }
        out.push_str(&value(action.trim_matches(white), line, variables)?);
    }
    out.push_str(rest);
    Ok(out)
}

fn white(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Where an action's `}}` is: not in a text or a comment.
fn end(inner: &str) -> Option<usize> {
    let skip = inner.len() - inner.trim_start_matches(white).len();
    let head = &inner[skip..];
    let past = match head.chars().next()? {
        '/' if head.starts_with("/*") => head.find("*/")? + 2,
        '`' => head[1..].find('`')? + 2,
        '"' => {
            let mut escaped = false;
            let close = head[1..].find(|c| {
                let found = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                found
            })?;
            close + 2
        }
        _ => 0,
    };
    head[past..].find("}}").map(|at| skip + past + at)
}

fn value(action: &str, line: usize, variables: &BTreeMap<String, String>) -> Result<String, Wrong> {
    let refused = || {
        let first = action.split(white).next().unwrap_or_default();
        Wrong::Template {
            action: first.chars().take(40).flat_map(char::escape_debug).collect(),
            line,
        }
    };
    if action.starts_with("/*") && action.ends_with("*/") {
        return Ok(String::new());
    }
    if let Some(raw) = action.strip_prefix('`').and_then(|raw| raw.strip_suffix('`')) {
        return Ok(raw.to_owned());
    }
    if action.starts_with('"') {
        return serde_json::from_str(action).map_err(|_| refused());
    }
    let name = action
        .strip_prefix('$')
        .unwrap_or(action)
        .strip_prefix('.')
        .ok_or_else(refused)?;
    let word = |part: &str| {
        part.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    if !name.split('.').all(word) {
        return Err(refused());
    }
    let missing = || Wrong::Variable {
        name: name.to_owned(),
        line,
    };
    variables.get(name).cloned().ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders() {
        let variables = [("a", "1"), ("b.c", "{{ .a }}")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        for (text, wanted) in [
            ("x{{.a}}y", "x1y"),
            ("x {{- .a -}} \n y", "x1y"),
            ("{{ $.b.c }}", "{{ .a }}"),
            ("{{/* }} */}}{{ \"{{\\\"\" }}{{ `}}` }}", "{{\"}}"),
            ("no { { braces } }", "no { { braces } }"),
            ("ä{{ .a }}ö", "ä1ö"),
        ] {
            assert_eq!(render(text, &variables).unwrap(), wanted, "{text}");
        }
    }

    #[test]
    fn refuses() {
        let variables = BTreeMap::new();
        for (text, wanted) in [
            ("\n\n{{ .none }}", "line 3: the variable none has no value"),
            ("{{ range .x }}", "line 1: the template's action range is not supported"),
            ("{{ if .x }}", "action if is"),
            ("{{ .a | printf }}", "action .a is"),
            ("{{-3}}", "action -3 is"),
            ("{{ }}", "action  is"),
            ("\n{{ .a", "line 2: the template's action without an end"),
        ] {
            let wrong = render(text, &variables).unwrap_err().to_string();
            assert!(wrong.contains(wanted), "{text}: {wrong}");
        }
    }
}
