//! What similar kiwi descriptions have in common: all but the packages that they name. Pure: no I/O.

use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use sha2::{Digest, Sha256};

/// A digest of a description without the packages that it names. `None` if it is no XML, has a document type, or is a template
/// that does more than to put values in their places.
///
/// An element `<package name="…"/>` directly below `packages` counts as named, with plain characters in its name and no other
/// attribute than `arch`. All else is part of the digest. So descriptions with one digest, rendered with the same values, have the
/// same repositories and differ in such elements only.
pub fn without_packages(description: &str) -> Option<[u8; 32]> {
    if !is_plain_template(description) {
        return None;
    }
    let mut reader = Reader::from_str(description);
    let (mut hash, mut open, mut begun) = (Sha256::new(), Vec::new(), 0);
    loop {
        let event = reader.read_event().ok()?;
        let end = usize::try_from(reader.buffer_position()).ok()?;
        let token = description.get(begun..end)?;
        begun = end;
        match event {
            Event::Eof => return Some(hash.finalize().into()),
            Event::DocType(_) => return None,
            Event::Text(_) if token.trim().is_empty() => continue,
            Event::Empty(element) if open.last().is_some_and(|parent| parent == b"packages") && names_one(&element) => {
                continue;
            }
            Event::Start(element) => open.push(element.name().as_ref().to_vec()),
            Event::End(_) => drop(open.pop()),
            _ => {}
        }
        hash.update((token.len() as u64).to_be_bytes());
        hash.update(token);
    }
}

/// Whether an element names a package, and does nothing else.
fn names_one(element: &BytesStart<'_>) -> bool {
    let mut attributes = element.attributes();
    let mut named = false;
    for attribute in attributes.with_checks(false) {
        let Ok(attribute) = attribute else { return false };
        let is_plain = |others: &[u8]| {
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || others.contains(byte);
            !attribute.value.is_empty() && attribute.value.iter().all(plain)
        };
        match attribute.key.as_ref() {
            b"name" if !named && is_plain(b"+-._") => named = true,
            b"arch" if is_plain(b"_,") => {}
            _ => return false,
        }
    }
    named && element.name().as_ref() == b"package"
}

/// Whether all that a template does is to put values in their places: `{{ name }}`.
fn is_plain_template(text: &str) -> bool {
    if ["{%", "{#"].iter().any(|opening| text.contains(opening)) {
        return false;
    }
    text.split("{{").skip(1).all(|rest| {
        let name = rest.split_once("}}").map(|(name, _)| name.trim());
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        name.is_some_and(|name| !name.is_empty() && name.chars().all(is_part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(packages: &str) -> String {
        format!(
            "<?xml version=\"1.0\"?>\n<image name=\"i\">\n  <!-- a -->\n  <repository><source path=\"{{{{ mirror }}}}\"/></repository>\n  \
             <packages type=\"image\">{packages}</packages>\n</image>\n"
        )
    }

    #[test]
    fn only_named_packages_do_not_count() {
        let digest = |packages: &str| without_packages(&with(packages)).unwrap();
        let none = digest("");
        for same in [
            "<package name=\"less\"/>",
            "\n    <package name=\"g++\"/>\n    <package name='a.b_c' arch='x86_64,aarch64' />\n  ",
        ] {
            assert_eq!(digest(same), none, "{same}");
        }
        let other = [
            "<package name=\"{{ package }}\"/>",
            "<package name=\"a b\"/>",
            "<package name=\"\"/>",
            "<package arch=\"x86_64\"/>",
            "<package name=\"less\" bootinclude=\"true\"/>",
            "<package name=\"less\" name=\"more\"/>",
            "<package name=\"less\"></package>",
            "<ignore name=\"less\"/>",
            "<namedCollection name=\"base\"/>",
            "<a><package name=\"less\"/></a>",
            "<!-- <package name=\"less\"/> -->",
            "<![CDATA[<package name=\"less\"/>]]>",
            "text",
        ];
        let digests: std::collections::BTreeSet<_> = other.iter().map(|other| digest(other)).collect();
        assert!(!digests.contains(&none));
        assert_eq!(digests.len(), other.len());
    }

    #[test]
    fn what_is_around_packages_counts() {
        let text = with("");
        let digest = without_packages(&text);
        assert!(digest.is_some());
        for (from, to) in [
            ("mirror", "other"),
            ("<!-- a -->", "<!-- b -->"),
            ("type=\"image\"", "type=\"bootstrap\""),
            ("<repository>", "<repository><package name=\"less\"/>"),
            ("\"i\"", "\"i\" "),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text);
            assert_ne!(without_packages(&changed), digest, "{to}");
        }
        // An element may not hide what follows it.
        let hides = text.replace(
            "<!-- a -->",
            "<!-- a -<package name=\"less\"/>-> <repository/> <!-- -->",
        );
        assert_ne!(without_packages(&hides), digest);
    }

    #[test]
    fn a_template_may_only_name_values() {
        for (text, is_plain) in [
            ("a {{ b }} {{c_1}} }} {", true),
            ("{% if a %}", false),
            ("{# a #}", false),
            ("{{ a | upper }}", false),
            ("{{ a[1] }}", false),
            ("{{ 'a' }}", false),
            ("{{ a", false),
            ("{{}}", false),
        ] {
            assert_eq!(is_plain_template(text), is_plain, "{text}");
        }
        for text in ["<a>", "<!DOCTYPE a><a/>", "<a></b>", "<a b=></a>"] {
            let found = without_packages(text);
            assert!(found.is_none() || text == "<a>" || text.contains("b="), "{text}");
        }
    }
}
