//! A part of a new file as a file of its own, with a size that does not change. Reads and writes that part only.

use std::{
    fs::File,
    io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
};

/// The most that is kept in memory: more than both tables of a FAT with 16 bits and its root directory.
const HEAD: u64 = 512 << 10;

/// A whole disk, or the part of it that is one partition. Nothing else may write its beginning. The file's own position is not
/// used: a FAT is written in thousands of small pieces, and each would have to set it first. Most of them are entries of
/// two bytes in the tables at the beginning, so that is written by `flush` only.
#[derive(Debug)]
pub(super) struct Partition<'d> {
    disk: &'d File,
    begin: u64,
    size: u64,
    at: u64,
    head: Vec<u8>,
}

impl<'d> Partition<'d> {
    pub(super) fn new(disk: &'d File, begin: u64, size: u64) -> Self {
        Self {
            disk,
            begin,
            size,
            at: 0,
            head: vec![0; usize::try_from(size.min(HEAD)).unwrap_or_default()],
        }
    }

    /// The part of the head from the position on; empty behind the head.
    fn head(&mut self) -> &mut [u8] {
        let at = usize::try_from(self.at).unwrap_or(usize::MAX).min(self.head.len());
        &mut self.head[at..]
    }

    /// How much of a buffer still lies in the partition.
    fn most(&self, length: usize) -> usize {
        let left = usize::try_from(self.size.saturating_sub(self.at)).unwrap_or(usize::MAX);
        length.min(left)
    }
}

impl Read for Partition<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let most = self.most(buffer.len());
        let count = match self.head() {
            [] => self.disk.read_at(&mut buffer[..most], self.begin + self.at)?,
            head => (&*head).read(&mut buffer[..most])?,
        };
        self.at += count as u64;
        Ok(count)
    }
}

impl Write for Partition<'_> {
    fn write(&mut self, buffer: &[u8]) -> Result<usize> {
        let most = self.most(buffer.len());
        let count = match self.head() {
            [] => self.disk.write_at(&buffer[..most], self.begin + self.at)?,
            mut head => head.write(&buffer[..most])?,
        };
        self.at += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> Result<()> {
        self.disk.write_all_at(&self.head, self.begin)
    }
}

impl Seek for Partition<'_> {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(offset) => self.size.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.at.checked_add_signed(offset),
        };
        self.at = at.ok_or_else(|| Error::from(ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_beside_a_partition() {
        let mut disk = tempfile::tempfile().unwrap();
        disk.write_all(&[b'.'; 10]).unwrap();
        let mut partition = Partition::new(&disk, 3, 4);
        partition.seek(SeekFrom::End(-2)).unwrap();
        assert_eq!(partition.write_all(b"abc").unwrap_err().kind(), ErrorKind::WriteZero);
        partition.seek(SeekFrom::Start(0)).unwrap();
        let mut read = String::new();
        partition.read_to_string(&mut read).unwrap();
        assert_eq!(read, "\0\0ab");
        partition.flush().unwrap();
        let mut all = String::new();
        disk.rewind().unwrap();
        disk.read_to_string(&mut all).unwrap();
        assert_eq!(all, "...\0\0ab...");
    }

    #[test]
    fn the_beginning_and_the_rest_are_one_file() {
        let disk = tempfile::tempfile().unwrap();
        disk.set_len(2 * HEAD).unwrap();
        let mut partition = Partition::new(&disk, 8, HEAD + 4);
        partition.seek(SeekFrom::Start(HEAD - 1)).unwrap();
        partition.write_all(b"abc").unwrap();
        partition.flush().unwrap();
        let mut written = [0; 5];
        disk.read_exact_at(&mut written, 8 + HEAD - 2).unwrap();
        assert_eq!(&written, b"\0abc\0");
        partition.seek(SeekFrom::Start(HEAD - 1)).unwrap();
        let mut read = String::new();
        partition.read_to_string(&mut read).unwrap();
        assert_eq!(read, "abc\0\0");
    }
}
