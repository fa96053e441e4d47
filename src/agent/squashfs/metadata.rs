//! Reads and writes tables, which consist of 8 KiB blocks, each compressed by itself after a two-byte size. Reads the
//! base image; what it writes stays in memory.

use std::{collections::HashMap, io, os::unix::fs::FileExt, rc::Rc};

use super::{
    codec::Codec,
    stop::{Stop, damaged},
};

/// Size of a full block before compression.
pub const BLOCK: usize = 8192;

/// The bit in a block's size that marks it as uncompressed.
const PLAIN: u16 = 1 << 15;

/// How many unpacked blocks are kept in memory.
const CACHED: usize = 4096;

/// A position in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Offset at which the block begins: in the file when reading, in the table when writing.
    pub block: u64,
    /// Offset in the unpacked block.
    pub offset: usize,
}

impl Place {
    /// The form in which tables refer to it.
    pub fn reference(self) -> u64 {
        self.block << 16 | self.offset as u64
    }
}

#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    next: u64,
}

/// Reads tables at any position.
#[derive(Debug)]
pub struct Reader<'a> {
    file: &'a std::fs::File,
    codec: Codec,
    /// Offset at which the last table ends.
    end: u64,
    cache: HashMap<u64, Rc<Block>>,
}

impl<'a> Reader<'a> {
    pub fn new(file: &'a std::fs::File, codec: Codec, end: u64) -> Self {
        Self {
            file,
            codec,
            end,
            cache: HashMap::new(),
        }
    }

    /// Reads `size` bytes at `place` and advances it past them.
    pub fn read(&mut self, place: &mut Place, mut size: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = Vec::new();
        while size > 0 {
            let block = self.block(place.block)?;
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

    fn block(&mut self, at: u64) -> Result<Rc<Block>, Stop> {
        if let Some(block) = self.cache.get(&at) {
            return Ok(Rc::clone(block));
        }
        let (packed, plain) = stored(self.file, at, self.end)?;
        let next = at + 2 + packed.len() as u64;
        let bytes = if plain {
            packed
        } else {
            self.codec.unpack(&packed, BLOCK).map_err(damaged)?
        };
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

/// A block as stored in the file, and whether it is uncompressed.
pub fn stored(file: &std::fs::File, at: u64, end: u64) -> Result<(Vec<u8>, bool), Stop> {
    let outside = || damaged("a table leaves the file");
    let begin = at.checked_add(2).filter(|begin| *begin <= end).ok_or_else(outside)?;
    let mut header = [0; 2];
    file.read_exact_at(&mut header, at)?;
    let header = u16::from_le_bytes(header);
    let size = usize::from(header & !PLAIN);
    if size > BLOCK || begin + size as u64 > end {
        return Err(outside());
    }
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, begin)?;
    Ok((bytes, header & PLAIN != 0))
}

/// Writes one table.
#[derive(Debug)]
pub struct Writer {
    codec: Codec,
    packed: Vec<u8>,
    pending: Vec<u8>,
    blocks: Vec<u64>,
}

impl Writer {
    pub fn new(codec: Codec) -> Self {
        Self {
            codec,
            packed: Vec::new(),
            pending: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// The position of the next byte.
    pub fn place(&self) -> Place {
        Place {
            block: self.packed.len() as u64,
            offset: self.pending.len(),
        }
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(bytes);
        while self.pending.len() >= BLOCK {
            let rest = self.pending.split_off(BLOCK);
            self.flush()?;
            self.pending = rest;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let packed = self.codec.pack(&self.pending)?;
        let (bytes, flag) = match &packed {
            Some(packed) => (packed, 0),
            None => (&self.pending, PLAIN),
        };
        // A block has at most BLOCK bytes, so this cannot fail.
        let size = u16::try_from(bytes.len()).unwrap_or(0);
        self.blocks.push(self.packed.len() as u64);
        self.packed.extend((size | flag).to_le_bytes());
        self.packed.extend_from_slice(bytes);
        Ok(())
    }

    /// The table, and the offset of each of its blocks.
    pub fn finish(mut self) -> io::Result<(Vec<u8>, Vec<u64>)> {
        if !self.pending.is_empty() {
            self.flush()?;
        }
        Ok((self.packed, self.blocks))
    }
}
