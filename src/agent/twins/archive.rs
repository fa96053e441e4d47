//! Taking programs and libraries out of a package, of which a tool of its format makes a tar archive.

use std::{
    fs::File,
    io::{self, Read},
    path::{Component, Path},
    process::{Child, ChildStdout, Command, Stdio},
};

use tar::{Archive, Entry, EntryType};

/// The first bytes of programs and libraries.
const ELF: &[u8; 4] = b"\x7fELF";

/// A tool while it writes a tar archive.
pub(super) struct Packed {
    child: Child,
    archive: Archive<ChildStdout>,
}

impl Packed {
    /// Starts a tool that reads `package` on its standard input.
    pub(super) fn read(tool: &mut Command, package: File) -> io::Result<Self> {
        let tool = tool.stdin(package).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = tool.spawn()?;
        let archive = Archive::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        Ok(Self { child, archive })
    }

    /// What is in it.
    pub(super) fn entries(&mut self) -> io::Result<tar::Entries<'_, ChildStdout>> {
        self.archive.entries()
    }

    /// That all of it came.
    ///
    /// # Errors
    ///
    /// When the package is damaged.
    pub(super) fn end(self) -> io::Result<()> {
        let Self { mut child, archive } = self;
        io::copy(&mut archive.into_inner(), &mut io::sink())?;
        if child.wait()?.success() {
            Ok(())
        } else {
            Err(io::Error::other("the package is damaged"))
        }
    }

    /// Takes programs and libraries, under all their names, and what the C library reads of character sets, into the
    /// directory `into`. No symbolic link is taken, so that none leads out of it.
    ///
    /// # Errors
    ///
    /// When the package is damaged, or the disk is full.
    pub(super) fn unpack(mut self, into: &Path) -> io::Result<()> {
        fs_err::create_dir_all(into)?;
        for entry in self.entries()? {
            let mut entry = entry?;
            match entry.header().entry_type() {
                EntryType::Regular if entry.path()?.iter().any(|part| part == "gconv") => {
                    entry.unpack_in(into)?;
                }
                EntryType::Regular => unpack_program(&mut entry, into)?,
                // One whose other name was left out is left out, too.
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
