//! Whether the root of a similar recipe can become that of this one, and whether it did. Pure: no I/O.
//!
//! The rule: the packages must be exactly those, by their digests, that would be installed into an empty root. So packages are
//! added and upgraded only; where one would have to go, all are installed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use kiln_records::Installed;

use crate::wanted::Wanted;

/// The most packages that are named in a message.
const NAMED: usize = 5;

/// What a root lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lack {
    /// Packages that are not there.
    pub(super) added: usize,
    /// Packages that are there in other versions.
    pub(super) upgraded: usize,
    /// Packages that are there.
    pub(super) same: usize,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { added, upgraded, same } = self;
        let all = added + upgraded + same;
        write!(
            f,
            "of {all} packages, it lacks {added}, and has {upgraded} in other versions"
        )
    }
}

/// What a root with the packages `installed` lacks of `wanted`, or why it cannot become such a root.
pub(super) fn lack(wanted: &Wanted, installed: &Installed) -> Result<Lack, String> {
    let wanted = names(wanted)?;
    let there = digests(installed)?;
    let (mut lack, mut gone) = (
        Lack {
            added: 0,
            upgraded: 0,
            same: 0,
        },
        Vec::new(),
    );
    for (sha256, name) in &there {
        if wanted.contains_key(sha256) {
            lack.same += 1;
        } else if wanted.values().any(|wanted| wanted == name) {
            lack.upgraded += 1;
        } else {
            gone.push(*name);
        }
    }
    lack.added = (wanted.len() - lack.same).saturating_sub(lack.upgraded);
    if !gone.is_empty() {
        return Err(format!("it has packages that are not wanted: {}", listed(gone)));
    }
    if lack.same * 2 < wanted.len() {
        return Err(format!("it has only {} of {} packages", lack.same, wanted.len()));
    }
    Ok(lack)
}

/// Says why the packages `installed` are not those that were `wanted`.
pub(super) fn check(wanted: &Wanted, installed: &Installed) -> Result<(), String> {
    let (wanted, there) = (names(wanted)?, digests(installed)?);
    let missing = wanted.iter().filter(|(sha256, _)| !there.contains_key(*sha256));
    let others = there.iter().filter(|(sha256, _)| !wanted.contains_key(*sha256));
    let differ: BTreeSet<_> = missing.chain(others).map(|(_, name)| *name).collect();
    if differ.is_empty() {
        return Ok(());
    }
    Err(format!(
        "its packages are not those of a root from the beginning: {}",
        listed(differ.into_iter().collect())
    ))
}

/// Says which configuration files upgrades left: a root from the beginning would not have them.
pub(super) fn nothing_left(files: &[String]) -> Result<(), String> {
    if files.is_empty() {
        return Ok(());
    }
    let files = listed(files.iter().map(String::as_str).collect());
    Err(format!("it keeps configuration files of earlier versions: {files}"))
}

/// The names of all packages by their digests.
fn names(wanted: &Wanted) -> Result<BTreeMap<&str, &str>, String> {
    if !wanted.is_whole {
        return Err("not all packages have a known digest".to_owned());
    }
    let names = wanted.packages.iter().map(|(path, file)| {
        let name = path.rsplit('/').next().and_then(|file| file.split('_').next());
        (file.digest.as_str(), name.unwrap_or(path))
    });
    Ok(names.collect())
}

fn digests(installed: &Installed) -> Result<BTreeMap<&str, &str>, String> {
    let digests = installed.packages.iter().map(|package| {
        let sha256 = package.sha256.as_deref();
        let unknown = || format!("its package {} has no known digest", package.name);
        Ok((sha256.ok_or_else(unknown)?, package.name.as_str()))
    });
    digests.collect()
}

fn listed(mut names: Vec<&str>) -> String {
    let more = names.len() > NAMED;
    names.truncate(NAMED);
    names.join(", ") + if more { ", …" } else { "" }
}

#[cfg(test)]
mod tests {
    use kiln_records::{InstalledPackage, PackageDigest, protocol::PackageFile};

    use super::*;

    /// Packages by name and digest.
    type Packages<'a> = &'a [(&'a str, &'a str)];

    fn wanted(packages: Packages<'_>) -> Wanted {
        let of = |(name, sha256): &(&str, &str)| {
            let file = PackageFile {
                digest: PackageDigest::parse(&sha256.repeat(64)).unwrap(),
                size: 1,
            };
            (format!("apt-get/archives/{name}_1%3a2_all.deb"), file)
        };
        Wanted {
            packages: packages.iter().map(of).collect(),
            is_whole: true,
        }
    }

    fn installed(packages: Packages<'_>) -> Installed {
        let of = |(name, sha256): &(&str, &str)| InstalledPackage {
            name: (*name).to_owned(),
            version: "1:2".to_owned(),
            arch: "all".to_owned(),
            sha256: (!sha256.is_empty()).then(|| sha256.repeat(64)),
        };
        Installed {
            packages: packages.iter().map(of).collect(),
            ..Installed::default()
        }
    }

    #[test]
    fn packages_are_only_added_and_upgraded() {
        let all = wanted(&[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]);
        let of = |packages| lack(&all, &installed(packages)).map(|lack| lack.to_string());
        let text = "of 4 packages, it lacks 1, and has 1 in other versions";
        assert_eq!(of(&[("a", "1"), ("b", "2"), ("c", "0")]).unwrap(), text);
        for (packages, why) in [
            (
                &[("a", "1"), ("b", "2"), ("c", "3"), ("old", "5"), ("d-old", "6")][..],
                "it has packages that are not wanted: old, d-old",
            ),
            (&[("a", "1")], "it has only 1 of 4 packages"),
            (
                &[("a", "1"), ("b", "2"), ("c", "")],
                "its package c has no known digest",
            ),
            (&[], "it has only 0 of 4 packages"),
        ] {
            let found = of(packages).unwrap_err();
            // Which come in the order of their digests.
            assert!(found == why, "{found}");
        }
        let part = Wanted { is_whole: false, ..all };
        assert!(lack(&part, &installed(&[("a", "1")])).is_err());
    }

    #[test]
    fn all_packages_must_be_those_that_were_wanted() {
        let all = wanted(&[("a", "1"), ("b", "2")]);
        let of = |packages| check(&all, &installed(packages));
        assert_eq!(of(&[("b", "2"), ("a", "1")]), Ok(()));
        for (packages, differ) in [
            (&[("a", "1")][..], "b"),
            (&[("a", "1"), ("b", "3")], "b"),
            (&[("a", "1"), ("b", "2"), ("c", "4")], "c"),
            (&[], "a, b"),
        ] {
            assert!(
                of(packages).unwrap_err().ends_with(&format!(": {differ}")),
                "{packages:?}"
            );
        }
        assert!(of(&[("a", "1"), ("b", "2"), ("c", "")]).is_err());
    }
}
