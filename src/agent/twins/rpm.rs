//! Reads and unpacks rpm packages. Runs rpm's own tools.
//!
//! rpm's tools open the packages, so that every format that they know is supported.

use std::{
    collections::HashSet,
    fs::File,
    io,
    path::Path,
    process::{Command, Stdio},
};

use super::{
    archive::Packed,
    facts::{Facts, Sum},
};

/// Name, version and architecture on a line each, then a line per file. Files without content have no digest. An empty
/// line ends the package.
pub(super) const QUERY: &str =
    "%{NAME}\\n%{EPOCHNUM}:%{VERSION}-%{RELEASE}\\n%{ARCH}\\n[%{FILEDIGESTS}  %{FILENAMES}\\n]\\n";

/// Reads the header of a package. The rest may still be arriving.
///
/// # Errors
///
/// The file is not a package.
pub(super) fn facts(package: File) -> io::Result<Facts> {
    let mut command = Command::new("rpm");
    // The signature does not matter here: the files in the root are compared with those in the header.
    command.args([
        "--query",
        "--nosignature",
        "--queryformat",
        QUERY,
        "--package",
        "/proc/self/fd/0",
    ]);
    let output = command.stdin(package).stderr(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(io::Error::other("rpm cannot read it"));
    }
    parse(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| io::Error::other("rpm says nothing of it"))
}

/// Reads the output of [`QUERY`] for many packages.
pub(super) fn parse_all(text: &str) -> Vec<Facts> {
    text.split("\n\n").filter_map(parse).collect()
}

fn parse(text: &str) -> Option<Facts> {
    let mut lines = text.lines();
    let mut next = || lines.next().map(str::to_owned);
    Some(Facts {
        name: next()?,
        version: next()?,
        arch: next()?,
        sums: lines.filter_map(Sum::parse).collect(),
    })
}

/// Extracts the files needed for twins from a package into the directory `into`. `sums` are those of the package that it is a twin
/// of.
///
/// # Errors
///
/// The package is damaged, or the disk is full.
pub(super) fn unpack(package: File, sums: &[Sum], into: &Path) -> io::Result<()> {
    // Files of several names have the same digest under each.
    let mut digests = HashSet::new();
    let has_links = sums.iter().any(|sum| !digests.insert(sum.digest));
    Packed::read(Command::new("rpm2archive").args(["--nocompression", "-"]), package)?
        .unsorted(has_links)
        .unpack(into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read() {
        let digest = "af4f09eb27cb7f140dfee7f3285574a68ca50ac1db2019652cef4196ee346307";
        let text = format!("bash\n0:5.2-1\naarch64\n{digest}  /usr/bin/bash\n  /usr/bin/rbash\n");
        let facts = parse(&text).unwrap();
        assert_eq!(
            (&*facts.name, &*facts.version, &*facts.arch),
            ("bash", "0:5.2-1", "aarch64")
        );
        assert_eq!(facts.sums.len(), 1);
        assert_eq!(facts.sums[0].path, "usr/bin/bash");
        assert_eq!(parse("bash\n0:5.2-1"), None);
        let all = parse_all(&format!("{text}\nfiles-less\n0:1-1\nnoarch\n\n"));
        let names: Vec<_> = all.iter().map(|facts| (&*facts.name, facts.sums.len())).collect();
        assert_eq!(names, [("bash", 1), ("files-less", 0)]);
    }
}
