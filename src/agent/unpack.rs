//! Unpacks a recipe archive into a directory, without trusting the archive. Writes below that directory only.
//!
//! Links are made last. While files are written, the tree therefore contains only directories and files of this very
//! archive, and no write can go through a link.

use std::{
    collections::BTreeMap,
    fs::Permissions,
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use fs_err::{File, os::unix::fs::symlink};
use kiln_records::{
    Code, Failure,
    archive::{self, Contents, Entry, Kind, Limits},
    protocol::RecipeSource,
};

use self::attributes::Attributes;
pub use self::attributes::Lost;
pub(crate) use self::attributes::group_of_list;
use super::digest;

/// Checks the size and SHA-256 of a fetched archive; `recipe_mismatch` when they differ.
pub fn check_fetched(archive: &Path, source: &RecipeSource) -> Result<(), Failure> {
    let (size, sha256) =
        digest::sha256_of(archive).map_err(|error| Failure::io("cannot read the recipe archive", &error))?;
    if size == source.size && sha256.eq_ignore_ascii_case(&source.sha256) {
        return Ok(());
    }
    let (path, expected_size, expected) = (archive.display(), source.size, &source.sha256);
    Err(Failure::new(
        Code::RecipeMismatch,
        format!("{path} has {size} bytes and SHA-256 {sha256}, expected were {expected_size} bytes and {expected}"),
    )
    .hint("the archive changed after the creation of the job, or was damaged in transit: start the build again"))
}

/// Unpacks `archive` (a zip, or tar: plain or as gzip, bzip2, xz or zstd) into the directory `into`, which is created if
/// necessary and must be empty. Modes and extended attributes are taken from the archive, owners are not. What an image cannot
/// have is added to `lost`.
pub fn unpack(archive: &Path, into: &Path, limits: &Limits, lost: &mut Lost) -> Result<Contents, Failure> {
    let io = |error| Failure::io(format!("cannot unpack {}", archive.display()), &error);
    fs_err::create_dir_all(into).map_err(io)?;
    if fs_err::read_dir(into).map_err(io)?.next().is_some() {
        return Err(Failure::new(Code::Io, format!("{} is not empty", into.display())));
    }
    let mut unpacking = Unpacking {
        archive,
        into,
        links: BTreeMap::new(),
        lost,
    };
    let file = File::open(archive).map_err(io)?;
    let contents = archive::read(file, archive.display(), limits, &mut |entry, content| {
        unpacking.entry(entry, content)
    })?;
    unpacking.make_links()?;
    Ok(contents)
}

struct Unpacking<'a> {
    archive: &'a Path,
    into: &'a Path,
    /// Symbolic links to make at the end: place and target.
    links: BTreeMap<PathBuf, PathBuf>,
    lost: &'a mut Lost,
}

impl Unpacking<'_> {
    fn entry(&mut self, entry: &Entry<'_>, content: &mut dyn Read) -> Result<(), Failure> {
        let (path, name) = (&entry.path, entry.name);
        let attributes = Attributes::of(entry.extended);
        match &entry.kind {
            Kind::Directory => {
                self.make_dir(path, name, attributes.mode(entry.mode))?;
                attributes.apply(&self.into.join(path), name, self.lost);
                Ok(())
            }
            Kind::File => {
                self.make_file(entry, attributes.mode(entry.mode), content)?;
                attributes.apply(&self.into.join(path), name, self.lost);
                Ok(())
            }
            Kind::Symlink(target) => {
                self.clear(path, name)?;
                self.links.insert(path.clone(), target.clone());
                Ok(())
            }
            Kind::HardLink(target) => self.make_hard_link(path, target, name),
        }
    }

    fn make_dir(&self, path: &Path, name: &[u8], mode: u32) -> Result<(), Failure> {
        self.make_parents(&path.join("x"), name)?;
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        // The owner must be able to enter it, whatever the archive says.
        let mode = Permissions::from_mode(mode | 0o700);
        fs_err::set_permissions(self.into.join(path), mode).map_err(|error| self.io(name, &error))
    }

    fn make_file(&mut self, entry: &Entry<'_>, mode: u32, content: &mut dyn Read) -> Result<(), Failure> {
        self.clear(&entry.path, entry.name)?;
        let path = self.into.join(&entry.path);
        let mut file = File::create_new(path).map_err(|error| self.io(entry.name, &error))?;
        copy(content, file.file_mut()).map_err(|error| Failure::io("cannot write a file of the recipe", &error))?;
        file.set_permissions(Permissions::from_mode(mode))
            .map_err(|error| self.io(entry.name, &error))?;
        let time = entry.modified.map(Duration::from_secs);
        if let Some(time) = time.and_then(|time| SystemTime::UNIX_EPOCH.checked_add(time)) {
            // A time that the file system cannot store is no reason to refuse the file.
            let _ = file.file().set_modified(time);
        }
        Ok(())
    }

    fn make_hard_link(&mut self, path: &Path, target: &Path, name: &[u8]) -> Result<(), Failure> {
        let target = self.into.join(target);
        if !fs_err::symlink_metadata(&target).is_ok_and(|found| found.is_file()) {
            return Err(self.unsafe_entry(name, "is a hard link to no file of the archive"));
        }
        let place = self.into.join(path);
        if place == target {
            return Ok(());
        }
        self.clear(path, name)?;
        fs_err::hard_link(target, place).map_err(|error| self.io(name, &error))
    }

    /// Makes `path` free: creates its parents, and removes what is there. A directory is not removed.
    fn clear(&mut self, path: &Path, name: &[u8]) -> Result<(), Failure> {
        if path.as_os_str().is_empty() {
            return Err(self.unsafe_entry(name, "would replace the recipe's directory"));
        }
        self.make_parents(path, name)?;
        self.links.remove(path);
        let place = self.into.join(path);
        match fs_err::symlink_metadata(&place) {
            Ok(found) if found.is_dir() => Err(self.unsafe_entry(name, "would replace a directory")),
            Ok(_) => fs_err::remove_file(place).map_err(|error| self.io(name, &error)),
            Err(_) => Ok(()),
        }
    }

    /// Makes the directories above `path`, each of which must be a directory if it exists.
    fn make_parents(&self, path: &Path, name: &[u8]) -> Result<(), Failure> {
        let mut place = self.into.to_owned();
        for component in path.parent().into_iter().flat_map(Path::components) {
            place.push(component);
            match fs_err::symlink_metadata(&place) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => return Err(self.unsafe_entry(name, "lies below something that is not a directory")),
                Err(_) => fs_err::create_dir(&place).map_err(|error| self.io(name, &error))?,
            }
        }
        Ok(())
    }

    fn make_links(&mut self) -> Result<(), Failure> {
        for (path, target) in std::mem::take(&mut self.links) {
            let name = path.as_os_str().as_bytes();
            // A directory may have followed the link in the archive.
            self.clear(&path, name)?;
            symlink(target, self.into.join(&path)).map_err(|error| self.io(name, &error))?;
        }
        Ok(())
    }

    fn unsafe_entry(&self, name: &[u8], why: &str) -> Failure {
        archive::unsafe_entry(self.archive.display(), name, why)
    }

    fn io(&self, name: &[u8], error: &io::Error) -> Failure {
        let (archive, name) = (self.archive.display(), String::from_utf8_lossy(name));
        Failure::io(format!("{archive}: cannot unpack `{}`", name.escape_debug()), error)
    }
}

/// Writes a file. What is only zeros becomes a hole, as it was in most files that are so large.
fn copy(from: &mut dyn Read, to: &mut std::fs::File) -> io::Result<()> {
    let mut piece = vec![0; 64 * 1024];
    let mut size = 0;
    loop {
        let mut read = 0;
        while read < piece.len() {
            match from.read(&mut piece[read..]) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if read == 0 {
            return to.set_len(size);
        }
        size += read as u64;
        if read == piece.len() && piece.iter().all(|byte| *byte == 0) {
            to.seek(SeekFrom::Start(size))?;
        } else {
            to.write_all(&piece[..read])?;
        }
    }
}

mod attributes;
#[cfg(test)]
mod tests;
