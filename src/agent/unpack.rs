//! Unpacks a recipe archive into a directory, without trusting the archive. Writes below that directory only.
//!
//! Links are made last. While files are written, the tree therefore contains only directories and files of this very
//! archive, and no write can go through a link.

use std::{
    cell::Cell,
    collections::BTreeMap,
    ffi::OsStr,
    fmt::Display,
    fs::Permissions,
    io::{self, BufReader, Read, Write},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, SystemTime},
};

use fs_err::{File, os::unix::fs::symlink};
use kiln_records::compression::Compression;
use kiln_records::{Code, Failure, protocol::RecipeSource};
use tar::{Archive, Entry, EntryType};

use self::paths::{check_target, clean};
use super::digest;

/// The most bytes of headers (long names, extended attributes) of one entry.
const HEADER_BYTES: u64 = 1 << 20;

/// The limits of an archive.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of all files together, including holes.
    pub bytes: u64,
    /// Number of entries.
    pub entries: u64,
    /// The largest ratio of unpacked files to the archive's own size; checked beyond `ratio_free_bytes` only.
    pub ratio: u64,
    /// Bytes that are allowed whatever the ratio.
    pub ratio_free_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 4 << 30,
            entries: 200_000,
            // gzip cannot exceed 1030, and no real recipe comes near this.
            ratio: 200,
            ratio_free_bytes: 64 << 20,
        }
    }
}

/// An unpacked recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// The recipe's directory: where the archive was unpacked, or the only directory in there.
    pub root: PathBuf,
    /// Number of entries in the archive.
    pub entries: u64,
    /// Number of bytes unpacked, including the archive's own headers.
    pub bytes: u64,
    /// The time of the newest file, in seconds since 1970, as the archive says.
    pub newest: u32,
}

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

/// Unpacks `archive` (tar; plain or as gzip, bzip2, xz or zstd) into the directory `into`, which is created if
/// necessary and must be empty. Modes are taken from the archive, owners are not.
pub fn unpack(archive: &Path, into: &Path, limits: &Limits) -> Result<Unpacked, Failure> {
    let io = |error| Failure::io(format!("cannot unpack {}", archive.display()), &error);
    fs_err::create_dir_all(into).map_err(io)?;
    if fs_err::read_dir(into).map_err(io)?.next().is_some() {
        return Err(Failure::new(Code::Io, format!("{} is not empty", into.display())));
    }
    let file = File::open(archive).map_err(io)?;
    let packed_size = file.metadata().map_err(io)?.len();
    let most = limits
        .bytes
        .min(limits.ratio_free_bytes.max(packed_size.saturating_mul(limits.ratio)));
    let reader = open(file, archive)?;
    let mut unpacking = Unpacking {
        archive,
        into,
        entries: 0,
        bytes: 0,
        newest: 0,
        most,
        links: BTreeMap::new(),
    };
    unpacking.all(reader, limits.entries)?;
    unpacking.make_links()?;
    let root = recipe_root(into).map_err(io)?;
    Ok(Unpacked {
        root,
        entries: unpacking.entries,
        bytes: unpacking.bytes,
        newest: unpacking.newest,
    })
}

/// The plain tar of an archive.
fn open(file: File, archive: &Path) -> Result<Box<dyn Read>, Failure> {
    let mut file = BufReader::with_capacity(256 * 1024, file);
    let head = io::BufRead::fill_buf(&mut file).map_err(|error| Failure::io("cannot read the archive", &error))?;
    if head.starts_with(b"PK\x03\x04") {
        return Err(not_archive(archive, "it is a zip file"));
    }
    match Compression::detect(head) {
        None => Ok(Box::new(file)),
        Some(compression) => compression.reader(file).map_err(|error| not_archive(archive, error)),
    }
}

/// `into`, or its only entry if that is a directory.
fn recipe_root(into: &Path) -> io::Result<PathBuf> {
    let mut found = fs_err::read_dir(into)?;
    match (found.next().transpose()?, found.next()) {
        (Some(only), None) if only.file_type()?.is_dir() => Ok(only.path()),
        _ => Ok(into.to_owned()),
    }
}

struct Unpacking<'a> {
    archive: &'a Path,
    into: &'a Path,
    entries: u64,
    bytes: u64,
    newest: u32,
    /// The most bytes to unpack in all.
    most: u64,
    /// Symbolic links to make at the end: place and target.
    links: BTreeMap<PathBuf, PathBuf>,
}

impl Unpacking<'_> {
    fn all(&mut self, reader: Box<dyn Read>, most_entries: u64) -> Result<(), Failure> {
        let allowance = Rc::new(Cell::new(HEADER_BYTES));
        let mut archive = Archive::new(Bounded {
            reader,
            allowance: Rc::clone(&allowance),
        });
        let path = self.archive;
        let mut entries = archive.entries().map_err(|error| not_archive(path, error))?;
        loop {
            allowance.set(HEADER_BYTES);
            let Some(next) = entries.next() else { break };
            let mut entry = next.map_err(|error| match (allowance.get(), self.entries) {
                (0, _) => self.bomb("headers of more than 1 MiB"),
                (_, 0) => not_archive(path, error),
                _ => self.damaged(error),
            })?;
            self.entries += 1;
            if self.entries > most_entries {
                return Err(self.bomb(format_args!("more than {most_entries} entries")));
            }
            self.count(HEADER_BYTES - allowance.get())?;
            // `copy` counts the entry's content.
            allowance.set(u64::MAX);
            self.entry(&mut entry)?;
            // Data of entries that should have none must be read and counted too.
            self.copy(&mut entry, &mut io::sink())?;
        }
        if self.entries == 0 {
            return Err(not_archive(path, "it holds no files"));
        }
        Ok(())
    }

    fn entry(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<(), Failure> {
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            return Ok(());
        }
        let name = entry.path_bytes().into_owned();
        let path = clean(&name).map_err(|why| self.unsafe_entry(&name, why))?;
        let mode = entry.header().mode().unwrap_or(0o644);
        match kind {
            EntryType::Directory => self.make_dir(&path, &name, mode),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.make_file(entry, &path, &name, mode)
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                check_target(&path, &target).map_err(|why| self.unsafe_entry(&name, why))?;
                self.clear(&path, &name)?;
                self.links.insert(path, PathBuf::from(OsStr::from_bytes(&target)));
                Ok(())
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                let target = clean(&target).map_err(|_| self.unsafe_entry(&name, "links outside the recipe"))?;
                self.make_hard_link(&path, &target, &name)
            }
            EntryType::Char | EntryType::Block => Err(self.unsafe_entry(&name, "is a device node")),
            EntryType::Fifo => Err(self.unsafe_entry(&name, "is a fifo")),
            other => {
                let kind = char::from(other.as_byte());
                Err(self.unsafe_entry(&name, format_args!("is of the unknown kind `{kind}`")))
            }
        }
    }

    fn make_dir(&self, path: &Path, name: &[u8], mode: u32) -> Result<(), Failure> {
        self.make_parents(&path.join("x"), name)?;
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        // The owner must be able to enter it, whatever the archive says.
        let mode = Permissions::from_mode(mode & 0o7777 | 0o700);
        fs_err::set_permissions(self.into.join(path), mode).map_err(|error| self.io(name, &error))
    }

    fn make_file(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        path: &Path,
        name: &[u8],
        mode: u32,
    ) -> Result<(), Failure> {
        self.clear(path, name)?;
        let mut file = File::create_new(self.into.join(path)).map_err(|error| self.io(name, &error))?;
        self.copy(entry, &mut file)?;
        file.set_permissions(Permissions::from_mode(mode & 0o7777))
            .map_err(|error| self.io(name, &error))?;
        if let Ok(seconds) = entry.header().mtime() {
            self.newest = self.newest.max(u32::try_from(seconds).unwrap_or(u32::MAX));
            let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
            // A time that the file system cannot store is no reason to refuse the file.
            let _ = time.map(|time| file.file().set_modified(time));
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

    /// Copies the rest of an entry and counts it.
    fn copy(&mut self, entry: &mut impl Read, to: &mut impl Write) -> Result<(), Failure> {
        let mut piece = [0; 8 * 1024];
        loop {
            let read = entry.read(&mut piece).map_err(|error| self.damaged(error))?;
            if read == 0 {
                return Ok(());
            }
            self.count(read as u64)?;
            to.write_all(&piece[..read])
                .map_err(|error| Failure::io("cannot write a file of the recipe", &error))?;
        }
    }

    fn count(&mut self, bytes: u64) -> Result<(), Failure> {
        self.bytes += bytes;
        if self.bytes > self.most {
            return Err(self.bomb(format_args!("more than {} bytes, the maximum", self.most)));
        }
        Ok(())
    }

    fn unsafe_entry(&self, name: &[u8], why: impl Display) -> Failure {
        let (archive, name) = (self.archive.display(), String::from_utf8_lossy(name));
        Failure::new(
            Code::RecipeUnsafe,
            format!("{archive}: the entry `{}` {why}", name.escape_debug()),
        )
        .hint("create the archive from inside the recipe's directory: tar -czf recipe.tgz -C DIRECTORY .")
    }

    fn bomb(&self, what: impl Display) -> Failure {
        Failure::new(
            Code::RecipeBomb,
            format!("{} unpacks to {what}", self.archive.display()),
        )
        .hint("leave large or generated files out of the recipe; packages and repositories do not belong in it")
    }

    fn damaged(&self, error: impl Display) -> Failure {
        let (archive, entries) = (self.archive.display(), self.entries);
        Failure::new(
            Code::RecipeDamaged,
            format!("{archive} is truncated after {entries} entries: {error}"),
        )
        .hint("create the archive again; `tar -tf` must be able to list it to the end")
    }

    fn io(&self, name: &[u8], error: &io::Error) -> Failure {
        let (archive, name) = (self.archive.display(), String::from_utf8_lossy(name));
        Failure::io(format!("{archive}: cannot unpack `{}`", name.escape_debug()), error)
    }
}

fn not_archive(archive: &Path, why: impl Display) -> Failure {
    Failure::new(
        Code::RecipeNotArchive,
        format!("{} is not a tar archive: {why}", archive.display()),
    )
    .hint("a recipe is a tar archive, plain or compressed with gzip, bzip2, xz or zstd")
}

/// A reader that fails when more than `allowance` bytes are read before the allowance is reset.
struct Bounded {
    reader: Box<dyn Read>,
    allowance: Rc<Cell<u64>>,
}

impl Read for Bounded {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let allowed = usize::try_from(self.allowance.get())
            .unwrap_or(usize::MAX)
            .min(buf.len());
        if allowed == 0 && !buf.is_empty() {
            return Err(io::Error::other("too many bytes of headers"));
        }
        let read = self.reader.read(&mut buf[..allowed])?;
        self.allowance.set(self.allowance.get() - read as u64);
        Ok(read)
    }
}

mod paths;
#[cfg(test)]
mod tests;
