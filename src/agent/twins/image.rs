//! Reads an image's own database of packages, with the digests of their files. Reads the root, and runs rpm on a copy
//! of its database.

use std::{
    io,
    path::Path,
    process::{Command, Stdio},
};

use super::{deb, facts::Facts, format::Format, installed, rpm};
use crate::twins::root::Root;

/// dpkg's list of packages.
pub(crate) const DPKG_STATUS: &str = "var/lib/dpkg/status";

/// The most bytes of dpkg's files; the largest of a full desktop have a few million.
const LONGEST: u64 = 64 << 20;

/// The format of the image's packages. `None` if it has no known package manager.
pub(crate) fn format(root: &Root) -> Option<Format> {
    if root.file(Path::new(DPKG_STATUS)).is_ok_and(|file| file.is_some()) {
        return Some(Format::Deb);
    }
    installed::rpm_database(root).map(|_| Format::Rpm)
}

/// The packages of the image in `root`. `dir` takes a copy of their database.
///
/// # Errors
///
/// The database cannot be read.
pub(super) fn packages(root: &Path, format: Format, dir: &Path) -> io::Result<Vec<Facts>> {
    let root = Root::open(root)?;
    match format {
        Format::Deb => Ok(of_dpkg(&root)),
        Format::Rpm => of_rpm(&root, dir),
    }
}

fn of_dpkg(root: &Root) -> Vec<Facts> {
    let status = root.text(Path::new(DPKG_STATUS), LONGEST).unwrap_or_default();
    let facts = status.split("\n\n").filter_map(|paragraph| {
        let mut facts = deb::control(paragraph);
        // Other entries only remember packages that were installed once.
        if facts.name.is_empty() || !deb::field(paragraph, "Status").ends_with(" installed") {
            return None;
        }
        let names = [
            format!("{}.md5sums", facts.name),
            format!("{}:{}.md5sums", facts.name, facts.arch),
        ];
        let lists = names.map(|name| Path::new(installed::DPKG_LISTS).join(name));
        let sums = lists.iter().find_map(|list| root.text(list, LONGEST))?;
        facts.sums = deb::sums(&sums);
        Some(facts)
    });
    facts.collect()
}

fn of_rpm(root: &Root, dir: &Path) -> io::Result<Vec<Facts>> {
    let mut query = query_rpm(root, dir)?;
    let output = query.args(["--all", "--queryformat", rpm::QUERY]).output()?;
    if !output.status.success() {
        return Err(io::Error::other("rpm cannot read the image's database of packages"));
    }
    Ok(rpm::parse_all(&String::from_utf8_lossy(&output.stdout)))
}

/// The sandbox's rpm with a query about the packages of an image. It reads a copy of their database, in `dir`: rpm
/// leaves files beside the database that it reads.
///
/// # Errors
///
/// There is no database, or it cannot be copied.
pub(crate) fn query_rpm(root: &Root, dir: &Path) -> io::Result<Command> {
    let database = installed::rpm_database(root).map(Path::new);
    let database = database.ok_or_else(|| io::Error::other("the image has no database of rpms"))?;
    let copy = dir.join("rpmdb");
    fs_err::create_dir_all(&copy)?;
    for name in root.names(database) {
        if let Ok(Some((mut file, _))) = root.file(&database.join(&name)) {
            io::copy(&mut file, &mut fs_err::File::create(copy.join(name))?)?;
        }
    }
    let mut command = Command::new("rpm");
    command.arg("--dbpath").arg(copy).arg("--query");
    command.stdin(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dpkg_says_which_packages_there_are() {
        let dir = tempfile::tempdir().unwrap();
        let info = dir.path().join(installed::DPKG_LISTS);
        fs_err::create_dir_all(&info).unwrap();
        let status = "Package: bash\nStatus: install ok installed\nArchitecture: arm64\nVersion: 5.2-1\nDescription: a\n shell\n\n\
                      Package: libc6\nStatus: install ok installed\nArchitecture: arm64\nMulti-Arch: same\nVersion: 2.36-9\n\n\
                      Package: gone\nStatus: deinstall ok config-files\nArchitecture: arm64\nVersion: 1\n";
        fs_err::write(dir.path().join(DPKG_STATUS), status).unwrap();
        let sum = "0123456789abcdef0123456789abcdef  ";
        fs_err::write(info.join("bash.md5sums"), format!("{sum}bin/bash\n")).unwrap();
        fs_err::write(info.join("libc6:arm64.md5sums"), format!("{sum}lib/libc.so.6\n")).unwrap();
        fs_err::write(info.join("gone.md5sums"), format!("{sum}bin/gone\n")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        assert_eq!(format(&root), Some(Format::Deb));
        let found: Vec<_> = packages(dir.path(), Format::Deb, dir.path())
            .unwrap()
            .into_iter()
            .map(|facts| (facts.name, facts.version, facts.arch, facts.sums[0].path.clone()))
            .collect();
        let expected = [("bash", "5.2-1", "bin/bash"), ("libc6", "2.36-9", "lib/libc.so.6")];
        let expected = expected
            .map(|(name, version, path)| (name.to_owned(), version.to_owned(), "arm64".to_owned(), path.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn an_image_without_a_package_manager_has_no_format() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(format(&Root::open(dir.path()).unwrap()), None);
    }
}
