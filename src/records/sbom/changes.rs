//! Compares the packages of two images. Pure: no I/O.

use std::collections::BTreeMap;

use super::ListedPackage;

/// A package of which two images have different versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageChange {
    /// Its name.
    pub name: String,
    /// Its architecture, by the distribution's name for it.
    pub arch: String,
    /// The versions in the older image, with commas; empty if it has none. A few packages, such as kernels, are there in
    /// several.
    pub old: String,
    /// The same of the newer image.
    pub new: String,
}

impl PackageChange {
    /// What became of it: `added`, `removed` or `changed`.
    pub const fn kind(&self) -> &'static str {
        match (self.old.is_empty(), self.new.is_empty()) {
            (true, _) => "added",
            (_, true) => "removed",
            _ => "changed",
        }
    }
}

/// The packages that differ, by name and architecture.
pub fn changes(old: &[ListedPackage], new: &[ListedPackage]) -> Vec<PackageChange> {
    let mut all: BTreeMap<(&str, &str), [Vec<&str>; 2]> = BTreeMap::new();
    for (side, packages) in [old, new].into_iter().enumerate() {
        for package in packages {
            let versions = all.entry((&package.name, &package.arch)).or_default();
            versions[side].push(&package.version);
        }
    }
    let mut changes = Vec::new();
    for ((name, arch), mut sides) in all {
        // Documents list them in any order.
        for side in &mut sides {
            side.sort_unstable();
        }
        let [old, new] = sides.map(|side| side.join(", "));
        if old != new {
            let (name, arch) = (name.to_owned(), arch.to_owned());
            changes.push(PackageChange { name, arch, old, new });
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_that_differ_are_named_once() {
        let package = |name: &str, version: &str, arch: &str| ListedPackage {
            name: name.to_owned(),
            version: version.to_owned(),
            arch: arch.to_owned(),
            licences: None,
        };
        let old = [
            package("kernel", "6.1", "x86_64"),
            package("kernel", "6.2", "x86_64"),
            package("gone", "1", "all"),
            package("libc", "2.36", "amd64"),
            package("same", "1", "all"),
        ];
        let new = [
            package("same", "1", "all"),
            package("kernel", "6.2", "x86_64"),
            package("kernel", "6.1", "x86_64"),
            package("libc", "2.41", "amd64"),
            package("libc", "2.41", "i386"),
        ];
        let found: Vec<_> = changes(&old, &new)
            .into_iter()
            .map(|change| {
                format!(
                    "{} {} {}: {} > {}",
                    change.kind(),
                    change.name,
                    change.arch,
                    change.old,
                    change.new
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                "removed gone all: 1 > ",
                "changed libc amd64: 2.36 > 2.41",
                "added libc i386:  > 2.41"
            ]
        );
        assert_eq!(changes(&old, &old), []);
    }
}
