//! Debian packages: what the target's says of itself, and what is taken out of the host's.
//!
//! `dpkg-deb` takes the archives apart, so that every format that it knows is known here.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use tar::{Archive, Entry, EntryType};

/// Control files may have this many bytes; the largest lists of checksums have a few hundred kilobytes.
const LONGEST_TEXT: u64 = 16 << 20;

/// The first bytes of programs and libraries.
const ELF: &[u8; 4] = b"\x7fELF";

/// What a package says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Control {
    pub(super) name: String,
    pub(super) version: String,
    /// Debian's name of its architecture, or `all`.
    pub(super) arch: String,
    pub(super) sums: Vec<Sum>,
}

/// One file of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sum {
    /// Relative to the root.
    pub(super) path: String,
    pub(super) md5: [u8; 16],
}

/// Reads the control files of a package.
///
/// # Errors
///
/// When it is none, or is still being written.
pub(super) fn control(package: File) -> io::Result<Control> {
    let mut tar = DpkgDeb::start("--ctrl-tarfile", package)?;
    let mut control = Control::default();
    for entry in tar.archive.entries()? {
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
                let text = text(entry)?;
                control.name = field(&text, "Package");
                control.version = field(&text, "Version");
                control.arch = field(&text, "Architecture");
            }
            Some("md5sums") if is_file => control.sums = sums(&text(entry)?),
            _ => {}
        }
    }
    tar.end()?;
    Ok(control)
}

fn field(text: &str, name: &str) -> String {
    let values = text.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    });
    values.unwrap_or_default()
}

/// Reads a list of checksums, as packages have it and dpkg keeps it.
pub(super) fn sums(text: &str) -> Vec<Sum> {
    let read = |line: &str| {
        let (digest, path) = line.split_once("  ")?;
        let mut md5 = [0; 16];
        hex::decode_to_slice(digest, &mut md5).ok()?;
        let path = path.trim_start_matches("./").to_owned();
        Some(Sum { path, md5 })
    };
    text.lines().filter_map(read).collect()
}

/// Takes programs and libraries, and the links to them, out of a package into the directory `into`.
///
/// # Errors
///
/// When the package is damaged, or the disk is full.
pub(super) fn unpack(package: &Path, into: &Path) -> io::Result<()> {
    let mut tar = DpkgDeb::start("--fsys-tarfile", fs_err::File::open(package)?.into_parts().0)?;
    fs_err::create_dir_all(into)?;
    for entry in tar.archive.entries()? {
        let mut entry = entry?;
        match entry.header().entry_type() {
            EntryType::Regular if entry.path()?.iter().any(|part| part == "gconv") => {
                entry.unpack_in(into)?;
            }
            EntryType::Regular => unpack_program(&mut entry, into)?,
            EntryType::Symlink => {
                entry.unpack_in(into)?;
            }
            // One whose other name was left out is left out, too.
            EntryType::Link => match entry.unpack_in(into) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            },
            _ => {}
        }
    }
    tar.end()
}

/// Unpacks one file if it is a program or a library.
fn unpack_program(entry: &mut Entry<'_, ChildStdout>, into: &Path) -> io::Result<()> {
    let mut head = [0; 4];
    if entry.size() < 64 {
        return Ok(());
    }
    entry.read_exact(&mut head)?;
    if head != *ELF {
        return Ok(());
    }
    let path = entry.path()?.into_owned();
    let Ok(path) = path.strip_prefix(".") else {
        return Ok(());
    };
    if path
        .components()
        .any(|part| !matches!(part, std::path::Component::Normal(_)))
    {
        return Ok(());
    }
    let path = into.join(path);
    if let Some(dir) = path.parent() {
        fs_err::create_dir_all(dir)?;
    }
    let mut file = fs_err::File::create(&path)?;
    io::Write::write_all(&mut file, &head)?;
    io::copy(entry, &mut file)?;
    Ok(())
}

/// `dpkg-deb` while it writes a tar archive.
struct DpkgDeb {
    child: Child,
    archive: Archive<ChildStdout>,
}

impl DpkgDeb {
    fn start(what: &str, package: File) -> io::Result<Self> {
        let mut child = Command::new("dpkg-deb")
            .args([what, "/proc/self/fd/0"])
            .stdin(package)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let archive = Archive::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        Ok(Self { child, archive })
    }

    /// That all of it came.
    fn end(self) -> io::Result<()> {
        let Self { mut child, archive } = self;
        io::copy(&mut archive.into_inner(), &mut io::sink())?;
        if child.wait()?.success() {
            Ok(())
        } else {
            Err(io::Error::other("dpkg-deb cannot read it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_checksums_is_read() {
        let text = "0123456789abcdef0123456789abcdef  usr/bin/a b\nnonsense\n";
        let read = sums(text);
        assert_eq!(read.len(), 1);
        assert_eq!(
            (read[0].path.as_str(), read[0].md5[..2].to_vec()),
            ("usr/bin/a b", vec![0x01, 0x23])
        );
    }
}
