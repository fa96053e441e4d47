//! The packages in a root by dpkg's database. Reads the root.

use std::{io, path::Path};

use kiln_records::sbom::{Package, of_copyright_file};

use super::{Found, loose::Owned, short, some};
use crate::twins::{DPKG_LISTS, DPKG_STATUS, Root, control_field};

/// The most bytes of dpkg's list of packages; the largest of a full desktop have a few million.
const LONGEST_STATUS: u64 = 64 << 20;

/// The most bytes of the list of one package's files.
const LONGEST_LIST: u64 = 64 << 20;

/// The most bytes of a copyright file that are looked at; the longest of Debian have some 3 MB.
const LONGEST_COPYRIGHT: u64 = 8 << 20;

fn status(root: &Root) -> io::Result<String> {
    let text = root.text(Path::new(DPKG_STATUS), LONGEST_STATUS);
    text.ok_or_else(|| io::Error::other(format!("/{DPKG_STATUS} is no file of less than {LONGEST_STATUS} bytes")))
}

/// The entries of installed packages. Others only remember packages that were installed once.
fn paragraphs(status: &str) -> impl Iterator<Item = &str> {
    status.split("\n\n").filter(|paragraph| {
        !control_field(paragraph, "Package").is_empty() && control_field(paragraph, "Status").ends_with(" installed")
    })
}

/// Name, version and architecture of each package.
pub(super) fn names(root: &Root) -> io::Result<Vec<[String; 3]>> {
    let status = status(root)?;
    let fields = |paragraph| ["Package", "Version", "Architecture"].map(|name| short(&control_field(paragraph, name)));
    Ok(paragraphs(&status).map(fields).collect())
}

/// The configuration files that an earlier version of a package brought, and that the present one has no more: dpkg keeps them.
pub(super) fn obsolete(root: &Root) -> io::Result<Vec<String>> {
    let status = status(root)?;
    // ` PATH MD5 obsolete`, below `Conffiles:`. A description has no such line.
    let path = |line: &str| {
        let (path, digest) = line.strip_prefix(" /")?.strip_suffix(" obsolete")?.rsplit_once(' ')?;
        let is_digest = digest.len() == 32 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then(|| format!("/{path}"))
    };
    Ok(status.lines().filter_map(path).collect())
}

pub(super) fn read(root: &Root) -> io::Result<Found> {
    let status = status(root)?;
    let (mut packages, mut owned) = (Vec::new(), Owned::default());
    for paragraph in paragraphs(&status) {
        let field = |name: &str| control_field(paragraph, name);
        let (name, arch) = (field("Package"), field("Architecture"));
        for list in [format!("{name}.list"), format!("{name}:{arch}.list")] {
            if let Some(list) = root.text(&Path::new(DPKG_LISTS).join(list), LONGEST_LIST) {
                owned.add(root, list.lines())?;
            }
        }
        let copyright = Path::new("usr/share/doc").join(&name).join("copyright");
        let licences = root.text(&copyright, LONGEST_COPYRIGHT);
        packages.push(Package {
            version: short(&field("Version")),
            source: some(&field("Source")),
            supplier: some(&field("Maintainer")),
            homepage: some(&field("Homepage")),
            licences: licences.and_then(|text| some(&of_copyright_file(&text)?)),
            sha256: None,
            arch: short(&arch),
            name: short(&name),
        });
    }
    Ok((packages, owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dpkg_keeps_of_earlier_versions_is_found() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(DPKG_STATUS);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        let digest = "0123456789abcdef0123456789abcdef";
        let status = format!(
            "Package: a\nStatus: install ok installed\nConffiles:\n /etc/a.conf {digest}\n /etc/old one.conf {digest} obsolete\n\
             Description: a\n /etc/this is obsolete\n is obsolete\n"
        );
        fs_err::write(path, status).unwrap();
        assert_eq!(
            obsolete(&Root::open(root.path()).unwrap()).unwrap(),
            ["/etc/old one.conf"]
        );
        let empty = tempfile::tempdir().unwrap();
        assert!(obsolete(&Root::open(empty.path()).unwrap()).is_err());
    }
}
