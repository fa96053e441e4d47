//! Reads the numbers in tables, all little-endian. Pure: no I/O.

use super::unread::{Unread, damaged};

/// Reads fields in sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `size` bytes.
    pub(super) fn bytes(&mut self, size: usize) -> Result<&'a [u8], Unread> {
        let (head, rest) = self
            .0
            .split_at_checked(size)
            .ok_or_else(|| damaged("a table is truncated"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unread> {
        let (head, rest) = self
            .0
            .split_first_chunk()
            .ok_or_else(|| damaged("a table is truncated"))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Unread> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Unread> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Unread> {
        self.array().map(u64::from_le_bytes)
    }
}
