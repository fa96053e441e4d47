//! Finds programs, libraries and kernel modules that no package owns. Reads the root.

use std::{
    collections::{HashMap, HashSet},
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use kiln_records::sbom::{LooseFile, MOST_LOOSE};
use sha1::{Digest as _, Sha1};
use sha2::Sha256;

use super::short;
use crate::twins::Root;

/// The first bytes of an ELF file.
const ELF: [u8; 4] = *b"\x7fELF";

/// Kernel modules may be compressed.
const MODULES: [&str; 3] = [".ko.xz", ".ko.zst", ".ko.gz"];

/// The most files that packages may own, and the most that a root may have. Ten times as many as a full desktop has.
const MOST_FILES: usize = 10_000_000;

/// The deepest directory that is looked at.
const DEEPEST: usize = 64;

/// The bits of a mode by which a program runs with the rights of its owner or group.
const SETUID: u32 = 0o6000;

/// The paths that packages own, without the leading `/`, as they are once links between directories are followed: a
/// package may own `/bin/sh` where `/bin` is a link to `/usr/bin`.
#[derive(Debug, Default)]
pub(super) struct Owned {
    paths: HashSet<PathBuf>,
    /// The real directory of each that was seen.
    directories: HashMap<PathBuf, PathBuf>,
}

impl Owned {
    /// Adds the paths that a package owns, each beginning with `/`.
    pub(super) fn add<'a>(&mut self, root: &Root, paths: impl Iterator<Item = &'a str>) -> io::Result<()> {
        for path in paths {
            let path = Path::new(path.trim_start_matches('/'));
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                continue;
            };
            if !self.directories.contains_key(parent) {
                let real = root.real(parent).unwrap_or_else(|| parent.to_owned());
                self.directories.insert(parent.to_owned(), real);
            }
            self.paths.insert(self.directories[parent].join(name));
            if self.paths.len() > MOST_FILES {
                return Err(io::Error::other(format!(
                    "its packages own more than {MOST_FILES} files"
                )));
            }
        }
        Ok(())
    }

    /// Whether a package owns this path.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.paths.contains(path)
    }
}

/// What no package owns.
#[derive(Debug, Default)]
pub(super) struct Loose {
    /// Programs, libraries and kernel modules.
    pub(super) files: Vec<LooseFile>,
    /// The number of those beyond [`MOST_LOOSE`].
    pub(super) more: u64,
    /// Programs that run with the rights of their owner or group, by their paths in the root.
    pub(super) setuid: Vec<PathBuf>,
    /// Directories that are too deep to be looked at.
    pub(super) unseen: u64,
}

/// What is in the root at `path` and not owned.
pub(super) fn find(path: &Path, root: &Root, owned: &Owned) -> io::Result<Loose> {
    let mut loose = Loose::default();
    let mut seen = 0;
    let mut directories = vec![(PathBuf::new(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        let entries = match fs_err::read_dir(path.join(&directory)) {
            Err(error) if error.kind() == io::ErrorKind::InvalidFilename => {
                loose.unseen += 1;
                continue;
            }
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let (kind, place) = (entry.file_type()?, directory.join(entry.file_name()));
            seen += 1;
            if seen > MOST_FILES {
                return Err(io::Error::other("it has too many files"));
            }
            if kind.is_dir() && depth == DEEPEST {
                loose.unseen += 1;
            } else if kind.is_dir() {
                directories.push((place, depth + 1));
            } else if kind.is_file() && !owned.has(&place) {
                if entry.metadata()?.mode() & SETUID != 0 {
                    loose.setuid.push(place.clone());
                }
                let has_room = loose.files.len() < MOST_LOOSE;
                match look(root, &place, has_room)? {
                    Found::Program(file) => loose.files.push(file),
                    Found::Unlisted => loose.more += 1,
                    Found::Other => {}
                }
            }
        }
    }
    loose.files.sort_by(|one: &LooseFile, other| one.path.cmp(&other.path));
    loose.setuid.sort();
    Ok(loose)
}

/// What a file is.
enum Found {
    /// A program, with its digests.
    Program(LooseFile),
    /// A program for which there is no room in the list.
    Unlisted,
    /// None.
    Other,
}

fn look(root: &Root, path: &Path, has_room: bool) -> io::Result<Found> {
    let Some((mut file, _)) = root.file(path)? else {
        return Ok(Found::Other);
    };
    let is_module = MODULES
        .iter()
        .any(|end| path.as_os_str().as_bytes().ends_with(end.as_bytes()));
    let mut block = Vec::new();
    file.by_ref().take(ELF.len() as u64).read_to_end(&mut block)?;
    if block != ELF && !is_module {
        return Ok(Found::Other);
    }
    if !has_room {
        return Ok(Found::Unlisted);
    }
    let (mut sha1, mut sha256) = (Sha1::new_with_prefix(&block), Sha256::new_with_prefix(&block));
    block.resize(1 << 16, 0);
    loop {
        let length = file.read(&mut block)?;
        if length == 0 {
            break;
        }
        sha1.update(&block[..length]);
        sha256.update(&block[..length]);
    }
    Ok(Found::Program(LooseFile {
        path: short(&format!("/{}", path.display())),
        sha1: hex::encode(sha1.finalize()),
        sha256: hex::encode(sha256.finalize()),
    }))
}
