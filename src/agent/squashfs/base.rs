//! Reads the tables of a base image: its files, their blocks and their paths. Reads one file and writes nothing. The
//! image may be hostile: anything irregular is refused, and work and memory are bounded.

use std::{
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::{
    codec::Codec,
    fields::Fields,
    metadata::{self, Place, Reader},
    stop::{Stop, damaged},
    superblock::{self, COMPRESSOR_OPTIONS, Superblock},
};
use kiln_records::protocol::SquashfsOptions;

/// The largest number of fragments.
const MAX_FRAGMENTS: u32 = 4 << 20;

/// The bit in the size of a data block or fragment that marks it as uncompressed.
pub const PLAIN: u32 = 1 << 24;

/// The fragment number that means "no fragment".
pub const NO_FRAGMENT: u32 = u32::MAX;

const FRAGMENT_ENTRY: usize = 16;

/// The content of a regular file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// Size in bytes, unpacked.
    pub size: u64,
    /// Offset of the first block in the image; the others follow without gaps.
    pub start: u64,
    /// The stored size of each block, with [`PLAIN`]; 0 is a block of zeros that is not stored.
    pub blocks: Vec<u32>,
    /// The end of the content, if it shares a block with other files.
    pub tail: Option<Tail>,
}

/// The end of a file, in a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    pub fragment: u32,
    /// Offset in the unpacked fragment.
    pub offset: u32,
    pub size: u32,
}

impl Content {
    /// Bytes that its blocks take in the image.
    pub fn stored(&self) -> u64 {
        self.blocks.iter().map(|size| Self::stored_size(*size)).sum()
    }

    /// Bytes that a block takes in the image, from its size with [`PLAIN`].
    pub fn stored_size(size: u32) -> u64 {
        u64::from(size & !PLAIN)
    }

    /// Bytes of zero blocks that are not stored. A file of nothing else reports one byte fewer: the kernel counts the
    /// rest as its space on disk.
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
    /// Stored size, with [`PLAIN`].
    pub size: u32,
}

/// Paths of regular files, each with the index of its file.
pub type Paths = Vec<(PathBuf, usize)>;

/// An image whose tables have been read.
#[derive(Debug)]
pub struct Base {
    pub file: fs_err::File,
    pub superblock: Superblock,
    /// The superblock in hexadecimal and the length of the file, which together identify the image.
    pub identity: String,
    pub codec: Codec,
    /// Start of the data, after the superblock and the compressor's options.
    pub data: u64,
    pub files: Vec<File>,
    pub paths: Paths,
    pub fragments: Vec<Fragment>,
}

impl Base {
    /// Reads the tables of the image at `path`. `options` applies to new blocks made with the image's own compressor.
    pub(super) fn open(path: &Path, options: Option<&SquashfsOptions>) -> Result<Self, Stop> {
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
        Ok(base)
    }

    /// Bytes of the region that holds the data blocks.
    pub fn data_size(&self) -> u64 {
        self.superblock.inode_table - self.data
    }

    /// One block or fragment, unpacked.
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

    /// Checks that blocks of these sizes fit between `start` and the end of the data.
    pub fn check_stored(&self, start: u64, sizes: &[u32]) -> Result<(), Stop> {
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
