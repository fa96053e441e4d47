//! Walks the directories of an image and reads the inodes of its regular files. Reads the base image only, and bounds
//! every count, since the image may be hostile.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::{
    base::{Base, Content, File, NO_FRAGMENT, Paths, Tail},
    fields::Fields,
    metadata::{Place, Reader},
    stop::{Stop, damaged},
};
use kiln_records::protocol::SquashfsOptions;

/// The most directory entries that are read. A large image has a few hundred thousand.
const MAX_ENTRIES: usize = 4 << 20;

/// The most data blocks that are listed: 2 TiB at the usual block size.
const MAX_BLOCKS: u64 = 16 << 20;

/// The most bytes of all paths together.
const MAX_PATHS: usize = 512 << 20;

/// The most bytes of one directory's listing.
const MAX_LISTING: usize = 256 << 20;

/// The inode types that matter here.
const DIRECTORY: u16 = 1;
const FILE: u16 = 2;
const EXTENDED: u16 = 7;

enum Inode {
    Directory { inode: u32, listing: Place, size: usize },
    File(File),
}

impl Base {
    /// Reads the tables of the image at `path`. `options` is for new blocks in the image's own compressor.
    pub fn read(path: &Path, options: Option<&SquashfsOptions>) -> Result<Self, Stop> {
        let mut base = Self::open(path, options)?;
        (base.files, base.paths) = Walk::new(&base).run()?;
        Ok(base)
    }
}

/// The walk through all directories.
#[derive(Debug)]
struct Walk<'a> {
    base: &'a Base,
    reader: Reader<'a>,
    files: Vec<File>,
    paths: Paths,
    /// Files by the place of their inode.
    known: HashMap<Place, usize>,
    /// Inode numbers seen so far.
    numbers: HashSet<u32>,
    entries: usize,
    path_bytes: usize,
    blocks: u64,
}

impl<'a> Walk<'a> {
    /// Begins at the root directory of an image whose fragments are known.
    fn new(base: &'a Base) -> Self {
        Self {
            base,
            reader: Reader::new(base.file.file(), base.codec, base.superblock.end),
            files: Vec::new(),
            paths: Vec::new(),
            known: HashMap::new(),
            numbers: HashSet::new(),
            entries: 0,
            path_bytes: 0,
            blocks: 0,
        }
    }

    /// Reads all regular files.
    fn run(mut self) -> Result<(Vec<File>, Paths), Stop> {
        let superblock = &self.base.superblock;
        let root = self.inode_place(
            superblock.root >> 16,
            usize::from(u16::try_from(superblock.root & 0xffff).unwrap_or(0)),
        )?;
        let mut waiting = vec![(PathBuf::new(), root)];
        while let Some((path, place)) = waiting.pop() {
            let Inode::Directory { inode, listing, size } = self.inode(place)? else {
                return Err(damaged("a directory is a file"));
            };
            self.number(inode)?;
            self.list(&path, listing, size, &mut waiting)?;
        }
        Ok((self.files, self.paths))
    }

    /// Checks that an inode number is new: numbers are unique, and directories have no hard links.
    fn number(&mut self, inode: u32) -> Result<(), Stop> {
        if self.numbers.insert(inode) {
            Ok(())
        } else {
            Err(damaged(format!("the inode number {inode} is given twice")))
        }
    }

    fn inode_place(&self, block: u64, offset: usize) -> Result<Place, Stop> {
        let superblock = &self.base.superblock;
        let block = superblock.inode_table.saturating_add(block);
        if block >= superblock.directory_table {
            return Err(damaged("an inode is not among the inodes"));
        }
        Ok(Place { block, offset })
    }

    fn inode(&mut self, mut place: Place) -> Result<Inode, Stop> {
        let head = self.reader.read(&mut place, 16)?;
        let mut head = Fields(&head);
        let (kind, _mode, _uid, _gid) = (head.u16()?, head.u16()?, head.u16()?, head.u16()?);
        let (mtime, inode) = (head.u32()?, head.u32()?);
        if kind == DIRECTORY || kind == DIRECTORY + EXTENDED {
            let rest = self.reader.read(&mut place, if kind == DIRECTORY { 16 } else { 24 })?;
            let mut rest = Fields(&rest);
            let (block, size, offset);
            if kind == DIRECTORY {
                (block, _) = (rest.u32()?, rest.u32()?);
                (size, offset) = (u32::from(rest.u16()?), rest.u16()?);
            } else {
                _ = rest.u32()?;
                (size, block, _) = (rest.u32()?, rest.u32()?, rest.u32()?);
                (_, offset) = (rest.u16()?, rest.u16()?);
            }
            let listing = Place {
                block: self.base.superblock.directory_table.saturating_add(u64::from(block)),
                offset: usize::from(offset),
            };
            // The size includes `.` and `..`, which are not in the listing.
            let size = (size as usize).saturating_sub(3);
            return Ok(Inode::Directory { inode, listing, size });
        }
        if kind != FILE && kind != FILE + EXTENDED {
            return Err(damaged("an inode is of another type than its entry"));
        }
        let rest = self.reader.read(&mut place, if kind == FILE { 16 } else { 40 })?;
        let mut rest = Fields(&rest);
        let (start, size, fragment, offset);
        if kind == FILE {
            start = u64::from(rest.u32()?);
            (fragment, offset) = (rest.u32()?, rest.u32()?);
            size = u64::from(rest.u32()?);
        } else {
            (start, size) = (rest.u64()?, rest.u64()?);
            (_, _) = (rest.u64()?, rest.u32()?);
            (fragment, offset) = (rest.u32()?, rest.u32()?);
        }
        let content = self.content(place, start, size, fragment, offset)?;
        Ok(Inode::File(File { inode, mtime, content }))
    }

    fn content(
        &mut self,
        mut place: Place,
        start: u64,
        size: u64,
        fragment: u32,
        offset: u32,
    ) -> Result<Content, Stop> {
        let block_size = self.base.superblock.block_size;
        // Less than a block, so this cannot fail.
        let rest = u32::try_from(size % u64::from(block_size)).unwrap_or(0);
        let mut count = size / u64::from(block_size);
        let mut tail = None;
        if fragment == NO_FRAGMENT {
            count += u64::from(rest > 0);
        } else if rest > 0 {
            let fits = offset.checked_add(rest).is_some_and(|end| end <= block_size);
            if !fits || fragment as usize >= self.base.fragments.len() {
                return Err(damaged("the end of a file is in no fragment"));
            }
            tail = Some(Tail {
                fragment,
                offset,
                size: rest,
            });
        }
        self.blocks = self.blocks.saturating_add(count);
        if self.blocks > MAX_BLOCKS {
            return Err(damaged("it has too many blocks"));
        }
        let list = usize::try_from(count * 4).map_err(damaged)?;
        let list = self.reader.read(&mut place, list)?;
        let (blocks, _) = list.as_chunks();
        let blocks: Vec<u32> = blocks.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        self.base.check_stored(start, &blocks)?;
        Ok(Content {
            size,
            start,
            blocks,
            tail,
        })
    }

    fn list(
        &mut self,
        path: &Path,
        mut place: Place,
        size: usize,
        waiting: &mut Vec<(PathBuf, Place)>,
    ) -> Result<(), Stop> {
        if size > MAX_LISTING {
            return Err(damaged("a directory is too large"));
        }
        let listing = self.reader.read(&mut place, size)?;
        let mut fields = Fields(&listing);
        let mut last: &[u8] = &[];
        while !fields.0.is_empty() {
            let (count, block, _number) = (fields.u32()?, fields.u32()?, fields.u32()?);
            for _ in 0..=count {
                self.entries += 1;
                if self.entries > MAX_ENTRIES {
                    return Err(damaged("it has too many files"));
                }
                let (offset, _delta, kind, length) = (fields.u16()?, fields.i16()?, fields.u16()?, fields.u16()?);
                let name = fields.bytes(usize::from(length) + 1)?;
                // Strictly ascending names are also distinct.
                if name <= last || name == b"." || name == b".." || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
                    return Err(damaged("a directory has invalid names"));
                }
                last = name;
                if kind != DIRECTORY && kind != FILE {
                    continue;
                }
                let path = path.join(OsStr::from_bytes(name));
                self.path_bytes += path.as_os_str().len();
                if self.path_bytes > MAX_PATHS {
                    return Err(damaged("its paths are too long"));
                }
                let inode = self.inode_place(u64::from(block), usize::from(offset))?;
                if kind == DIRECTORY {
                    waiting.push((path, inode));
                } else {
                    self.file(path, inode)?;
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, path: PathBuf, place: Place) -> Result<(), Stop> {
        let index = if let Some(index) = self.known.get(&place) {
            *index
        } else {
            let Inode::File(file) = self.inode(place)? else {
                return Err(damaged("a file is a directory"));
            };
            self.number(file.inode)?;
            let index = self.files.len();
            self.files.push(file);
            self.known.insert(place, index);
            index
        };
        self.paths.push((path, index));
        Ok(())
    }
}
