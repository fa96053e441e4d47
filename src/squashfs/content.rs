//! The content of a regular file, block by block. Reads the image only.

use std::{
    collections::VecDeque,
    io::{Read, Seek},
};

use super::{
    image::{Image, stored_size},
    inode::Content,
    unread::{Unread, damaged},
};

/// How many sizes of blocks are read at a time: a file may have any number of them.
const SIZES: u64 = 1024;

/// The content of a file that is being read.
#[derive(Debug)]
pub struct Pieces<'i, R> {
    image: &'i mut Image<R>,
    content: Content,
    /// Bytes that came.
    done: u64,
    /// Sizes of the next blocks.
    sizes: VecDeque<u32>,
}

impl<R: Read + Seek> Image<R> {
    /// The content of a file.
    pub fn pieces(&mut self, content: Content) -> Pieces<'_, R> {
        Pieces {
            image: self,
            content,
            done: 0,
            sizes: VecDeque::new(),
        }
    }
}

impl<R: Read + Seek> Pieces<'_, R> {
    /// The next bytes; `None` after the last ones, when all have come.
    ///
    /// # Errors
    ///
    /// When the image cannot be read.
    pub fn next_piece(&mut self) -> Result<Option<Vec<u8>>, Unread> {
        let left = self.content.size - self.done;
        let piece = if left == 0 {
            return Ok(None);
        } else if self.content.blocks > 0 {
            self.block(left)?
        } else {
            self.tail(left)?
        };
        self.done += piece.len() as u64;
        Ok(Some(piece))
    }

    fn block(&mut self, left: u64) -> Result<Vec<u8>, Unread> {
        let expected = left.min(u64::from(self.image.superblock.block_size));
        let Some(size) = self.next_size()? else {
            return Err(damaged("a file has fewer blocks than its size needs"));
        };
        self.content.blocks -= 1;
        if size == 0 {
            // Not stored: a hole. At most a block, so this fits.
            return Ok(vec![0; usize::try_from(expected).unwrap_or(0)]);
        }
        let block = self.image.block(self.content.start, size)?;
        if block.len() as u64 != expected {
            return Err(damaged("a block of a file has another size than it should"));
        }
        self.content.start += u64::from(stored_size(size));
        Ok(block)
    }

    fn next_size(&mut self) -> Result<Option<u32>, Unread> {
        if self.sizes.is_empty() {
            // At most 4 KiB, so this fits.
            let bytes = usize::try_from(self.content.blocks.min(SIZES) * 4).unwrap_or(0);
            let sizes = self.image.table(&mut self.content.sizes, bytes)?;
            self.sizes
                .extend(sizes.as_chunks().0.iter().map(|size| u32::from_le_bytes(*size)));
        }
        Ok(self.sizes.pop_front())
    }

    fn tail(&mut self, left: u64) -> Result<Vec<u8>, Unread> {
        let outside = || damaged("the end of a file is not in its fragment");
        let (fragment, offset) = self.content.tail.ok_or_else(outside)?;
        let fragment = self.image.fragment(fragment)?;
        let begin = offset as usize;
        let end = usize::try_from(left).ok().and_then(|left| begin.checked_add(left));
        let tail = end.and_then(|end| fragment.get(begin..end)).ok_or_else(outside)?;
        Ok(tail.to_vec())
    }
}
