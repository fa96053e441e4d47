//! Reads tables, which consist of 8 KiB blocks, each compressed by itself after a two-byte size. Reads the image only.

use std::{
    collections::HashMap,
    io::{Read, Seek},
    rc::Rc,
};

use super::{
    codec::Codec,
    source::Source,
    unread::{Unread, damaged},
};

/// Size of a full block before compression.
pub(super) const BLOCK: usize = 8192;

/// The bit in a block's size that marks it as uncompressed.
const PLAIN: u16 = 1 << 15;

/// How many unpacked blocks are kept in memory.
const CACHED: usize = 1024;

/// A position in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// Offset in the image at which the block begins.
    pub(super) block: u64,
    /// Offset in the unpacked block.
    pub(super) offset: usize,
}

#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    next: u64,
}

/// Reads tables at any position.
#[derive(Debug)]
pub(super) struct Tables {
    codec: Codec,
    /// Where the last table ends.
    end: u64,
    cache: HashMap<u64, Rc<Block>>,
}

impl Tables {
    pub(super) fn new(codec: Codec, end: u64) -> Self {
        Self {
            codec,
            end,
            cache: HashMap::new(),
        }
    }

    /// Reads `size` bytes at `place` and advances it past them.
    pub(super) fn read(
        &mut self,
        source: &mut Source<impl Read + Seek>,
        place: &mut Place,
        mut size: usize,
    ) -> Result<Vec<u8>, Unread> {
        let mut bytes = Vec::new();
        while size > 0 {
            let block = self.block(source, place.block)?;
            let rest = block
                .bytes
                .get(place.offset..)
                .ok_or_else(|| damaged("a reference to a table leads nowhere"))?;
            let taken = &rest[..rest.len().min(size)];
            bytes.extend_from_slice(taken);
            size -= taken.len();
            place.offset += taken.len();
            if size > 0 {
                *place = Place {
                    block: block.next,
                    offset: 0,
                };
            }
        }
        Ok(bytes)
    }

    fn block(&mut self, source: &mut Source<impl Read + Seek>, at: u64) -> Result<Rc<Block>, Unread> {
        if let Some(block) = self.cache.get(&at) {
            return Ok(Rc::clone(block));
        }
        let outside = || damaged("a table leaves the image");
        let begin = at
            .checked_add(2)
            .filter(|begin| *begin <= self.end)
            .ok_or_else(outside)?;
        let header = source.bytes(at, 2)?;
        let header = u16::from_le_bytes([header[0], header[1]]);
        let size = usize::from(header & !PLAIN);
        let next = begin + size as u64;
        if size > BLOCK || next > self.end {
            return Err(outside());
        }
        let mut bytes = source.bytes(begin, size)?;
        if header & PLAIN == 0 {
            bytes = self.codec.unpack(&bytes, BLOCK)?;
        }
        if bytes.is_empty() {
            return Err(damaged("a block of a table is empty"));
        }
        if self.cache.len() >= CACHED {
            self.cache.clear();
        }
        let block = Rc::new(Block { bytes, next });
        self.cache.insert(at, Rc::clone(&block));
        Ok(block)
    }
}
