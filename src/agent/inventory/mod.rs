//! Reads what a finished root consists of, and writes the two documents that say so (SBOM). Reads the root, which is not
//! trusted, runs rpm on a copy of its database, and writes files of the job's disk space.
//!
//! A database that is there and cannot be read is an error: a list without its packages would be a lie.

mod debs;
mod loose;
mod rpms;

use std::{
    io,
    path::{Path, PathBuf},
};

use kiln_records::{
    ArtifactKind, Installed, InstalledPackage,
    arch::Arch,
    installed::plain_version,
    os_release,
    sbom::{Inventory, LONGEST_TEXT, MOST_PACKAGES, Package, PackageFormat, System},
};
use uuid::Uuid;

use crate::twins::{Format, Root, format_of};

/// The most bytes of one document; a desktop with 3000 packages has some 3 MB.
const LARGEST_DOCUMENT: usize = 128 << 20;

/// The image that a root belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Of<'a> {
    /// Its name.
    pub(super) image: &'a str,
    /// Its architecture.
    pub(super) arch: Arch,
    /// An id that no other image has.
    pub(super) id: Uuid,
    /// What was known of its packages when they were installed.
    pub(super) installed: Option<&'a Installed>,
}

/// What was written.
#[derive(Debug)]
pub(super) struct Written {
    /// The documents.
    pub(super) documents: Vec<(ArtifactKind, PathBuf)>,
    /// The number of packages.
    pub(super) packages: usize,
    /// The number of programs that no package owns.
    pub(super) loose: u64,
    /// Those that run with the rights of their owner or group, by their paths in the root.
    pub(super) setuid: Vec<PathBuf>,
    /// The number of directories that were too deep to be looked at.
    pub(super) unseen: u64,
}

/// Reads the root, and writes both documents into the directory `into`.
///
/// # Errors
///
/// When the database of packages cannot be read, or the disk is full.
pub(super) fn write(root: &Path, of: Of<'_>, into: &Path) -> io::Result<Written> {
    let (inventory, loose) = take(root, of, into)?;
    let documents = [
        (ArtifactKind::Spdx, inventory.to_spdx()?),
        (ArtifactKind::CycloneDx, inventory.to_cyclonedx()?),
    ];
    let mut written = Written {
        documents: Vec::new(),
        packages: inventory.packages.len(),
        loose: inventory.loose.len() as u64 + inventory.more_loose,
        setuid: loose.setuid,
        unseen: loose.unseen,
    };
    for (kind, document) in documents {
        if document.len() > LARGEST_DOCUMENT {
            return Err(io::Error::other(format!("{} would be too large", kind.key_name())));
        }
        let path = into.join(kind.key_name());
        fs_err::write(&path, document)?;
        written.documents.push((kind, path));
    }
    Ok(written)
}

/// The inventory of a root, and what else no package owns.
fn take(path: &Path, of: Of<'_>, aside: &Path) -> io::Result<(Inventory, loose::Loose)> {
    let root = Root::open(path)?;
    let format = format_of(&root);
    let (mut packages, owned) = match format {
        Some(Format::Deb) => debs::read(&root)?,
        Some(Format::Rpm) => rpms::read(&root, aside)?,
        None => Default::default(),
    };
    if packages.len() > MOST_PACKAGES {
        return Err(io::Error::other(format!("it has more than {MOST_PACKAGES} packages")));
    }
    packages
        .sort_by(|one, other| (&one.name, &one.arch, &one.version).cmp(&(&other.name, &other.arch, &other.version)));
    if let Some((known, format)) = of.installed.zip(format) {
        let known = known.digests();
        for package in &mut packages {
            let version = plain_version(package_format(format), &package.version);
            let sha256 = known.get(&(&*package.name, version, &*package.arch));
            package.sha256 = sha256.map(|sha256| (*sha256).to_owned());
        }
    }
    let mut loose = loose::find(path, &root, &owned)?;
    let inventory = Inventory {
        image: short(of.image),
        arch: of.arch.name().to_owned(),
        id: of.id,
        read: jiff::Timestamp::now(),
        system: system(&root),
        format: format.map(package_format),
        packages,
        loose: std::mem::take(&mut loose.files),
        more_loose: loose.more,
    };
    Ok((inventory, loose))
}

/// The configuration files that upgrades of Debian packages left in the root at `path`.
///
/// # Errors
///
/// When the database of packages cannot be read.
pub(super) fn obsolete(path: &Path) -> io::Result<Vec<String>> {
    debs::obsolete(&Root::open(path)?)
}

/// The packages in the root at `path` by name, version and architecture, without digests, and their format.
///
/// # Errors
///
/// When the database of packages cannot be read.
pub(super) fn installed(path: &Path, aside: &Path) -> io::Result<(Installed, Option<Format>)> {
    let root = Root::open(path)?;
    let format = format_of(&root);
    let names = match format {
        Some(Format::Deb) => debs::names(&root)?,
        Some(Format::Rpm) => rpms::names(&root, aside)?,
        None => Vec::new(),
    };
    let system = system(&root);
    let format_of_packages = format.map(package_format);
    let package = |[name, version, arch]: [String; 3]| InstalledPackage {
        version: match format_of_packages {
            Some(format) => plain_version(format, &version).to_owned(),
            None => version,
        },
        name,
        arch,
        sha256: None,
    };
    let mut packages: Vec<_> = names.into_iter().map(package).collect();
    packages.sort();
    // A database may have one twice.
    packages.dedup();
    let installed = Installed {
        format: format_of_packages,
        system: system.id,
        system_version: system.version,
        packages,
        repositories: Vec::new(),
        bases: Vec::new(),
    };
    Ok((installed, format))
}

const fn package_format(format: Format) -> PackageFormat {
    match format {
        Format::Deb => PackageFormat::Deb,
        Format::Rpm => PackageFormat::Rpm,
    }
}

/// What a root says of its distribution.
fn system(root: &Root) -> System {
    let text = os_release::PLACES
        .iter()
        .find_map(|place| root.text(Path::new(place), os_release::LONGEST))
        .unwrap_or_default();
    let value = |name: &str| os_release::value(&text, name).map(short);
    System {
        id: value("ID").map(|id| id.to_ascii_lowercase()),
        version: value("VERSION_ID"),
        name: value("PRETTY_NAME"),
    }
}

/// A text of the root, not longer than records may be, and without control characters.
fn short(text: &str) -> String {
    let plain: String = text.chars().filter(|one| !one.is_control()).collect();
    plain[..plain.floor_char_boundary(LONGEST_TEXT)].trim().to_owned()
}

/// [`short`], or none for an empty text.
fn some(text: &str) -> Option<String> {
    let text = short(text);
    // rpm's word for a tag that a package does not have.
    (!text.is_empty() && text != "(none)").then_some(text)
}

/// The packages, and the paths that they own, without the leading `/`.
type Found = (Vec<Package>, loose::Owned);

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    const OF: Of<'static> = Of {
        image: "compute",
        arch: Arch::Aarch64,
        id: Uuid::nil(),
        installed: None,
    };

    #[test]
    fn a_root_of_debian_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (root, aside) = (dir.path().join("root"), dir.path());
        let write = |path: &str, content: &[u8]| {
            let path = root.join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, content).unwrap();
        };
        write(
            "etc/os-release",
            b"ID=debian\nVERSION_ID=\"12\"\nPRETTY_NAME=\"Debian 12\"\n",
        );
        write(
            "var/lib/dpkg/status",
            b"Package: tool\nStatus: install ok installed\nArchitecture: arm64\nVersion: 1:2-3\nSource: tools (2-3)\n\
              Maintainer: A <a@b>\nHomepage: https://example.org/\n\n\
              Package: gone\nStatus: deinstall ok config-files\nArchitecture: arm64\nVersion: 1\n",
        );
        write(
            "var/lib/dpkg/info/tool.list",
            b"/.\n/bin\n/bin/tool\n/usr/lib/libtool.so\n",
        );
        write(
            "usr/share/doc/tool/copyright",
            b"Format: x\n\nFiles: *\nLicense: GPL-2+\n",
        );
        write("usr/bin/tool", b"\x7fELF owned");
        write("usr/lib/libtool.so", b"\x7fELF owned");
        write("opt/extra", b"\x7fELF loose");
        write("opt/notes", b"text");
        for name in ["opt/extra", "usr/bin/tool"] {
            fs_err::set_permissions(root.join(name), Permissions::from_mode(0o4755)).unwrap();
        }
        // It costs what is below it, and not the whole list.
        write(&format!("{}/program", ["deep"; 70].join("/")), b"\x7fELF");
        std::os::unix::fs::symlink("usr/bin", root.join("bin")).unwrap();
        std::os::unix::fs::symlink("/proc/self/exe", root.join("opt/link")).unwrap();
        let (inventory, found) = take(&root, OF, aside).unwrap();
        assert_eq!((found.setuid, found.unseen), (vec![PathBuf::from("opt/extra")], 1));
        assert_eq!(inventory.system.id.as_deref(), Some("debian"));
        assert_eq!(
            inventory.packages,
            [Package {
                name: "tool".to_owned(),
                version: "1:2-3".to_owned(),
                arch: "arm64".to_owned(),
                source: Some("tools (2-3)".to_owned()),
                supplier: Some("A <a@b>".to_owned()),
                homepage: Some("https://example.org/".to_owned()),
                licences: Some("GPL-2+".to_owned()),
                sha256: None,
            }]
        );
        let loose: Vec<_> = inventory.loose.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(loose, ["/opt/extra"]);
        let (mut installed, format) = super::installed(&root, aside).unwrap();
        let packages: Vec<_> = installed
            .packages
            .iter()
            .map(|one| (&*one.name, &*one.version, &*one.arch))
            .collect();
        assert_eq!(
            (format, packages),
            (Some(Format::Deb), vec![("tool", "1:2-3", "arm64")])
        );
        installed.packages[0].sha256 = Some("a digest".to_owned());
        let of = Of {
            installed: Some(&installed),
            ..OF
        };
        assert_eq!(
            take(&root, of, aside).unwrap().0.packages[0].sha256.as_deref(),
            Some("a digest")
        );
        let written = super::write(&root, OF, aside).unwrap();
        assert_eq!((written.documents.len(), written.packages, written.loose), (2, 1, 1));
    }

    #[test]
    fn a_root_without_a_database_has_programs_only() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs_err::create_dir_all(root.join("bin")).unwrap();
        fs_err::write(root.join("bin/init"), b"\x7fELF").unwrap();
        let (inventory, _) = take(&root, OF, dir.path()).unwrap();
        assert_eq!(
            (inventory.format, inventory.packages.len(), inventory.loose.len()),
            (None, 0, 1)
        );
    }

    #[test]
    fn a_database_that_cannot_be_read_is_not_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs_err::create_dir_all(root.join("var/lib/dpkg")).unwrap();
        let status = fs_err::File::create(root.join("var/lib/dpkg/status")).unwrap();
        // Larger than any list of packages.
        status.set_len(1 << 30).unwrap();
        assert!(take(&root, OF, dir.path()).is_err());
    }

    #[test]
    fn texts_of_a_root_are_cut() {
        assert_eq!(
            short(&format!("{}\u{e4}", "a".repeat(LONGEST_TEXT - 1))).len(),
            LONGEST_TEXT - 1
        );
        assert_eq!(some("a\u{1b}[31m\n"), Some("a[31m".to_owned()));
        assert_eq!(some("(none)"), None);
    }
}
