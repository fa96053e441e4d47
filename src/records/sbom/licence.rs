//! Licences as packages declare them, and as SPDX expressions where they are such. Pure: no I/O.

use std::collections::BTreeSet;

/// The most different licences of one package that are kept.
const MOST: usize = 64;

/// The licences in a machine-readable copyright file (Debian's DEP-5), joined by "and", each in the file's own words.
/// None if the file is for people only.
pub fn of_copyright_file(text: &str) -> Option<String> {
    let first = text.lines().find(|line| !line.trim().is_empty())?;
    let is_format = |field: &str| field.eq_ignore_ascii_case("Format");
    if !first.split_once(':').is_some_and(|(field, _)| is_format(field)) {
        return None;
    }
    let licences: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(field, _)| field.eq_ignore_ascii_case("License"))
        .map(|(_, value)| value.trim())
        .filter(|value| !value.is_empty())
        .take(MOST)
        .collect();
    if licences.is_empty() {
        return None;
    }
    let licences: Vec<String> = licences
        .iter()
        .map(|licence| {
            if licence.contains(" or ") && licences.len() > 1 {
                format!("({licence})")
            } else {
                (*licence).to_owned()
            }
        })
        .collect();
    Some(licences.join(" and "))
}

/// A declared licence as an SPDX expression. None unless each of its licences is shown to be one of SPDX's list.
pub(super) fn expression(declared: &str) -> Option<String> {
    let spaced = declared.replace('(', " ( ").replace(')', " ) ").replace(',', " ");
    let mut words = Vec::new();
    for word in spaced.split_whitespace() {
        let word = match word.to_ascii_lowercase().as_str() {
            "and" => "AND".to_owned(),
            "or" => "OR".to_owned(),
            "with" => "WITH".to_owned(),
            "(" | ")" => word.to_owned(),
            lower => known(lower).unwrap_or_else(|| word.to_owned()),
        };
        words.push(word);
    }
    let text = words.join(" ").replace("( ", "(").replace(" )", ")");
    spdx::Expression::parse(&text).ok().map(|_| text)
}

/// SPDX's id of a short name of DEP-5, which is in lower case. The names are those of its section "Short name".
fn known(name: &str) -> Option<String> {
    let (name, later) = match name.strip_suffix('+') {
        Some(name) => (name, true),
        None => (name, false),
    };
    if let Some((family, version)) = name.rsplit_once('-')
        && let Some(family) = gnu(family)
    {
        let version = if version.contains('.') {
            version.to_owned()
        } else {
            format!("{version}.0")
        };
        let which = if later { "or-later" } else { "only" };
        return Some(format!("{family}-{version}-{which}"));
    }
    if later {
        return None;
    }
    let id = match name {
        "expat" => "MIT",
        "apache-2" | "apache-2.0" => "Apache-2.0",
        "artistic" | "artistic-1.0" => "Artistic-1.0",
        "artistic-2.0" => "Artistic-2.0",
        "bsd-2-clause" => "BSD-2-Clause",
        "bsd-3-clause" => "BSD-3-Clause",
        "bsd-4-clause" => "BSD-4-Clause",
        "isc" => "ISC",
        "zlib" => "Zlib",
        "mpl-1.1" => "MPL-1.1",
        "mpl-2.0" => "MPL-2.0",
        "cc0" | "cc0-1.0" => "CC0-1.0",
        _ => return None,
    };
    Some(id.to_owned())
}

/// The name of one of the GNU project's licences.
fn gnu(family: &str) -> Option<&'static str> {
    match family {
        "gpl" => Some("GPL"),
        "lgpl" => Some("LGPL"),
        "agpl" => Some("AGPL"),
        "gfdl" => Some("GFDL"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copyright_file_names_its_licences() {
        let text = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n\
                    Files: *\nLicense: GPL-3+\n\nFiles: a\nLicense: GPL-2+ or Artistic\n text\n\nLicense: GPL-3+\n long text\n";
        assert_eq!(
            of_copyright_file(text).as_deref(),
            Some("(GPL-2+ or Artistic) and GPL-3+")
        );
        assert_eq!(
            of_copyright_file("This is Debian's package of it.\nLicense: GPL-2"),
            None
        );
        assert_eq!(of_copyright_file(""), None);
        assert_eq!(of_copyright_file("Format: 1.0\n\nFiles: *\n"), None);
    }

    #[test]
    fn only_what_spdx_knows_is_an_expression() {
        let cases = [
            ("GPL-3+", Some("GPL-3.0-or-later")),
            ("GPL-2", Some("GPL-2.0-only")),
            ("LGPL-2.1+", Some("LGPL-2.1-or-later")),
            (
                "(GPL-2+ or Artistic) and Expat",
                Some("(GPL-2.0-or-later OR Artistic-1.0) AND MIT"),
            ),
            (
                "MIT AND Apache-2.0 WITH LLVM-exception",
                Some("MIT AND Apache-2.0 WITH LLVM-exception"),
            ),
            ("GPLv2+ and BSD", None),
            ("public-domain", None),
            ("GPL-3+ with Bison exception", None),
            ("", None),
            ("((((", None),
        ];
        for (declared, expected) in cases {
            assert_eq!(expression(declared).as_deref(), expected, "{declared}");
        }
    }
}
