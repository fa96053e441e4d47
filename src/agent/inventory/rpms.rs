//! The packages in a root by rpm's database. Runs rpm on a copy of it.

use std::{
    io::{self, BufRead, BufReader},
    path::Path,
    process::Stdio,
};

use kiln_records::sbom::Package;

use super::{Found, loose::Owned, short, some};
use crate::twins::{Root, query_rpm};

/// A line for each package. Tabs separate its fields; rpm's tags have none.
const QUERY: &str = "p\\t%{NAME}\\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\\t%{ARCH}\\t%{SOURCERPM}\\t%{VENDOR}\\t%{URL}\\t\
                     %{LICENSE}\\n[f\\t%{FILENAMES}\\n]";

/// The longest line of rpm that is read, in bytes.
const LONGEST_LINE: u64 = 64 << 10;

/// The same without files.
const NAMES: &str = "p\\t%{NAME}\\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\\t%{ARCH}\\t\\t\\t\\t\\n";

pub(super) fn read(root: &Root, aside: &Path) -> io::Result<Found> {
    query(root, aside, QUERY)
}

/// Name, version and architecture of each package.
pub(super) fn names(root: &Root, aside: &Path) -> io::Result<Vec<[String; 3]>> {
    let (packages, _) = query(root, aside, NAMES)?;
    Ok(packages
        .into_iter()
        .map(|package| [package.name, package.version, package.arch])
        .collect())
}

fn query(root: &Root, aside: &Path, format: &str) -> io::Result<Found> {
    let dir = tempfile::tempdir_in(aside)?;
    let mut query = query_rpm(root, dir.path())?;
    query.args(["--all", "--queryformat", format]).stdout(Stdio::piped());
    let mut rpm = query.spawn()?;
    let output = rpm.stdout.take().map(BufReader::new);
    let read = output.map_or_else(|| Ok(Found::default()), |output| parse(root, output));
    if read.is_err() {
        // It may have more to say than anyone wants to read.
        rpm.kill()?;
    }
    let status = rpm.wait()?;
    let found = read?;
    if !status.success() {
        return Err(io::Error::other("rpm cannot read the image's database of packages"));
    }
    Ok(found)
}

fn parse(root: &Root, mut output: impl BufRead) -> io::Result<Found> {
    let (mut packages, mut owned) = (Vec::new(), Owned::default());
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = io::Read::take(&mut output, LONGEST_LINE).read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok((packages, owned));
        }
        let text = String::from_utf8_lossy(&line);
        if let Some(path) = text.strip_prefix("f\t") {
            owned.add(root, [path.trim_end_matches('\n')].into_iter())?;
        } else if let Some(package) = package(text.trim_end_matches('\n')) {
            packages.push(package);
        }
    }
}

fn package(line: &str) -> Option<Package> {
    let mut fields = line.strip_prefix("p\t")?.split('\t');
    let mut next = || fields.next();
    let (name, version, arch) = (next()?, next()?, next()?);
    // Not a package: keys that rpm trusts are kept as if they were.
    if name == "gpg-pubkey" {
        return None;
    }
    Some(Package {
        name: short(name),
        version: short(version),
        arch: short(arch),
        source: some(next()?),
        supplier: some(next()?),
        homepage: some(next()?),
        licences: some(next()?),
        sha256: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rpms_answer_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let output = "p\tbash\t0:5.2-1\taarch64\tbash-5.2-1.src.rpm\tAlmaLinux\thttps://gnu.org/bash\tGPL-3.0-or-later\n\
                      f\t/usr/bin/bash\np\tgpg-pubkey\t0:1-1\t(none)\t(none)\t(none)\t(none)\tpubkey\n\
                      p\tempty\t0:1-1\tnoarch\t(none)\t(none)\t(none)\tMIT\n";
        let (packages, owned) = parse(&root, output.as_bytes()).unwrap();
        let names: Vec<_> = packages.iter().map(|package| package.name.as_str()).collect();
        assert_eq!(names, ["bash", "empty"]);
        assert_eq!(packages[0].licences.as_deref(), Some("GPL-3.0-or-later"));
        assert_eq!(packages[1].supplier, None);
        assert!(owned.has(Path::new("usr/bin/bash")));
    }
}
