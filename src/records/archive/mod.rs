//! Reads archives of recipes, tar and zip, without trusting them: which entries there are, where they lie, and whether they are
//! safe. Works on readers: no I/O of its own.
//!
//! One reading serves everybody: who uploads a recipe, who looks into it, and the agent that unpacks it. So an archive that is
//! accepted first is not refused later for what could have been seen before.

mod own;
mod paths;
mod pax;
mod tape;
mod zip;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fmt::Display,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use crate::{
    Code, Failure,
    description::{self, Missing, Place},
    protocol::RecipeType,
};

pub use own::{builder, is_own};
pub use paths::{check_target, clean};

/// The longest path in bytes, as in Linux.
const PATH_BYTES: usize = 4096;

/// The first bytes of a zip file, and of one without entries.
const ZIP: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

/// The first bytes of an AppleDouble file, in which macOS puts what other systems cannot store of a file: `._NAME` beside `NAME`.
const APPLE_DOUBLE: &[u8] = b"\x00\x05\x16\x07";

/// The limits of an archive.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of all files together, including holes.
    pub bytes: u64,
    /// Number of entries.
    pub entries: u64,
    /// The largest ratio of unpacked files to the archive's own size; checked beyond `ratio_free_bytes` only, and not for what
    /// Kiln itself packed.
    pub ratio: u64,
    /// Bytes that are allowed whatever the ratio.
    pub ratio_free_bytes: u64,
    /// Whether what is beyond `bytes` is only not read, rather than refused.
    pub in_part: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 4 << 30,
            entries: 200_000,
            // gzip cannot exceed 1030, and no real recipe comes near this.
            ratio: 200,
            ratio_free_bytes: 64 << 20,
            in_part: false,
        }
    }
}

/// An entry of an archive.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Its name as the archive has it.
    pub name: &'a [u8],
    /// The same as a relative path of plain names; empty for the top itself.
    pub path: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// Its permission bits.
    pub mode: u32,
    /// The time of its last change, in seconds since 1970, if the archive says it.
    pub modified: Option<u64>,
    /// The bytes of its content, as the archive says.
    pub size: u64,
    /// The records of its extended header, with their keys: extended attributes, among others.
    pub extended: &'a [(String, Vec<u8>)],
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file.
    File,
    /// A symbolic link with this text.
    Symlink(PathBuf),
    /// Another name of the file at this path.
    HardLink(PathBuf),
}

/// What was read of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Number of entries.
    pub entries: u64,
    /// Number of bytes unpacked, including the archive's own headers.
    pub bytes: u64,
    /// The time of the newest file, in seconds since 1970, as the archive says.
    pub newest: u32,
    /// Number of files of macOS that were left out.
    pub of_macos: u64,
    /// Number of files whose modes the archive does not say, as with one of Windows.
    pub without_modes: u64,
    /// The place of kiwi's description.
    pub description: Result<Place, Missing>,
    /// The place of a Containerfile.
    pub containerfile: Result<Place, Missing>,
}

impl Contents {
    /// The place of what describes a recipe of this type.
    pub fn place(&self, kind: RecipeType) -> &Result<Place, Missing> {
        match kind {
            RecipeType::KiwiNg => &self.description,
            RecipeType::Containerfile => &self.containerfile,
        }
    }

    /// The type of the recipe, if nobody has said it.
    pub fn kind(&self) -> RecipeType {
        match (&self.description, &self.containerfile) {
            (Err(_), Ok(_)) => RecipeType::Containerfile,
            _ => RecipeType::KiwiNg,
        }
    }
}

/// What is done with each entry and its content.
pub type Each<'a> = dyn FnMut(&Entry<'_>, &mut dyn Read) -> Result<(), Failure> + 'a;

/// Reads an archive (a zip, or tar: plain or as gzip, bzip2, xz or zstd) from its begin to its end, and hands its entries over,
/// in their order. In messages it is called as it is `shown`.
///
/// # Errors
///
/// `recipe_not_archive`, `recipe_damaged`, `recipe_unsafe` or `recipe_bomb`, and what `each` returns.
pub fn read<R: Read + Seek>(
    mut archive: R,
    shown: impl Display,
    limits: &Limits,
    each: &mut Each<'_>,
) -> Result<Contents, Failure> {
    let unreadable = |error: io::Error| Failure::io("cannot read the archive", &error);
    let size = archive.seek(SeekFrom::End(0)).map_err(unreadable)?;
    archive.rewind().map_err(unreadable)?;
    let mut archive = BufReader::with_capacity(256 * 1024, archive);
    let head = archive.fill_buf().map_err(unreadable)?;
    let by_ratio = if is_own(head) {
        u64::MAX
    } else {
        limits.ratio_free_bytes.max(size.saturating_mul(limits.ratio))
    };
    let mut walk = Walk {
        shown: shown.to_string(),
        limits: Limits {
            bytes: limits.bytes.min(by_ratio),
            in_part: limits.in_part && limits.bytes <= by_ratio,
            ..*limits
        },
        entries: 0,
        bytes: 0,
        newest: 0,
        of_macos: 0,
        without_modes: 0,
        is_over: false,
        described: BTreeSet::new(),
        links: Vec::new(),
        each,
    };
    if is_zip(head) {
        archive.rewind().map_err(unreadable)?;
        zip::read(archive.into_inner(), &mut walk)?;
    } else {
        tape::read(archive, &mut walk)?;
    }
    walk.end()
}

/// Whether `head` begins a zip file.
pub fn is_zip(head: &[u8]) -> bool {
    ZIP.iter().any(|magic| head.starts_with(magic))
}

/// An entry as its format says it.
struct Raw<'a> {
    name: &'a [u8],
    kind: RawKind<'a>,
    mode: u32,
    modified: Option<u64>,
    size: u64,
    extended: &'a [(String, Vec<u8>)],
}

enum RawKind<'a> {
    Directory,
    File,
    Symlink(&'a [u8]),
    HardLink(&'a [u8]),
    /// What a recipe cannot have, in words.
    Refused(String),
}

struct Walk<'a, 'f> {
    shown: String,
    limits: Limits,
    entries: u64,
    bytes: u64,
    newest: u32,
    of_macos: u64,
    without_modes: u64,
    /// Whether there is more than is to be read.
    is_over: bool,
    /// The files that may be descriptions.
    described: BTreeSet<PathBuf>,
    /// The symbolic links that the recipe's own files may be.
    links: Vec<(PathBuf, PathBuf)>,
    each: &'a mut Each<'f>,
}

impl Walk<'_, '_> {
    /// Counts an entry, before anything of it is read.
    fn begin_entry(&mut self) -> Result<(), Failure> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(self.bomb(format_args!("more than {} entries", self.limits.entries)));
        }
        Ok(())
    }

    /// Checks an entry, and hands it over.
    fn entry(&mut self, raw: &Raw<'_>, content: &mut dyn Read) -> Result<(), Failure> {
        let path = clean(raw.name).map_err(|why| self.unsafe_entry(raw.name, why))?;
        let kind = match &raw.kind {
            RawKind::Directory => Kind::Directory,
            RawKind::File => Kind::File,
            RawKind::Symlink(target) => {
                let possible = !target.is_empty() && !target.contains(&0) && target.len() <= PATH_BYTES;
                if !possible {
                    return Err(self.unsafe_entry(raw.name, "is a symbolic link with an impossible target"));
                }
                Kind::Symlink(paths::of_bytes(target))
            }
            RawKind::HardLink(target) => {
                let target = clean(target).map_err(|_| self.unsafe_entry(raw.name, "links outside the recipe"))?;
                Kind::HardLink(target)
            }
            RawKind::Refused(why) => return Err(self.unsafe_entry(raw.name, why)),
        };
        let mut counted = Counted {
            content,
            left: self.limits.bytes.saturating_sub(self.bytes),
            read: 0,
            fault: None,
        };
        let mut head = Vec::new();
        let is_file = kind == Kind::File;
        let is_of_macos = match path.file_name().map(OsStr::as_encoded_bytes) {
            _ if path.starts_with("__MACOSX") => true,
            Some(b".DS_Store") => is_file,
            Some(name) if name.starts_with(b"._") && is_file => {
                // A fault is noted, and found below.
                let _ = (&mut counted).take(APPLE_DOUBLE.len() as u64).read_to_end(&mut head);
                head == APPLE_DOUBLE
            }
            _ => false,
        };
        let entry = Entry {
            name: raw.name,
            path,
            kind,
            mode: raw.mode & 0o7777,
            modified: raw.modified,
            size: raw.size,
            extended: raw.extended,
        };
        let handed = if is_of_macos {
            Ok(())
        } else {
            (self.each)(&entry, &mut (&head[..]).chain(&mut counted))
        };
        // What nobody wanted is read and counted, too.
        let _ = io::copy(&mut counted, &mut io::sink());
        let (read, fault) = (counted.read, counted.fault);
        self.bytes += read;
        match fault {
            Some(Fault::TooMuch) if self.limits.in_part => {
                self.is_over = true;
                return Ok(());
            }
            Some(Fault::TooMuch) => return Err(self.too_much(&entry)),
            Some(Fault::Damaged(error)) => return Err(self.damaged(error)),
            None => handed?,
        }
        if is_of_macos {
            self.of_macos += u64::from(entry.kind != Kind::Directory);
            return Ok(());
        }
        self.note(entry);
        Ok(())
    }

    /// Notes what counts at the end.
    fn note(&mut self, entry: Entry<'_>) {
        if entry.kind == Kind::File
            && let Some(seconds) = entry.modified
        {
            self.newest = self.newest.max(u32::try_from(seconds).unwrap_or(u32::MAX));
        }
        if entry.kind != Kind::Directory && description::may_be(&entry.path) {
            self.described.insert(entry.path.clone());
        }
        // Where the recipe is in the archive is known at the end: at most two directories below its top.
        if let Kind::Symlink(target) = entry.kind
            && entry.path.components().count() <= 3
        {
            self.links.push((entry.path, target));
        }
    }

    /// Counts bytes of headers.
    fn count(&mut self, bytes: u64) -> Result<(), Failure> {
        self.bytes += bytes;
        if self.bytes > self.limits.bytes {
            if self.limits.in_part {
                self.is_over = true;
                return Ok(());
            }
            return Err(self.bomb(format_args!("more than {} bytes, the maximum", self.limits.bytes)));
        }
        Ok(())
    }

    fn end(self) -> Result<Contents, Failure> {
        if self.entries == 0 {
            return Err(self.not_archive("it holds no files"));
        }
        let described = || self.described.iter().map(PathBuf::as_path);
        let (description, containerfile) = (
            description::find(described()),
            description::find_containerfile(described()),
        );
        // What lies beside the description is opened by Kiln and kiwi. Links deeper down are copied into the image, where
        // their texts mean something else; Kiln follows none of them.
        let top = description
            .as_ref()
            .map_or_else(|_| PathBuf::new(), |place| place.dir.clone());
        // Nothing but buildah opens what lies beside a Containerfile.
        let is_opened = description.is_ok() || containerfile.is_err();
        for (path, target) in self.links.iter().filter(|_| is_opened) {
            let above = path.parent().unwrap_or(Path::new(""));
            if top.starts_with(above) && check_target(path, target).is_err() {
                return Err(leads_outside(&self.shown, path, target));
            }
        }
        Ok(Contents {
            entries: self.entries,
            bytes: self.bytes,
            newest: self.newest,
            of_macos: self.of_macos,
            without_modes: self.without_modes,
            description,
            containerfile,
        })
    }

    fn unsafe_entry(&self, name: &[u8], why: impl Display) -> Failure {
        unsafe_entry(&self.shown, name, why)
    }

    fn bomb(&self, what: impl Display) -> Failure {
        Failure::new(Code::RecipeBomb, format!("{} unpacks to {what}", self.shown))
            .hint("leave large or generated files out of the recipe; packages and repositories do not belong in it")
    }

    fn too_much(&self, entry: &Entry<'_>) -> Failure {
        let name = String::from_utf8_lossy(entry.name);
        self.bomb(format_args!(
            "more than {} bytes, the maximum: the entry `{}` with {} bytes is more than is left",
            self.limits.bytes,
            name.escape_debug(),
            entry.size
        ))
    }

    fn damaged(&self, error: impl Display) -> Failure {
        let (archive, entries) = (&self.shown, self.entries);
        Failure::new(
            Code::RecipeDamaged,
            format!("{archive} is truncated after {entries} entries: {error}"),
        )
        .hint("create the archive again; `tar -tf` or `unzip -t` must be able to read it to the end")
    }

    fn not_archive(&self, why: impl Display) -> Failure {
        Failure::new(
            Code::RecipeNotArchive,
            format!("{} is not an archive of a recipe: {why}", self.shown),
        )
        .hint("a recipe is a tar archive, plain or compressed with gzip, bzip2, xz or zstd, or a zip file")
    }
}

/// The failure for an entry that a recipe must not have.
pub fn unsafe_entry(shown: impl Display, name: &[u8], why: impl Display) -> Failure {
    let name = String::from_utf8_lossy(name);
    Failure::new(
        Code::RecipeUnsafe,
        format!("{shown}: the entry `{}` {why}", name.escape_debug()),
    )
    .hint("create the archive from inside the recipe's directory: tar -czf recipe.tgz -C DIRECTORY .")
}

/// The failure for a link beside the description that leads out of the recipe.
pub fn leads_outside(shown: impl Display, path: &Path, target: &Path) -> Failure {
    Failure::new(
        Code::RecipeUnsafe,
        format!(
            "{shown}: `{}` is a symbolic link to `{}`, which is outside the recipe",
            path.display().to_string().escape_debug(),
            target.display().to_string().escape_debug()
        ),
    )
    .hint("a recipe holds all that it needs: put what the link leads to in its place; `cp -rL RECIPE COPY` makes such a copy")
}

/// A reader of an entry's content that knows how much may come. It keeps what went wrong, whatever its reader makes of that.
struct Counted<'a> {
    content: &'a mut dyn Read,
    left: u64,
    read: u64,
    fault: Option<Fault>,
}

enum Fault {
    TooMuch,
    Damaged(String),
}

impl Read for Counted<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.fault.is_some() {
            return Err(io::Error::other("the entry cannot be read"));
        }
        let read = match self.content.read(buf) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                self.fault = Some(Fault::Damaged(error.to_string()));
                return Err(error);
            }
        };
        self.read += read as u64;
        let Some(left) = self.left.checked_sub(read as u64) else {
            self.fault = Some(Fault::TooMuch);
            return Err(io::Error::other("the archive unpacks to too much"));
        };
        self.left = left;
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
