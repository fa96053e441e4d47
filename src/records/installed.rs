//! The packages of a root at the moment when all that its recipe asks for are installed, each with the digest of the file
//! that it came in. Pure: no I/O.

use std::{collections::BTreeMap, str::FromStr};

use packageurl::PackageUrl;
use serde::{Deserialize, Serialize};

use crate::{
    LayerUse, RepositoryState,
    sbom::{PackageFormat, purl},
};

/// The packages of a root.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// The format of the packages; `None` if the root has no database of packages.
    pub format: Option<PackageFormat>,
    /// `ID` of the root's `os-release`, in lower case.
    pub system: Option<String>,
    /// `VERSION_ID` of it.
    pub system_version: Option<String>,
    /// The packages, sorted.
    pub packages: Vec<InstalledPackage>,
    /// The repositories that could be looked at before the packages were installed, in the recipe's order.
    pub repositories: Vec<RepositoryState>,
    /// The container images that it was made from: the name of each, and its digest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<RepositoryState>,
}

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstalledPackage {
    /// Its name.
    pub name: String,
    /// Its whole version. An epoch comes first, before a colon; rpm's epoch 0 is left out.
    pub version: String,
    /// Its architecture, by the distribution's name for it: `arm64`, `noarch`.
    pub arch: String,
    /// SHA-256 of its file, lower-case hexadecimal; `None` if the file could not be looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl Installed {
    /// The most packages. An agent that finds more tells of none.
    pub const MOST_PACKAGES: usize = 20_000;

    /// The longest text of a package, in bytes.
    const LONGEST: usize = 256;

    /// Whether it is as large as an agent makes one: a recipe's sandbox must not decide the size of a record.
    pub fn is_sound(&self) -> bool {
        let short = |text: &str| text.len() <= Self::LONGEST;
        let short_or_none = |text: &Option<String>| text.as_deref().is_none_or(short);
        self.packages.len() <= Self::MOST_PACKAGES
            && [&self.repositories, &self.bases]
                .iter()
                .all(|all| all.len() <= LayerUse::MOST_REPOSITORIES && all.iter().all(RepositoryState::is_sound))
            && [&self.system, &self.system_version].into_iter().all(short_or_none)
            && self.packages.iter().all(InstalledPackage::is_sound)
    }

    /// The number of packages whose digest is not known.
    pub fn without_digest(&self) -> usize {
        self.packages.iter().filter(|package| package.sha256.is_none()).count()
    }

    /// The package URL of one of its packages. None if the package has no name that it can have.
    pub fn purl(&self, package: &InstalledPackage) -> Option<String> {
        let system = (self.system.as_deref(), self.system_version.as_deref());
        purl(self.format?, system, (&package.name, &package.version, &package.arch))
    }

    /// The digests by name, version and architecture.
    pub fn digests(&self) -> BTreeMap<(&str, &str, &str), &str> {
        let known = self.packages.iter().filter_map(|package| {
            let InstalledPackage {
                name,
                version,
                arch,
                sha256,
            } = package;
            Some(((name.as_str(), version.as_str(), arch.as_str()), sha256.as_deref()?))
        });
        known.collect()
    }
}

impl InstalledPackage {
    /// Whether its texts are of a usual length, and its digest is one.
    pub fn is_sound(&self) -> bool {
        let short = |text: &str| (1..=Installed::LONGEST).contains(&text.len()) && !text.chars().any(char::is_control);
        [&self.name, &self.version, &self.arch]
            .into_iter()
            .all(|text| short(text))
            && self.sha256.as_deref().is_none_or(is_sha256)
    }
}

/// Whether a text is a SHA-256 in lower-case hexadecimal.
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The version of a package as it is compared: rpm's database has an epoch in each.
pub fn plain_version(format: PackageFormat, version: &str) -> &str {
    match format {
        PackageFormat::Rpm => version.strip_prefix("0:").unwrap_or(version),
        PackageFormat::Deb => version,
    }
}

/// The package that a package URL of [`purl`] names. None for any other text.
pub fn of_purl(text: &str) -> Option<InstalledPackage> {
    let purl = PackageUrl::from_str(text).ok()?;
    if ![PackageFormat::Deb, PackageFormat::Rpm]
        .iter()
        .any(|format| format.name() == purl.ty())
    {
        return None;
    }
    let version = purl.version()?;
    let version = match purl.qualifiers().get("epoch") {
        Some(epoch) => format!("{epoch}:{version}"),
        None => version.to_owned(),
    };
    Some(InstalledPackage {
        name: purl.name().to_owned(),
        version,
        arch: purl.qualifiers().get("arch")?.to_string(),
        sha256: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_url_names_its_package() {
        for (format, version, plain) in [
            (PackageFormat::Deb, "1:12.2.0-14+b1", "1:12.2.0-14+b1"),
            (PackageFormat::Deb, "2.36~rc1-9", "2.36~rc1-9"),
            (PackageFormat::Rpm, "0:5.2-1.el9", "5.2-1.el9"),
            (PackageFormat::Rpm, "2:9.0^git1-1", "2:9.0^git1-1"),
        ] {
            let version = plain_version(format, version);
            let purl = purl(format, (Some("debian"), None), ("libstdc++6", version, "arm64")).unwrap();
            let package = of_purl(&purl).unwrap();
            assert_eq!(
                (&*package.name, &*package.version, &*package.arch),
                ("libstdc++6", plain, "arm64"),
                "{purl}"
            );
        }
        for other in ["", "recipe", "s3://a/b", "pkg:npm/a@1?arch=x", "pkg:deb/debian/a"] {
            assert_eq!(of_purl(other), None, "{other}");
        }
    }

    #[test]
    fn a_record_that_no_agent_makes_is_not_sound() {
        let package = |name: &str, sha256: Option<&str>| InstalledPackage {
            name: name.to_owned(),
            version: "1".to_owned(),
            arch: "all".to_owned(),
            sha256: sha256.map(str::to_owned),
        };
        let of = |packages| Installed {
            packages,
            ..Installed::default()
        };
        assert!(of(vec![package("a", Some(&"0a".repeat(32))), package("b", None)]).is_sound());
        for wrong in [
            package("a", Some("0a")),
            package("a", Some(&"0A".repeat(32))),
            package("", None),
            package("a\nb", None),
            package(&"a".repeat(300), None),
        ] {
            assert!(!of(vec![wrong.clone()]).is_sound(), "{wrong:?}");
        }
        assert!(!of(vec![package("a", None); Installed::MOST_PACKAGES + 1]).is_sound());
    }
}
