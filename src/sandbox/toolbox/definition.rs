//! The description of the toolbox: the files of `kata/toolbox/` and `qemu/`, compiled into this program. Pure: no I/O.

use std::collections::BTreeMap;

use kiln_records::{Code, Failure, arch::Arch};
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// The files of the description, by name. Together they identify the toolbox.
pub(in crate::sandbox) const FILES: [(&str, &str); 8] = [
    ("toolbox.toml", include_str!("../../../kata/toolbox/toolbox.toml")),
    ("customize.sh", include_str!("../../../kata/toolbox/customize.sh")),
    ("bin/mount", include_str!("../../../kata/toolbox/bin/mount")),
    ("bin/tar", include_str!("../../../kata/toolbox/bin/tar")),
    ("bin/umount", include_str!("../../../kata/toolbox/bin/umount")),
    (
        "requirements.txt",
        include_str!("../../../kata/toolbox/requirements.txt"),
    ),
    (
        "requirements-build.txt",
        include_str!("../../../kata/toolbox/requirements-build.txt"),
    ),
    ("binfmt.toml", include_str!("../../../qemu/binfmt.toml")),
];

/// `kata/toolbox/toolbox.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::sandbox) struct Definition {
    /// Debian release.
    pub(in crate::sandbox) suite: String,
    /// Components of the archive.
    pub(in crate::sandbox) components: Vec<String>,
    /// Required version prefixes, by package.
    pub(in crate::sandbox) pins: BTreeMap<String, String>,
    /// Packages by purpose.
    pub(in crate::sandbox) packages: BTreeMap<String, Vec<String>>,
}

impl Definition {
    /// Reads the built-in description.
    pub(in crate::sandbox) fn read() -> Result<Self, Failure> {
        let (name, text) = FILES[0];
        toml::from_str(text)
            .map_err(|error| Failure::new(Code::ToolboxDefinition, format!("kata/toolbox/{name}: {error}")))
    }

    /// All packages, without duplicates.
    pub(in crate::sandbox) fn packages(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.packages.values().flatten().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Checks the installed packages (`name version` lines) against the pins.
    pub(in crate::sandbox) fn check_pins(&self, installed: &str) -> Result<(), Failure> {
        let versions: BTreeMap<&str, &str> = installed.lines().filter_map(|line| line.split_once(' ')).collect();
        for (package, wanted) in &self.pins {
            let found = versions.get(package.as_str()).copied().unwrap_or("not installed");
            if !found.starts_with(wanted.as_str()) {
                return Err(Failure::new(
                    Code::ToolboxPin,
                    format!("the mirror delivers {package} {found}, but the toolbox is defined with {wanted}*"),
                )
                .hint(
                    "use a mirror of that Debian release, or change `pins` in kata/toolbox/toolbox.toml and test the result",
                ));
            }
        }
        Ok(())
    }
}

/// SHA-256 of the description and the toolbox's architecture, in hexadecimal.
pub(in crate::sandbox) fn digest(arch: Arch) -> String {
    let mut hash = Sha256::new();
    hash.update(arch.name());
    for (name, text) in FILES {
        hash.update(format!("\n{name} {}\n", text.len()));
        hash.update(text);
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_readable_and_every_pin_is_a_package() {
        let definition = Definition::read().unwrap();
        for package in definition.pins.keys() {
            assert!(definition.packages().contains(&package.as_str()), "{package}");
        }
    }

    #[test]
    fn each_architecture_has_a_toolbox_of_its_own() {
        let names: std::collections::BTreeSet<String> = Arch::ALL.into_iter().map(digest).collect();
        assert_eq!(names.len(), Arch::ALL.len());
    }

    #[test]
    fn a_version_beside_its_pin_is_refused() {
        let definition = Definition {
            suite: String::new(),
            components: Vec::new(),
            pins: [("qemu-user".to_owned(), "1:10.0.".to_owned())].into(),
            packages: BTreeMap::new(),
        };
        definition.check_pins("qemu-user 1:10.0.8+ds\nzypper 1\n").unwrap();
        let error = definition.check_pins("qemu-user 1:11.0+ds\n").unwrap_err();
        assert_eq!(
            error.detail,
            "the mirror delivers qemu-user 1:11.0+ds, but the toolbox is defined with 1:10.0.*"
        );
        assert!(
            definition
                .check_pins("zypper 1\n")
                .unwrap_err()
                .detail
                .contains("not installed")
        );
    }
}
