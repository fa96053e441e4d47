//! Reads what an image has, and where. The image may have been made by anybody: whatever is odd is refused, and work
//! and memory are bounded.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsStr,
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::{Path, PathBuf},
};

use super::{
    codec::Codec,
    fields::Fields,
    metadata::{self, Place, Reader},
    stop::{Stop, damaged},
    superblock::{self, COMPRESSOR_OPTIONS, Superblock},
};
use crate::records::protocol::SquashfsOptions;

/// Most entries of directories that are read. A large image has a few hundred thousand.
const MAX_ENTRIES: usize = 4 << 20;

/// Most blocks of data that are read about: 2 TiB, for the usual size of a block.
const MAX_BLOCKS: u64 = 16 << 20;

/// Most fragments.
const MAX_FRAGMENTS: u32 = 4 << 20;

/// Most bytes of all paths together.
const MAX_PATHS: usize = 512 << 20;

/// Most bytes of one directory's listing.
const MAX_LISTING: usize = 256 << 20;

/// The bit in the size of a block of data, or of a fragment, that says it is not compressed.
pub const PLAIN: u32 = 1 << 24;

/// The number of a fragment that says there is none.
pub const NO_FRAGMENT: u32 = u32::MAX;

const FRAGMENT_ENTRY: usize = 16;

/// The types of inodes that matter here.
const DIRECTORY: u16 = 1;
const FILE: u16 = 2;
const EXTENDED: u16 = 7;

/// A regular file's content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// Bytes, unpacked.
    pub size: u64,
    /// Where its first block is in the image; the others follow at once.
    pub start: u64,
    /// The size of each block in the image, with [`PLAIN`]; 0 is a block of zeros that is not there.
    pub blocks: Vec<u32>,
    /// Where the rest of it is, if that shares a block with others.
    pub tail: Option<Tail>,
}

/// The end of a file, in a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    pub fragment: u32,
    /// Where in the unpacked fragment.
    pub offset: u32,
    pub size: u32,
}

impl Content {
    /// Bytes of its blocks in the image.
    pub fn stored(&self) -> u64 {
        self.blocks.iter().map(|size| Self::stored_size(*size)).sum()
    }

    /// Bytes in the image of a block whose size is given with [`PLAIN`].
    pub fn stored_size(size: u32) -> u64 {
        u64::from(size & !PLAIN)
    }

    /// Bytes of blocks of zeros that are not there. A file that has nothing else is said to have a byte that is: the
    /// kernel counts the rest as its space on disk.
    pub fn holes(&self, block_size: u64) -> u64 {
        let holes = (0..).zip(&self.blocks).filter(|(_, stored)| **stored == 0);
        let bytes: u64 = holes
            .map(|(index, _)| block_size.min(self.size - index * block_size))
            .sum();
        bytes.min(self.size.saturating_sub(1))
    }
}

/// A regular file.
#[derive(Debug)]
pub struct File {
    pub inode: u32,
    /// Seconds since 1970.
    pub mtime: u32,
    pub content: Content,
}

/// A block that holds the ends of several files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    pub start: u64,
    /// With [`PLAIN`].
    pub size: u32,
}

/// Paths of regular files, and which file each of them is.
pub type Paths = Vec<(PathBuf, usize)>;

/// An image, read.
#[derive(Debug)]
pub struct Base {
    pub file: fs_err::File,
    pub superblock: Superblock,
    /// The superblock as it is in the file, in hexadecimal, and the file's length: which image this is.
    pub identity: String,
    pub codec: Codec,
    /// Where the data begins: behind the superblock and the compressor's options.
    pub data: u64,
    pub files: Vec<File>,
    pub paths: Paths,
    pub fragments: Vec<Fragment>,
}

impl Base {
    /// Reads the tables of the image at `path`. `options` is for new blocks in the image's own compressor.
    pub fn read(path: &Path, options: Option<&SquashfsOptions>) -> Result<Self, Stop> {
        let file = fs_err::File::open(path)?;
        let length = file.metadata()?.len();
        let mut head = [0; superblock::SIZE];
        if length < head.len() as u64 {
            return Err(damaged("it is shorter than a superblock"));
        }
        file.file().read_exact_at(&mut head, 0)?;
        let superblock = Superblock::parse(&head, length)?;
        let first = superblock::SIZE as u64;
        let settings = if superblock.flags & COMPRESSOR_OPTIONS == 0 {
            None
        } else {
            match metadata::stored(file.file(), first, superblock.inode_table)? {
                (settings, true) => Some(settings),
                (_, false) => return Err(damaged("its compressor's options are compressed")),
            }
        };
        let codec = Codec::of(&superblock, settings.as_deref(), options)?;
        let data = first + settings.map_or(0, |settings| 2 + settings.len() as u64);
        let mut base = Self {
            identity: format!("{length} {}", hex::encode(head)),
            codec,
            data,
            files: Vec::new(),
            paths: Vec::new(),
            fragments: Vec::new(),
            superblock,
            file,
        };
        base.fragments = base.read_fragments()?;
        let (files, paths) = Walk::new(&base).run()?;
        base.files = files;
        base.paths = paths;
        Ok(base)
    }

    /// The bytes in which the blocks of data lie.
    pub fn data_size(&self) -> u64 {
        self.superblock.inode_table - self.data
    }

    /// One block, or fragment, unpacked.
    pub fn block(&self, start: u64, size: u32) -> Result<Vec<u8>, Stop> {
        let limit = self.superblock.block_size as usize;
        let mut stored = vec![0; (size & !PLAIN) as usize];
        self.file.file().read_exact_at(&mut stored, start)?;
        if size & PLAIN != 0 {
            return Ok(stored);
        }
        self.codec.unpack(&stored, limit).map_err(damaged)
    }

    fn read_fragments(&self) -> Result<Vec<Fragment>, Stop> {
        let (count, end) = (self.superblock.fragments, self.superblock.end);
        if count > MAX_FRAGMENTS {
            return Err(damaged(format!("{count} fragments")));
        }
        let per_block = metadata::BLOCK / FRAGMENT_ENTRY;
        let mut reader = Reader::new(self.file.file(), self.codec, end);
        let (mut left, mut fragments) = (count as usize, Vec::new());
        let mut index = self.superblock.fragment_table;
        while left > 0 {
            let next = index.checked_add(8).filter(|next| *next <= end);
            let next = next.ok_or_else(|| damaged("the table of fragments leaves the file"))?;
            let mut block = [0; 8];
            self.file.file().read_exact_at(&mut block, index)?;
            let mut place = Place {
                block: u64::from_le_bytes(block),
                offset: 0,
            };
            let here = left.min(per_block);
            let bytes = reader.read(&mut place, here * FRAGMENT_ENTRY)?;
            let mut fields = Fields(&bytes);
            for _ in 0..here {
                let (start, size, _unused) = (fields.u64()?, fields.u32()?, fields.u32()?);
                self.check_stored(start, &[size])?;
                fragments.push(Fragment { start, size });
            }
            left -= here;
            index = next;
        }
        Ok(fragments)
    }

    /// Checks that blocks of these sizes can be where they are said to be.
    fn check_stored(&self, start: u64, sizes: &[u32]) -> Result<(), Stop> {
        let mut end = start;
        for size in sizes {
            let stored = size & !PLAIN;
            if stored > self.superblock.block_size {
                return Err(damaged("a block is larger than a block can be"));
            }
            end = end.saturating_add(u64::from(stored));
        }
        if end > start && (start < self.data || end > self.superblock.inode_table) {
            return Err(damaged("a block is not among the data"));
        }
        Ok(())
    }
}

enum Inode {
    Directory { inode: u32, listing: Place, size: usize },
    File(File),
}

/// The walk through all directories.
struct Walk<'a> {
    base: &'a Base,
    reader: Reader<'a>,
    files: Vec<File>,
    paths: Paths,
    /// Files by the place of their inode.
    known: HashMap<Place, usize>,
    /// Numbers of inodes.
    numbers: HashSet<u32>,
    entries: usize,
    path_bytes: usize,
    blocks: u64,
}

impl<'a> Walk<'a> {
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

    /// Every inode has a number of its own, and directories have no hard links.
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
            // The size counts `.` and `..`, which are not in the listing.
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
        // Less than a block.
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
                // Sorted names are also different names.
                if name <= last || name == b"." || name == b".." || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
                    return Err(damaged("a directory has names that cannot be"));
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
