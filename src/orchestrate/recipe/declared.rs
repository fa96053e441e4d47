//! Reads what a description, and the parts that it includes, declare of their images. Pure: no I/O.
//!
//! A template need not be well-formed XML before it is rendered; in that case nothing is known. Texts are read as streams, which takes
//! no longer for one that is meant to take long.

use std::collections::BTreeSet;

use kiln_records::arch::Arch;
use quick_xml::events::{BytesStart, Event};

/// What one text declares.
#[derive(Debug, Default)]
pub(super) struct Part {
    types: Vec<Type>,
    /// The addresses of what it includes.
    pub(super) includes: Vec<String>,
    /// Whether it has a profile that is in force by itself.
    has_own_profile: bool,
}

/// An image type, by the section that it is in.
#[derive(Debug)]
struct Type {
    archs: Option<String>,
    profiles: Option<String>,
}

/// The element of the first level that is being read.
enum Section {
    Preferences {
        archs: Option<String>,
        profiles: Option<String>,
    },
    Other,
}

impl Part {
    /// Reads a text; `None` where nothing is known.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut reader = quick_xml::Reader::from_str(text);
        let (mut part, mut section, mut depth) = (Self::default(), Section::Other, 0_usize);
        loop {
            let (element, is_open) = match reader.read_event().ok()? {
                Event::Start(element) => (element, true),
                Event::Empty(element) => (element, false),
                Event::End(_) => {
                    depth = depth.checked_sub(1)?;
                    if depth == 1 {
                        section = Section::Other;
                    }
                    continue;
                }
                Event::Eof => break,
                _ => continue,
            };
            match (depth, element.name().as_ref(), &section) {
                (1, b"include", _) => part.includes.extend(attribute(&element, b"from")),
                (1, b"preferences", _) if is_open => {
                    section = Section::Preferences {
                        archs: attribute(&element, b"arch"),
                        profiles: attribute(&element, b"profiles").filter(|names| !names.trim().is_empty()),
                    };
                }
                (2, b"type", Section::Preferences { archs, profiles }) => part.types.push(Type {
                    archs: archs.clone(),
                    profiles: profiles.clone(),
                }),
                (2, b"profile", _) => {
                    let import = attribute(&element, b"import");
                    part.has_own_profile |= import.is_some_and(|import| ["true", "1"].contains(&import.trim()));
                }
                _ => {}
            }
            depth += usize::from(is_open);
        }
        (depth == 0).then_some(part)
    }
}

/// The architectures that every `<preferences>` with an image type is limited to.
///
/// kiwi restricts an image to some architectures by the `arch` attribute of `<preferences>` (kiwi's documentation,
/// "Image Description Elements"). A section without it applies to all, so nothing is declared.
pub(super) fn archs(parts: &[Part]) -> Vec<Arch> {
    let types = || parts.iter().flat_map(|part| &part.types);
    if types().any(|it| it.archs.is_none()) {
        return Vec::new();
    }
    let names = types().filter_map(|it| it.archs.as_deref());
    let archs = names.flat_map(|names| names.split(','));
    let archs: BTreeSet<Arch> = archs.filter_map(|name| name.trim().parse().ok()).collect();
    archs.into_iter().collect()
}

/// What a job for any architecture would be refused for unless its user chooses something.
pub(super) fn warning(parts: &[Part]) -> Option<String> {
    let types: Vec<&Type> = parts.iter().flat_map(|part| &part.types).collect();
    if types.is_empty() {
        return Some("its description has no image type".to_owned());
    }
    let has_own = parts.iter().any(|part| part.has_own_profile);
    if has_own || types.iter().any(|it| it.profiles.is_none()) {
        return None;
    }
    let names = types.iter().filter_map(|it| it.profiles.as_deref());
    let names: BTreeSet<&str> = names.flat_map(|names| names.split(',').map(str::trim)).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    Some(format!(
        "each of its image types belongs to a profile, and none is in force by itself: choose one of {names} for its jobs"
    ))
}

fn attribute(element: &BytesStart<'_>, name: &[u8]) -> Option<String> {
    let mut attributes = element.attributes();
    // Without a look for doubles, which compares each with all others.
    let mut named = attributes.with_checks(false).filter_map(Result::ok);
    let found = named.find(|attribute| attribute.key.as_ref() == name)?;
    String::from_utf8(found.value.into_owned()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> (Vec<Arch>, Option<String>) {
        let parts: Option<Vec<Part>> = texts.iter().map(|text| Part::read(text)).collect();
        parts.map_or((Vec::new(), None), |parts| (archs(&parts), warning(&parts)))
    }

    #[test]
    fn a_recipe_declares_its_architecture_as_kiwi_says_it() {
        let with = |attribute: &str| {
            of(&[&format!(
                "<image><preferences{attribute}><type image='tbz'/></preferences></image>"
            )])
            .0
        };
        assert_eq!(with(" arch='aarch64'"), [Arch::Aarch64]);
        assert_eq!(with(" arch='x86_64,aarch64'"), [Arch::X86_64, Arch::Aarch64]);
        assert_eq!(with(""), []);
        assert_eq!(of(&["<image>{% if x < 1 %}</image>"]).0, []);
        let both = "<preferences/><preferences arch='aarch64'><type/></preferences>";
        assert_eq!(of(&[&format!("<image>{both}</image>")]).0, [Arch::Aarch64]);
        for unknown in [
            format!("<image>{both}<preferences><type/></preferences></image>"),
            format!("<image>{both}"),
            format!("<image><users>{both}</users></image>"),
        ] {
            assert_eq!(of(&[&unknown]).0, [], "{unknown}");
        }
        let part = "<image><preferences arch='x86_64'><type/></preferences></image>";
        assert_eq!(
            of(&["<image><include from='this://p'/></image>", part]).0,
            [Arch::X86_64]
        );
    }

    #[test]
    fn a_type_that_is_in_force_without_a_choice_needs_no_word() {
        let with = |profile: &str, preferences: &str| {
            let text = format!(
                "<image><profiles><profile name='A'{profile}/></profiles><preferences {preferences}><type/></preferences></image>"
            );
            of(&[&text]).1
        };
        assert_eq!(with("", ""), None);
        assert_eq!(with("", "profiles=''"), None);
        assert_eq!(with(" import='true'", "profiles='A'"), None);
        let why = with("", "profiles='B, A'").unwrap();
        assert!(why.ends_with("choose one of A, B for its jobs"), "{why}");
        assert!(of(&["<image/>"]).1.unwrap().contains("no image type"));
    }
}
