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
