//! The bytes of an image, read at any place. Reads its source only.

use std::io::{ErrorKind, Read, Seek, SeekFrom};

use super::unread::{Unread, damaged};

/// Where the bytes of an image are.
#[derive(Debug)]
pub(super) struct Source<R>(pub(super) R);

impl<R: Read + Seek> Source<R> {
    /// How many there are.
    pub(super) fn length(&mut self) -> Result<u64, Unread> {
        Ok(self.0.seek(SeekFrom::End(0))?)
    }

    /// `size` bytes at an offset.
    pub(super) fn bytes(&mut self, at: u64, size: usize) -> Result<Vec<u8>, Unread> {
        let mut bytes = vec![0; size];
        self.0.seek(SeekFrom::Start(at))?;
        match self.0.read_exact(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(damaged("it is truncated")),
            read => Ok(read.map(|()| bytes)?),
        }
    }
}
