//! What an image consists of: the packages that its database of packages knows, and the programs that no package owns.
//! Two documents say it, SPDX 2.3 and CycloneDX 1.6. Pure: no I/O.

mod changes;
mod cyclonedx;
mod licence;
mod read;
mod spdx;

use packageurl::PackageUrl;
use serde::{Deserialize, Serialize};

pub use changes::{PackageChange, changes};
pub use licence::of_copyright_file;
pub use read::{Listed, ListedPackage, Unreadable, read};

/// The most packages of one image. The largest distributions have some 70 000 packages in all.
pub const MOST_PACKAGES: usize = 100_000;

/// The most programs without a package that are listed by name.
pub const MOST_LOOSE: usize = 5_000;

/// The longest name, version or other text of a package, in bytes; longer ones are cut.
pub const LONGEST_TEXT: usize = 1024;

/// The format of packages, which decides how versions are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PackageFormat {
    /// Debian's.
    Deb,
    /// Of Red Hat, SUSE and others.
    Rpm,
}

impl PackageFormat {
    /// Its name, as it is the type in a package URL.
    pub const fn name(self) -> &'static str {
        match self {
            PackageFormat::Deb => "deb",
            PackageFormat::Rpm => "rpm",
        }
    }
}

/// The distribution, by the root's `os-release` (freedesktop.org, os-release(5)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct System {
    /// `ID`, in lower case: `debian`.
    pub id: Option<String>,
    /// `VERSION_ID`: `12`.
    pub version: Option<String>,
    /// `PRETTY_NAME`.
    pub name: Option<String>,
}

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its whole version; an epoch comes first, before a colon.
    pub version: String,
    /// Its architecture, by the distribution's name for it: `arm64`, `noarch`.
    pub arch: String,
    /// The source package that it was built from, with its version if that differs.
    pub source: Option<String>,
    /// The person or organisation that it comes from.
    pub supplier: Option<String>,
    /// The address of the project.
    pub homepage: Option<String>,
    /// The licences that it declares, in the distribution's own words.
    pub licences: Option<String>,
    /// SHA-256 of the file that it came in, lower-case hexadecimal, if that is known.
    pub sha256: Option<String>,
}

/// A program, library or kernel module that no package owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LooseFile {
    /// Its path in the root, which begins with `/`.
    pub path: String,
    /// SHA-1, lower-case hexadecimal: SPDX 2.3 demands it.
    pub sha1: String,
    /// SHA-256, lower-case hexadecimal.
    pub sha256: String,
}

/// Everything that the two documents say of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// The image's name.
    pub image: String,
    /// The name of the architecture, as a record has it.
    pub arch: String,
    /// An id that no other image has; both documents have it in their own ids.
    pub id: uuid::Uuid,
    /// When it was read.
    pub read: jiff::Timestamp,
    /// The distribution.
    pub system: System,
    /// The format of the packages; `None` if the root has no database of packages.
    pub format: Option<PackageFormat>,
    /// The packages, sorted by name.
    pub packages: Vec<Package>,
    /// Programs without a package, sorted by path.
    pub loose: Vec<LooseFile>,
    /// The number of programs without a package that are not in the list, since it is full.
    pub more_loose: u64,
}

/// The package URL (the purl specification, types `deb` and `rpm`) of a package by its name, version and architecture, of a
/// distribution by its `ID` and `VERSION_ID`. None if the package has no name that it can have.
pub fn purl(
    format: PackageFormat,
    (system, system_version): (Option<&str>, Option<&str>),
    (name, version, arch): (&str, &str, &str),
) -> Option<String> {
    let (epoch, version) = match (format, version.split_once(':')) {
        (PackageFormat::Rpm, Some((epoch, version))) => (Some(epoch), version),
        _ => (None, version),
    };
    let mut purl = PackageUrl::new(format.name(), name).ok()?;
    if let Some(id) = system {
        purl.with_namespace(id).ok()?;
    }
    purl.with_version(version).ok()?;
    purl.add_qualifier("arch", arch).ok()?;
    if let Some(epoch) = epoch.filter(|epoch| *epoch != "0") {
        purl.add_qualifier("epoch", epoch).ok()?;
    }
    if let (Some(id), Some(version)) = (system, system_version) {
        purl.add_qualifier("distro", format!("{id}-{version}")).ok()?;
    }
    Some(purl.to_string())
}

impl Inventory {
    /// The document in SPDX 2.3, as JSON.
    ///
    /// # Errors
    ///
    /// When it cannot be serialised.
    pub fn to_spdx(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&spdx::document(self))
    }

    /// The document in CycloneDX 1.6, as JSON.
    ///
    /// # Errors
    ///
    /// When it cannot be serialised.
    pub fn to_cyclonedx(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&cyclonedx::document(self))
    }

    /// The package URL of a package. None if the package has no name that it can have.
    fn purl(&self, package: &Package) -> Option<String> {
        let system = (self.system.id.as_deref(), self.system.version.as_deref());
        purl(self.format?, system, (&package.name, &package.version, &package.arch))
    }

    /// What is said of programs that are not listed.
    fn about_the_rest(&self) -> Option<String> {
        (self.more_loose > 0).then(|| {
            format!(
                "{} further programs, libraries and kernel modules belong to no package and are not listed",
                self.more_loose
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn inventory() -> Inventory {
        let package = |name: &str, version: &str, licences: Option<&str>| Package {
            name: name.to_owned(),
            version: version.to_owned(),
            arch: "arm64".to_owned(),
            source: Some("source (1.0)".to_owned()),
            supplier: Some("A Maintainer <a@example.org>".to_owned()),
            homepage: Some("https://example.org/".to_owned()),
            licences: licences.map(str::to_owned),
            sha256: licences.map(|_| "5".repeat(64)),
        };
        Inventory {
            image: "compute".to_owned(),
            arch: "aarch64".to_owned(),
            id: uuid::Uuid::from_u128(7),
            read: jiff::Timestamp::UNIX_EPOCH,
            system: System {
                id: Some("debian".to_owned()),
                version: Some("12".to_owned()),
                name: Some("Debian GNU/Linux 12 (bookworm)".to_owned()),
            },
            format: Some(PackageFormat::Deb),
            packages: vec![
                package("bash", "5.2.15-2+b7", Some("GPL-3.0-or-later")),
                package("libstdc++6", "1:12.2.0-14", Some("whatever they say")),
            ],
            loose: vec![LooseFile {
                path: "/opt/tool".to_owned(),
                sha1: "da39a3ee5e6b4b0d3255bfef95601890afd80709".to_owned(),
                sha256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".to_owned(),
            }],
            more_loose: 3,
        }
    }

    #[test]
    fn packages_have_their_urls() {
        let inventory = inventory();
        assert_eq!(
            inventory.purl(&inventory.packages[1]).unwrap(),
            "pkg:deb/debian/libstdc%2B%2B6@1:12.2.0-14?arch=arm64&distro=debian-12"
        );
        let rpm = Inventory {
            format: Some(PackageFormat::Rpm),
            system: System::default(),
            ..inventory.clone()
        };
        assert_eq!(
            rpm.purl(&rpm.packages[1]).unwrap(),
            "pkg:rpm/libstdc%2B%2B6@12.2.0-14?arch=arm64&epoch=1"
        );
        let none = Inventory {
            format: None,
            ..inventory
        };
        assert_eq!(none.purl(&none.packages[0]), None);
    }

    #[test]
    fn both_documents_say_the_same_packages() {
        let inventory = inventory();
        let expected: Vec<_> = inventory
            .packages
            .iter()
            .map(|package| (package.name.clone(), package.version.clone()))
            .collect();
        let listed = read(&inventory.to_spdx().unwrap()).unwrap();
        assert_eq!(listed.format, Some(PackageFormat::Deb));
        let of_spdx: Vec<_> = listed
            .packages
            .into_iter()
            .map(|package| (package.name, package.version))
            .collect();
        assert_eq!(of_spdx, expected);
        let cyclonedx: serde_json::Value = serde_json::from_slice(&inventory.to_cyclonedx().unwrap()).unwrap();
        let of_cyclonedx: Vec<_> = cyclonedx["components"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|component| component["type"] == "library")
            .map(|component| {
                let text = |name: &str| component[name].as_str().unwrap().to_owned();
                (text("name"), text("version"))
            })
            .collect();
        assert_eq!(of_cyclonedx, expected);
    }
}
