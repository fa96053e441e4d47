//! Extracts programs and libraries from a package that a tool converts to a tar archive. Runs the tool, and writes
//! below the given directory.

use std::{
    fs::File,
    io::{self, Read},
    path::{Component, Path},
    process::{Child, ChildStdout, Command, Stdio},
};

use tar::{Archive, Entry, EntryType};

use crate::twins::{gather::key_of, key};

/// The first bytes of programs and libraries.
const ELF: &[u8; 4] = b"\x7fELF";

/// A tool that is writing a tar archive.
pub(super) struct Packed {
    child: Child,
    archive: Archive<ChildStdout>,
    /// Whether programs may be behind `/usr/share`, too.
    is_unsorted: bool,
}

impl Packed {
    /// Starts a tool that reads `package` on its standard input.
    pub(super) fn read(tool: &mut Command, package: File) -> io::Result<Self> {
        let tool = tool.stdin(package).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = tool.spawn()?;
        let archive = Archive::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        Ok(Self {
            child,
            archive,
            is_unsorted: false,
        })
    }

    /// Says whether its programs may be behind `/usr/share`, too.
    pub(super) fn unsorted(self, is_unsorted: bool) -> Self {
        Self { is_unsorted, ..self }
    }

    /// The entries of the archive.
    pub(super) fn entries(&mut self) -> io::Result<tar::Entries<'_, ChildStdout>> {
        self.archive.entries()
    }

    /// Checks that the archive was complete.
    ///
    /// # Errors
    ///
    /// The package is damaged.
    pub(super) fn end(self) -> io::Result<()> {
        let Self { mut child, archive, .. } = self;
        io::copy(&mut archive.into_inner(), &mut io::sink())?;
        if child.wait()?.success() {
            Ok(())
        } else {
            Err(io::Error::other("the package is damaged"))
        }
    }

    /// Ends the tool, of whose archive nothing more is needed.
    fn leave(self) -> io::Result<()> {
        let Self { mut child, archive, .. } = self;
        drop(archive);
        child.kill()?;
        child.wait().map(drop)
    }

    /// The keys of the files with `wanted` paths, which are absolute, once they are in the root. A package that is
    /// damaged only where no programs are is not noticed.
    ///
    /// # Errors
    ///
    /// The package is damaged.
    pub(super) fn keys(mut self, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
        let mut keys = Vec::new();
        for entry in self.entries()? {
            let entry = entry?;
            if is_behind_programs(&entry.path()?) {
                return self.leave().map(|()| keys);
            }
            let path = Path::new("/").join(below_root(&entry.path()?));
            if entry.header().entry_type() == EntryType::Regular && wanted(&path.to_string_lossy()) {
                let (size, modified) = (entry.size(), entry.header().mtime()?);
                let mut head = Vec::with_capacity(key::HEAD);
                entry.take(key::HEAD as u64).read_to_end(&mut head)?;
                keys.extend(key_of(&head, size, modified.cast_signed()));
            }
        }
        self.end()?;
        Ok(keys)
    }

    /// Extracts programs and libraries, under all their names, and the C library's files for character sets into the
    /// directory `into`. Symbolic links are skipped, so that none leads out of it. A package that is damaged only where
    /// no programs are is not noticed.
    ///
    /// # Errors
    ///
    /// The package is damaged, or the disk is full.
    pub(super) fn unpack(mut self, into: &Path) -> io::Result<()> {
        fs_err::create_dir_all(into)?;
        let is_unsorted = self.is_unsorted;
        for entry in self.entries()? {
            let mut entry = entry?;
            if !is_unsorted && is_behind_programs(&entry.path()?) {
                return self.leave();
            }
            match entry.header().entry_type() {
                EntryType::Regular if entry.path()?.iter().any(|part| part == "gconv") => {
                    entry.unpack_in(into)?;
                }
                EntryType::Regular => unpack_program(&mut entry, into)?,
                // A hard link to a skipped file is skipped too.
                EntryType::Link => match entry.unpack_in(into) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                },
                _ => {}
            }
        }
        self.end()
    }
}

/// Whether a file lies where no programs are, and none follow.
///
/// dpkg-deb and rpmbuild sort the files of a package by name, dpkg-deb with symbolic links behind all others, rpmbuild with files
/// of several names. What follows `/usr/share` is half of many packages, and takes as long to decompress as their programs. In a
/// package that was not sorted, programs behind it are not found, and stay emulated.
fn is_behind_programs(path: &Path) -> bool {
    below_root(path).starts_with("usr/share")
}

/// The path of an entry without the `./` that dpkg-deb and rpm2archive begin it with.
fn below_root(path: &Path) -> &Path {
    path.strip_prefix(".").unwrap_or(path)
}

/// Extracts one file if it is a program or a library.
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
    let path = below_root(&path);
    if path.components().any(|part| !matches!(part, Component::Normal(_))) {
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

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::fs::MetadataExt};

    use super::*;

    /// The archive in this file, as a tool writes it.
    fn written(tool: &mut Command, path: &Path) -> Packed {
        let (package, _) = fs_err::File::open(path).unwrap().into_parts();
        Packed::read(tool, package).unwrap()
    }

    #[test]
    fn the_key_of_a_file_is_known_before_it_is_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("package.tar");
        let mut archive = tar::Builder::new(fs_err::File::create(&path).unwrap());
        for name in ["./usr/bin/tried", "./usr/bin/other"] {
            archive.append_path_with_name("/bin/true", name).unwrap();
        }
        archive.into_inner().unwrap();
        let keys = |wanted: &str| {
            let packed = written(&mut Command::new("cat"), &path);
            packed.keys(|path| path == wanted).unwrap()
        };
        let program = fs_err::read("/bin/true").unwrap();
        let status = fs_err::metadata("/bin/true").unwrap();
        let key = key_of(&program[..key::HEAD], status.size(), status.mtime()).unwrap();
        assert_eq!(keys("/usr/bin/tried"), [key]);
        assert!(keys("/usr/bin/none").is_empty());
    }

    #[test]
    fn nothing_is_read_behind_the_programs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("package.tar");
        let mut archive = tar::Builder::new(fs_err::File::create(&path).unwrap());
        for name in ["./usr/bin/here", "./usr/share/doc/here", "./usr/share/there"] {
            archive.append_path_with_name("/bin/true", name).unwrap();
        }
        let mut package = archive.into_inner().unwrap();
        // The end is missing, and a tool that writes for ever is ended.
        package.flush().unwrap();
        let into = dir.path().join("unpacked");
        let for_ever = ["-c", "cat; exec cat /dev/zero"];
        written(Command::new("sh").args(for_ever), &path).unpack(&into).unwrap();
        assert!(into.join("usr/bin/here").exists());
        assert!(!into.join("usr/share").exists());
    }

    /// As rpm2archive writes them: a file of several names with its content first, behind all others.
    #[test]
    fn programs_of_several_names_are_found_behind_all_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("package.tar");
        let mut archive = tar::Builder::new(fs_err::File::create(&path).unwrap());
        for name in ["./usr/share/doc/here", "./usr/bin/perl"] {
            archive.append_path_with_name("/bin/true", name).unwrap();
        }
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Link);
        header.set_size(0);
        archive
            .append_link(&mut header, "./usr/bin/perl5", "./usr/bin/perl")
            .unwrap();
        archive.into_inner().unwrap();
        for is_unsorted in [false, true] {
            let into = dir.path().join(format!("unpacked-{is_unsorted}"));
            let packed = written(&mut Command::new("cat"), &path).unsorted(is_unsorted);
            packed.unpack(&into).unwrap();
            for name in ["usr/bin/perl", "usr/bin/perl5"] {
                assert_eq!(into.join(name).exists(), is_unsorted, "{name}");
            }
        }
    }
}
