//! Reads and unpacks Debian packages. Runs `dpkg-deb`.
//!
//! `dpkg-deb` opens the archives, so that every format that it knows is supported.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    process::Command,
};

use tar::Entry;

use super::{
    archive::Packed,
    facts::{Facts, Sum},
};

/// The most bytes of a control file; the largest lists of checksums have a few hundred kilobytes.
const LONGEST_TEXT: u64 = 16 << 20;

/// Reads the control files of a package.
///
/// # Errors
///
/// The file is not a package, or is still being written.
pub(super) fn facts(package: File) -> io::Result<Facts> {
    let mut packed = packed("--ctrl-tarfile", package)?;
    let mut facts = Facts::default();
    for entry in packed.entries()? {
        let entry = entry?;
        let name = entry
            .path()?
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let is_file = entry.header().entry_type().is_file();
        let text = |entry: Entry<'_, _>| -> io::Result<String> {
            let mut bytes = Vec::new();
            entry.take(LONGEST_TEXT).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        match name.as_deref() {
            Some("control") if is_file => {
                facts = Facts {
                    sums: facts.sums,
                    ..control(&text(entry)?)
                };
            }
            Some("md5sums") if is_file => facts.sums = sums(&text(entry)?),
            _ => {}
        }
    }
    packed.end()?;
    Ok(facts)
}

/// A package's name, version and architecture, from its control file or a paragraph of dpkg's status.
pub(super) fn control(text: &str) -> Facts {
    Facts {
        name: field(text, "Package"),
        version: field(text, "Version"),
        arch: field(text, "Architecture"),
        sums: Vec::new(),
    }
}

/// The digests in a package's checksum list.
pub(super) fn sums(text: &str) -> Vec<Sum> {
    text.lines().filter_map(Sum::parse).collect()
}

/// A field of a control file; empty when it is absent.
pub(crate) fn field(text: &str, name: &str) -> String {
    let values = text.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    });
    values.unwrap_or_default()
}

/// Extracts the files needed for twins from a package into the directory `into`.
///
/// # Errors
///
/// The package is damaged, or the disk is full.
pub(super) fn unpack(package: File, into: &Path) -> io::Result<()> {
    packed("--fsys-tarfile", package)?.unpack(into)
}

/// The keys of a package's files with `wanted` paths, which are absolute, once they are in the root.
///
/// # Errors
///
/// The package is damaged.
pub(super) fn keys(package: File, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
    packed("--fsys-tarfile", package)?.keys(wanted)
}

fn packed(what: &str, package: File) -> io::Result<Packed> {
    Packed::read(Command::new("dpkg-deb").args([what, "/proc/self/fd/0"]), package)
}
