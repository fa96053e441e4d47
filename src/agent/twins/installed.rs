//! Reads the state of packages in the root without the package manager, which may be running. Reads metadata of files
//! in the root.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, SystemTime},
};

use super::{facts::Sum, format::Format};
use kiln_records::arch::Arch;

use crate::twins::root::Root;

/// dpkg's directory with the list of each package's files.
pub(crate) const DPKG_LISTS: &str = "var/lib/dpkg/info";

/// rpm's possible database directories; distributions differ, and most have links between them.
const RPM_DATABASES: [&str; 3] = ["usr/lib/sysimage/rpm", "var/lib/rpm", "usr/share/rpm"];

/// The database file that changes with each package, for each kind of database.
const RPM_FILES: [&str; 4] = ["rpmdb.sqlite-wal", "rpmdb.sqlite", "Packages.db", "Packages"];

/// The state of a package in the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It is not there, or was unpacked without the package manager.
    Unknown,
    /// It is installed; a different number means that it has changed.
    Here(u64),
}

/// A database that changed less than this ago may change again without its time doing so: timestamps of files have
/// steps of a few milliseconds.
const SETTLED: Duration = Duration::from_secs(1);

/// The time of the last change of the package database. `None` if that was just now, or there is no database.
pub(super) fn database(root: &Root, format: Format) -> Option<SystemTime> {
    let modified = match format {
        // dpkg replaces files in it, at least one for each package.
        Format::Deb => root.modified(Path::new(DPKG_LISTS)).ok(),
        Format::Rpm => RPM_DATABASES.iter().filter_map(|dir| rpm_modified(root, dir)).max(),
    };
    modified.filter(|modified| modified.elapsed().is_ok_and(|age| age > SETTLED))
}

/// Whether a root has a database of rpms that nothing has changed just now.
///
/// # Errors
///
/// The root cannot be opened.
pub(super) fn has_settled_rpms(root: &Path) -> std::io::Result<bool> {
    match Root::open(root) {
        Ok(root) => Ok(database(&root, Format::Rpm).is_some()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The time of the last change of rpm's database in `dir`, if there is one.
fn rpm_modified(root: &Root, dir: &str) -> Option<SystemTime> {
    let files = RPM_FILES.iter().map(|file| Path::new(dir).join(file));
    files.filter_map(|file| root.modified(&file).ok()).max()
}

/// The directory of rpm's database, relative to the root.
pub(super) fn rpm_database(root: &Root) -> Option<&'static str> {
    RPM_DATABASES.into_iter().find(|dir| rpm_modified(root, dir).is_some())
}

/// The state in the root of a package with files of these `sums`.
pub(super) fn state(root: &Root, format: Format, target: Arch, name: &str, sums: &[Sum]) -> State {
    match format {
        // dpkg writes the list of files once all of them are in place.
        Format::Deb => {
            let names = [format!("{name}.list"), format!("{name}:{}.list", target.debian())];
            of_files(root, names.iter().map(|name| Path::new(DPKG_LISTS).join(name)))
        }
        // rpm has one database for all packages. The files themselves say more.
        Format::Rpm => of_files(root, sums.iter().map(|sum| &sum.path)),
    }
}

fn of_files(root: &Root, paths: impl Iterator<Item: AsRef<Path>>) -> State {
    let mut hasher = DefaultHasher::new();
    let mut is_there = false;
    for path in paths {
        if let Ok(Some((_, found))) = root.file(path.as_ref()) {
            is_there = true;
            (found.ino(), found.size(), found.mtime(), found.mtime_nsec()).hash(&mut hasher);
            (found.ctime(), found.ctime_nsec()).hash(&mut hasher);
        }
    }
    if is_there {
        State::Here(hasher.finish())
    } else {
        State::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twins::facts::Digest;

    #[test]
    fn a_package_changes_with_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let sums = [Sum {
            path: "tool".to_owned(),
            digest: Digest::Sha256([0; 32]),
        }];
        let state = || state(&root, Format::Rpm, Arch::Aarch64, "package", &sums);
        assert_eq!(state(), State::Unknown);
        fs_err::write(dir.path().join("tool"), "one").unwrap();
        let first = state();
        assert_ne!(first, State::Unknown);
        assert_eq!(state(), first);
        fs_err::write(dir.path().join("tool"), "other").unwrap();
        assert_ne!(state(), first);
    }

    #[test]
    fn dpkg_knows_packages_by_name_or_by_name_and_architecture() {
        let dir = tempfile::tempdir().unwrap();
        let info = dir.path().join("var/lib/dpkg/info");
        fs_err::create_dir_all(&info).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let state = |name| state(&root, Format::Deb, Arch::Aarch64, name, &[]);
        fs_err::write(info.join("bash.list"), "").unwrap();
        fs_err::write(info.join("libc6:arm64.list"), "").unwrap();
        assert_ne!(state("bash"), State::Unknown);
        assert_ne!(state("libc6"), State::Unknown);
        assert_eq!(state("dash"), State::Unknown);
    }
}
