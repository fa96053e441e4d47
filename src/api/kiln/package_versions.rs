//! Compares versions of packages as the packages' own managers do. Pure: no I/O.

use std::cmp::Ordering;

use kiln_records::sbom::PackageFormat;

/// Compares two versions. None if one of them cannot be a version of a package of this format.
pub(super) fn compare(format: PackageFormat, one: &str, other: &str) -> Option<Ordering> {
    match format {
        PackageFormat::Deb => {
            let parse = |text: &str| text.parse::<debversion::Version>().ok();
            Some(parse(one)?.cmp(&parse(other)?))
        }
        PackageFormat::Rpm => {
            let is_one = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
            (is_one(one) && is_one(other)).then(|| rpm_version::rpm_evr_compare(one, other))
        }
    }
}

/// Whether a text can be a version of a package of any format.
pub(super) fn is_version(text: &str) -> bool {
    let formats = [PackageFormat::Deb, PackageFormat::Rpm];
    formats.into_iter().any(|format| compare(format, text, text).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_their_package_managers_say() {
        use Ordering::{Equal, Greater, Less};
        use PackageFormat::{Deb, Rpm};
        for (format, one, other, expected) in [
            (Deb, "3.0.9-1", "3.0.15-1", Some(Less)),
            (Deb, "1:1.0", "2.0", Some(Greater)),
            (Deb, "1.0~rc1", "1.0", Some(Less)),
            (Deb, "1.0", "1.0-0", Some(Equal)),
            (Deb, "3.0.15-1~deb12u1", "3.0.15", Some(Greater)),
            (Deb, "a b", "1", None),
            (Rpm, "0:3.0.9-1", "0:3.0.15-1", Some(Less)),
            (Rpm, "3.0.15", "0:3.0.15-4", Some(Less)),
            (Rpm, "1:1.0-1", "0:2.0-1", Some(Greater)),
            (Rpm, "1.0~rc1-1", "1.0-1", Some(Less)),
            (Rpm, "", "1", None),
        ] {
            assert_eq!(compare(format, one, other), expected, "{one} {other}");
        }
    }
}
