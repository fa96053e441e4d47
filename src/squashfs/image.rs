//! An image that is open: its superblock and its owners are known, all else is read when it is asked for. Reads the image
//! only.

use std::io::{Read, Seek};

use super::{
    codec::Codec,
    fields::Fields,
    metadata::{self, Place, Tables},
    source::Source,
    superblock::{self, Superblock},
    unread::{Unread, damaged},
};

/// The bit in the size of a data block or fragment that marks it as uncompressed.
const PLAIN: u32 = 1 << 24;

const FRAGMENT_ENTRY: usize = 16;

/// A squashfs.
#[derive(Debug)]
pub struct Image<R> {
    source: Source<R>,
    tables: Tables,
    codec: Codec,
    owners: Vec<u32>,
    pub(super) superblock: Superblock,
}

impl<R: Read + Seek> Image<R> {
    /// Opens the image in `source`.
    ///
    /// # Errors
    ///
    /// When it is no squashfs that Kiln reads, or the source fails.
    pub fn open(source: R) -> Result<Self, Unread> {
        let mut source = Source(source);
        let length = source.length()?;
        if length < superblock::SIZE as u64 {
            return Err(damaged("it is shorter than a superblock"));
        }
        let superblock = Superblock::parse(&source.bytes(0, superblock::SIZE)?, length)?;
        let codec = Codec::of(superblock.compressor)?;
        let mut image = Self {
            tables: Tables::new(codec, superblock.end),
            source,
            codec,
            owners: Vec::new(),
            superblock,
        };
        image.owners = image.read_owners()?;
        Ok(image)
    }

    fn read_owners(&mut self) -> Result<Vec<u32>, Unread> {
        let (mut left, mut owners) = (usize::from(self.superblock.ids) * 4, Vec::new());
        for index in 0.. {
            let here = left.min(metadata::BLOCK);
            if here == 0 {
                break;
            }
            let mut place = self.indexed(self.superblock.id_table, index)?;
            let bytes = self.table(&mut place, here)?;
            owners.extend(bytes.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)));
            left -= here;
        }
        Ok(owners)
    }

    /// The place of the block with this number of a table that is found by a list of its blocks.
    fn indexed(&mut self, list: u64, index: u64) -> Result<Place, Unread> {
        let at = index.checked_mul(8).and_then(|offset| list.checked_add(offset));
        let at = at.filter(|at| at.checked_add(8).is_some_and(|end| end <= self.superblock.end));
        let at = at.ok_or_else(|| damaged("the list of a table leaves the image"))?;
        let block = Fields(&self.source.bytes(at, 8)?).u64()?;
        Ok(Place { block, offset: 0 })
    }

    /// The user or group with this number in the table of owners.
    pub(super) fn owner(&self, index: u16) -> Result<u32, Unread> {
        let owner = self.owners.get(usize::from(index)).copied();
        owner.ok_or_else(|| damaged("a file has an owner that is not in the table"))
    }

    /// Bytes of a table. Advances `place` past them.
    pub(super) fn table(&mut self, place: &mut Place, size: usize) -> Result<Vec<u8>, Unread> {
        self.tables.read(&mut self.source, place, size)
    }

    /// The fragment with this number, unpacked.
    pub(super) fn fragment(&mut self, index: u32) -> Result<Vec<u8>, Unread> {
        if index >= self.superblock.fragments {
            return Err(damaged("the end of a file is in no fragment"));
        }
        let per_block = (metadata::BLOCK / FRAGMENT_ENTRY) as u64;
        let index = u64::from(index);
        let mut place = self.indexed(self.superblock.fragment_table, index / per_block)?;
        // Less than a block, so this fits.
        place.offset = usize::try_from(index % per_block).unwrap_or(0) * FRAGMENT_ENTRY;
        let entry = self.table(&mut place, FRAGMENT_ENTRY)?;
        let mut entry = Fields(&entry);
        let (start, size) = (entry.u64()?, entry.u32()?);
        self.block(start, size)
    }

    /// The data block at `start`, unpacked. `size` is its stored size with the mark for uncompressed ones.
    pub(super) fn block(&mut self, start: u64, size: u32) -> Result<Vec<u8>, Unread> {
        let stored = stored_size(size);
        if stored > self.superblock.block_size {
            return Err(damaged("a block is larger than a block can be"));
        }
        let end = start.saturating_add(u64::from(stored));
        if start < superblock::SIZE as u64 || end > self.superblock.inode_table {
            return Err(damaged("a block is not among the data"));
        }
        let bytes = self.source.bytes(start, stored as usize)?;
        if size & PLAIN != 0 {
            return Ok(bytes);
        }
        self.codec.unpack(&bytes, self.superblock.block_size as usize)
    }
}

/// The bytes that a block takes in the image, from its size with the mark.
pub(super) fn stored_size(size: u32) -> u32 {
    size & !PLAIN
}
