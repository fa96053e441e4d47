//! Texts of users as words of other languages, so that each stays one word. Pure: no I/O.

use crate::Wrong;

/// The longest line of a Containerfile that buildah's parser takes is 64 KiB.
const LONGEST: usize = 60_000;

/// A word of bash.
pub(crate) fn bash(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "_-./:=+,@%".contains(c);
    if !text.is_empty() && text.chars().all(safe) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A text or an attribute of XML.
pub(crate) fn xml(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(c),
        }
    }
    out
}

/// The words of an instruction in its JSON form, on one line. Of `<`, an instruction that is not taken for JSON could make a
/// heredoc.
pub(crate) fn json<S: AsRef<str>>(key: &str, words: &[S]) -> Result<String, Wrong> {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let text = serde_json::to_string(&words).map_err(|_| Wrong::value(key, "cannot be written"))?;
    let text = text.replace('<', "\\u003c");
    if text.len() > LONGEST {
        return Err(Wrong::unsupported(
            key,
            "it is too long for a line of a Containerfile: put it into a file",
        ));
    }
    Ok(text)
}

/// A word of an instruction that expands variables, such as `COPY` and `LABEL`, even in its JSON form.
pub(crate) fn unexpanded(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if matches!(c, '\\' | '$' | '"' | '\'') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The value of a `LABEL`.
pub(crate) fn label(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        if matches!(c, '\\' | '$' | '"') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_words() {
        for (text, wanted) in [
            ("a-b/c", "a-b/c"),
            ("", "''"),
            ("it's $(x)", r"'it'\''s $(x)'"),
            ("a\nb", "'a\nb'"),
            ("~", "'~'"),
        ] {
            assert_eq!(bash(text), wanted);
        }
        assert_eq!(xml("a\"<b>&'"), "a&quot;&lt;b&gt;&amp;'");
        assert_eq!(
            json("k", &["a\n\"b\"\\", "<<EOF $X"]).unwrap(),
            r#"["a\n\"b\"\\","\u003c<EOF $X"]"#.replace("<EOF", "\\u003cEOF")
        );
        assert!(json("k", &["x".repeat(70_000)]).is_err());
        assert_eq!(unexpanded(r#"a$b\'""#), r#"a\$b\\\'\""#);
        assert_eq!(label("a \"$b\" 'c'\\"), r#""a \"\$b\" 'c'\\""#);
    }
}
