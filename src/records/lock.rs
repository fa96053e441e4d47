//! Lock files: which packages the images of a recipe must have. Pure: no I/O.
//!
//! A file is TOML, with a section for each architecture. Its order depends on its content only, so that two versions of it can
//! be compared.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    Code, Failure, RepositoryState,
    arch::Arch,
    installed::{Installed, InstalledPackage},
};

/// The name of the file, beside the description.
pub const FILE: &str = "kiln.lock";

/// A larger file is not read, in bytes. 20 000 packages have some 4 MB.
pub const LARGEST: u64 = 8 << 20;

/// The version of files that this program reads and writes.
const VERSION: u32 = 1;

/// The lines before the content of each file.
const HEADER: &str =
    "# The packages of this recipe's images. `kiln lock --update` writes it, `kiln build --locked` demands them.\n\n";

/// The most packages that a failure names; the log has more.
const NAMED: usize = 5;

/// A lock file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lock(BTreeMap<Arch, Locked>);

/// What is locked for one architecture.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locked {
    /// Where the packages came from. Repositories may change: only packages are demanded.
    #[serde(default, rename = "repository", skip_serializing_if = "Vec::is_empty")]
    pub repositories: Vec<RepositoryState>,
    /// The packages, sorted.
    #[serde(default, rename = "package")]
    pub packages: Vec<InstalledPackage>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    #[serde(default)]
    arch: BTreeMap<String, Locked>,
}

/// Why a lock file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadLock {
    /// It is too large.
    #[error("it has more than {LARGEST} bytes")]
    TooLarge,
    /// It is no text.
    #[error("it is not UTF-8")]
    NotText,
    /// It is no TOML, or not that of a lock file.
    #[error("{}", .0.to_string().trim_end())]
    Toml(#[from] toml::de::Error),
    /// Another version of Kiln wrote it.
    #[error("it is of version {0}, and this Kiln knows version {VERSION} only")]
    Version(i64),
    /// It names an architecture that there is not.
    #[error(transparent)]
    Arch(#[from] crate::arch::UnknownArch),
    /// It has an architecture twice.
    #[error("it has {0} twice, by two of its names")]
    ArchTwice(Arch),
    /// It has a package twice.
    #[error("{arch} has {name} {version} twice")]
    Twice {
        /// The architecture of the image.
        arch: Arch,
        /// The package's name.
        name: String,
        /// The package's version.
        version: String,
    },
    /// A package or a repository is none.
    #[error("{arch} has an entry with an empty or too long text, or with a SHA-256 that is none: {name}")]
    Unsound {
        /// The architecture of the image.
        arch: Arch,
        /// The entry's name.
        name: String,
    },
    /// It has too many packages.
    #[error("{0} has more than {most} packages", most = Installed::MOST_PACKAGES)]
    TooMany(Arch),
}

impl From<BadLock> for Failure {
    fn from(bad: BadLock) -> Self {
        Self::new(Code::LockInvalid, format!("{FILE} cannot be used: {bad}"))
            .hint("`kiln lock` writes a new one once that one is removed")
    }
}

impl Lock {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// It is not one that `kiln lock` would write.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadLock> {
        #[derive(Deserialize)]
        struct Any {
            version: i64,
        }
        if bytes.len() as u64 > LARGEST {
            return Err(BadLock::TooLarge);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| BadLock::NotText)?;
        // The rest of another version may be anything.
        let Any { version } = toml::from_str(text)?;
        if version != i64::from(VERSION) {
            return Err(BadLock::Version(version));
        }
        let file: File = toml::from_str(text)?;
        let mut lock = Self::default();
        for (name, locked) in file.arch {
            let arch: Arch = name.parse()?;
            check(arch, &locked)?;
            if lock.0.insert(arch, locked).is_some() {
                return Err(BadLock::ArchTwice(arch));
            }
        }
        Ok(lock)
    }

    /// What is locked for an architecture, if anything is.
    pub fn of(&self, arch: Arch) -> Option<&Locked> {
        self.0.get(&arch)
    }

    /// What is locked for an architecture.
    ///
    /// # Errors
    ///
    /// `lock_missing` if nothing is.
    pub fn demand(&self, arch: Arch) -> Result<&Locked, Failure> {
        self.of(arch)
            .ok_or_else(|| missing(format!("{FILE} has no packages for {arch}")))
    }

    /// Replaces what is locked for an architecture.
    pub fn set(&mut self, arch: Arch, mut locked: Locked) {
        locked.packages.sort();
        self.0.insert(arch, locked);
    }

    /// The file.
    ///
    /// # Errors
    ///
    /// It cannot be serialised.
    pub fn to_text(&self) -> Result<String, toml::ser::Error> {
        let arch = self
            .0
            .iter()
            .map(|(arch, locked)| (arch.name().to_owned(), locked.clone()));
        let file = File {
            version: VERSION,
            arch: arch.collect(),
        };
        Ok(format!("{HEADER}{}", toml::to_string(&file)?))
    }
}

/// The failure of a locked build without a lock.
pub fn missing(what: impl fmt::Display) -> Failure {
    Failure::new(Code::LockMissing, what)
        .hint("`kiln lock` writes one beside the description; or build without `--locked`")
}

fn check(arch: Arch, locked: &Locked) -> Result<(), BadLock> {
    if locked.packages.len() > Installed::MOST_PACKAGES {
        return Err(BadLock::TooMany(arch));
    }
    let unsound = |name: &str| BadLock::Unsound {
        arch,
        name: name.chars().take(80).collect(),
    };
    if let Some(repository) = locked.repositories.iter().find(|repository| !repository.is_sound()) {
        return Err(unsound(&repository.metadata));
    }
    let mut seen = std::collections::BTreeSet::new();
    for package in &locked.packages {
        if !package.is_sound() {
            return Err(unsound(&package.name));
        }
        let InstalledPackage {
            name,
            version,
            arch: of,
            ..
        } = package;
        if !seen.insert((name, version, of)) {
            return Err(BadLock::Twice {
                arch,
                name: name.clone(),
                version: version.clone(),
            });
        }
    }
    Ok(())
}

/// A package of which two lists say different things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// Its architecture, by the distribution's name for it.
    pub arch: String,
    /// The versions in the first list, with commas. A few packages, such as kernels, are there in several.
    pub old: String,
    /// The same of the second list.
    pub new: String,
    /// The digests of the one version that both have, if these differ: in the first list, and in the second, if known.
    pub files: Option<(String, Option<String>)>,
}

impl Difference {
    /// What it says of a root that is to have the packages of the first list.
    fn in_root(&self) -> String {
        let Self {
            name,
            arch,
            old,
            new,
            files,
        } = self;
        match (files, old.as_str(), new.as_str()) {
            (Some((locked, Some(found))), version, _) => {
                format!("{name} {version} {arch} has a file with SHA-256 {found}, and {locked} is locked")
            }
            (Some((locked, None)), version, _) => {
                format!(
                    "{name} {version} {arch} has a file that could not be looked at, and SHA-256 {locked} is locked"
                )
            }
            (None, "", new) => format!("{name} {arch} is not locked, and {new} is there"),
            (None, old, "") => format!("{name} {arch} is locked at {old}, and is not there"),
            (None, old, new) => format!("{name} {arch} is locked at {old}, and {new} is there"),
        }
    }
}

/// What it says of two lock files, of which the second replaces the first.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            arch,
            old,
            new,
            files,
        } = self;
        match (files, old.as_str(), new.as_str()) {
            (Some((_, Some(_))), version, _) => write!(f, "~ {name} {arch} {version}, with another file"),
            (Some((_, None)), version, _) => write!(f, "~ {name} {arch} {version}, without a digest"),
            (None, "", new) => write!(f, "+ {name} {arch} {new}"),
            (None, old, "") => write!(f, "- {name} {arch} {old}"),
            (None, old, new) => write!(f, "~ {name} {arch} {old} -> {new}"),
        }
    }
}

/// The packages that differ, by name and architecture. A digest that the first list does not have is no difference.
pub fn differences(old: &[InstalledPackage], new: &[InstalledPackage]) -> Vec<Difference> {
    type Files<'a> = BTreeMap<&'a str, Option<&'a str>>;
    let mut all: BTreeMap<(&str, &str), [Files<'_>; 2]> = BTreeMap::new();
    for (side, packages) in [old, new].into_iter().enumerate() {
        for package in packages {
            let files = all.entry((&package.name, &package.arch)).or_default();
            files[side].insert(&package.version, package.sha256.as_deref());
        }
    }
    let mut found = Vec::new();
    for ((name, arch), [old, new]) in all {
        let versions = |files: &Files<'_>| files.keys().copied().collect::<Vec<_>>().join(", ");
        let difference = |old: String, new: String, files| Difference {
            name: name.to_owned(),
            arch: arch.to_owned(),
            old,
            new,
            files,
        };
        if !old.keys().eq(new.keys()) {
            found.push(difference(versions(&old), versions(&new), None));
            continue;
        }
        for ((version, old), new) in old.iter().zip(new.values()) {
            if let Some(locked) = old.filter(|_| old != new) {
                let files = Some((locked.to_owned(), new.map(str::to_owned)));
                found.push(difference((*version).to_owned(), (*version).to_owned(), files));
            }
        }
    }
    found
}

/// Checks that a root has the locked packages and no others. What differs is said one by one, all of it.
///
/// # Errors
///
/// `lock_mismatch`, which names the first packages; `lock_unknown` for a root without a database of packages.
pub fn check_root(locked: &Locked, root: &Installed, mut say: impl FnMut(String)) -> Result<(), Failure> {
    if root.format.is_none() {
        let why = "the root has no database of packages, so it cannot be compared with the lock";
        return Err(Failure::new(Code::LockUnknown, why).hint("build it without `--locked`"));
    }
    let found = differences(&locked.packages, &root.packages);
    if found.is_empty() {
        return Ok(());
    }
    for difference in &found {
        say(format!("{FILE}: {}", difference.in_root()));
    }
    let mut named: Vec<_> = found.iter().take(NAMED).map(Difference::in_root).collect();
    if found.len() > NAMED {
        named.push(format!("{} more differ", found.len() - NAMED));
    }
    let detail = format!("the packages are not those of {FILE}: {}", named.join("; "));
    Err(Failure::new(Code::LockMismatch, detail)
        .hint("`kiln lock --update` shows what is new, and accepts it; or name a repository that still has the locked packages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, sha256: Option<char>) -> InstalledPackage {
        InstalledPackage {
            name: name.to_owned(),
            version: version.to_owned(),
            arch: "amd64".to_owned(),
            sha256: sha256.map(|digit| digit.to_string().repeat(64)),
        }
    }

    fn lock() -> Lock {
        let mut lock = Lock::default();
        let locked = Locked {
            repositories: vec![RepositoryState {
                metadata: "http://h/dists/tiny/Release".to_owned(),
                sha256: "c".repeat(64),
            }],
            packages: vec![package("bash", "5.2-1", Some('b')), package("apt", "1:2.6", None)],
        };
        lock.set(Arch::X86_64, locked.clone());
        lock.set(Arch::Aarch64, locked);
        lock
    }

    #[test]
    fn a_file_is_read_as_it_is_written() {
        let text = lock().to_text().unwrap();
        assert_eq!(Lock::parse(text.as_bytes()).unwrap(), lock());
        // In one order, whatever the order of packages was.
        assert!(text.find("apt").unwrap() < text.find("bash").unwrap(), "{text}");
        assert!(
            text.contains("[[arch.x86_64.package]]\nname = \"apt\"\nversion = \"1:2.6\"\narch = \"amd64\"\n\n"),
            "{text}"
        );
        assert_eq!(Lock::parse(b"version = 1\n").unwrap(), Lock::default());
    }

    #[test]
    fn a_file_that_is_no_lock_says_why() {
        let why = |text: &str| Lock::parse(text.as_bytes()).unwrap_err().to_string();
        let entry = "[[arch.x86_64.package]]\nname = \"a\"\nversion = \"1\"\narch = \"all\"\n";
        let with = |text: &str| format!("version = 1\n{text}");
        for (text, expected) in [
            ("what".to_owned(), "TOML parse error"),
            (String::new(), "missing field `version`"),
            ("version = \"new\"".to_owned(), "expected i64"),
            (
                "version = 2\nanything = 1".to_owned(),
                "it is of version 2, and this Kiln knows version 1 only",
            ),
            (with("other = 1"), "unknown field `other`"),
            (
                with(&entry.replace("x86_64", "vax")),
                "`vax` is not an architecture Kiln knows",
            ),
            (with(&format!("{entry}{entry}")), "x86_64 has a 1 twice"),
            (
                with(&format!("{entry}{}", entry.replace("x86_64", "amd64"))),
                "it has x86_64 twice, by two of its names",
            ),
            (
                with(&format!("{entry}sha256 = \"abc\"")),
                "with a SHA-256 that is none: a",
            ),
            (with(&format!("{entry}size = 1")), "unknown field `size`"),
            (
                with(&entry.repeat(2).replace("1\"\narch", "\"\narch")),
                "with an empty or too long text",
            ),
            (" ".repeat(9 << 20), "it has more than 8388608 bytes"),
        ] {
            assert!(why(&text).contains(expected), "{expected}: {}", why(&text));
        }
        assert!(matches!(Lock::parse(b"version = 1 # \xff"), Err(BadLock::NotText)));
        let many: String = (0..=Installed::MOST_PACKAGES).fold(String::new(), |text, number| {
            text + &entry.replace("\"a\"", &format!("\"a{number}\""))
        });
        assert!(why(&with(&many)).contains("more than 20000 packages"));
    }

    #[test]
    fn an_architecture_that_is_not_locked_is_a_missing_lock() {
        assert!(lock().demand(Arch::Aarch64).is_ok());
        assert_eq!(lock().demand(Arch::Riscv64).unwrap_err().code, Code::LockMissing);
    }

    #[test]
    fn a_root_has_the_locked_packages_and_no_others() {
        let locked = Locked {
            repositories: Vec::new(),
            packages: vec![
                package("gone", "1", Some('a')),
                package("kernel", "6.1", Some('a')),
                package("kernel", "6.2", Some('b')),
                package("libc", "2.36", Some('a')),
                package("same", "1", Some('a')),
                package("unknown", "1", None),
            ],
        };
        let check = |packages: Vec<InstalledPackage>| {
            let root = Installed {
                format: Some(crate::sbom::PackageFormat::Deb),
                packages,
                ..Installed::default()
            };
            let mut said = Vec::new();
            (check_root(&locked, &root, |line| said.push(line)), said)
        };
        let mut whole = locked.packages.clone();
        whole[5].sha256 = Some("f".repeat(64));
        assert_eq!(check(whole.clone()), (Ok(()), Vec::new()));
        let mut other = whole.clone();
        other[1].sha256 = Some("0".repeat(64));
        other[3].version = "2.41".to_owned();
        other[4].sha256 = None;
        other.remove(0);
        other.push(package("new", "3", None));
        let (checked, said) = check(other);
        let (a, zero) = ("a".repeat(64), "0".repeat(64));
        let expected = [
            "gone amd64 is locked at 1, and is not there".to_owned(),
            format!("kernel 6.1 amd64 has a file with SHA-256 {zero}, and {a} is locked"),
            "libc amd64 is locked at 2.36, and 2.41 is there".to_owned(),
            "new amd64 is not locked, and 3 is there".to_owned(),
            format!("same 1 amd64 has a file that could not be looked at, and SHA-256 {a} is locked"),
        ];
        assert_eq!(said, expected.clone().map(|line| format!("kiln.lock: {line}")));
        let failure = checked.unwrap_err();
        assert_eq!(failure.code, Code::LockMismatch);
        assert_eq!(
            failure.detail,
            format!("the packages are not those of kiln.lock: {}", expected.join("; "))
        );
        assert!(failure.hint.unwrap().contains("kiln lock --update"));
        let none = check_root(&locked, &Installed::default(), |_| {});
        assert_eq!(none.unwrap_err().code, Code::LockUnknown);
    }

    #[test]
    fn many_differences_are_counted() {
        let locked = Locked {
            repositories: Vec::new(),
            packages: (0..9).map(|number| package(&format!("p{number}"), "1", None)).collect(),
        };
        let root = Installed {
            format: Some(crate::sbom::PackageFormat::Deb),
            ..Installed::default()
        };
        let failure = check_root(&locked, &root, |_| {}).unwrap_err();
        assert!(
            failure
                .detail
                .ends_with("p4 amd64 is locked at 1, and is not there; 4 more differ"),
            "{failure}"
        );
    }

    #[test]
    fn an_update_says_what_is_new() {
        let old = [
            package("gone", "1", None),
            package("libc", "1", None),
            package("x", "1", Some('a')),
        ];
        let new = [
            package("libc", "2", None),
            package("new", "1", None),
            package("x", "1", Some('b')),
        ];
        let said: Vec<_> = differences(&old, &new).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "- gone amd64 1",
                "~ libc amd64 1 -> 2",
                "+ new amd64 1",
                "~ x amd64 1, with another file"
            ]
        );
    }
}
