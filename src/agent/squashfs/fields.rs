//! Reads and writes the numbers in tables, all little-endian. Pure: no I/O.

use super::stop::{Stop, damaged};

/// Reads fields in sequence.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `size` bytes.
    pub fn bytes(&mut self, size: usize) -> Result<&'a [u8], Stop> {
        let (head, rest) = self
            .0
            .split_at_checked(size)
            .ok_or_else(|| damaged("a table is truncated"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let (head, rest) = self
            .0
            .split_first_chunk()
            .ok_or_else(|| damaged("a table is truncated"))?;
        self.0 = rest;
        Ok(*head)
    }

    pub fn u16(&mut self) -> Result<u16, Stop> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn i16(&mut self) -> Result<i16, Stop> {
        self.array().map(i16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Stop> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Stop> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Writes fields in sequence.
pub trait Put {
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
}

impl Put for Vec<u8> {
    fn put_u16(&mut self, value: u16) {
        self.extend(value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend(value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend(value.to_le_bytes());
    }
}
