//! A part of a file as a file of its own, with a size that does not change. Reads and writes that part only.

use std::{
    fs::File,
    io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
};

/// The part of a disk that is one partition. The file's own position is not used: a FAT is written in thousands of
/// small pieces, and each would have to set it first.
#[derive(Debug)]
pub(super) struct Partition<'d> {
    disk: &'d File,
    begin: u64,
    size: u64,
    at: u64,
}

impl<'d> Partition<'d> {
    pub(super) fn new(disk: &'d File, begin: u64, size: u64) -> Self {
        Self {
            disk,
            begin,
            size,
            at: 0,
        }
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
        let count = self.disk.read_at(&mut buffer[..most], self.begin + self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Write for Partition<'_> {
    fn write(&mut self, buffer: &[u8]) -> Result<usize> {
        let most = self.most(buffer.len());
        let count = self.disk.write_at(&buffer[..most], self.begin + self.at)?;
        self.at += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> Result<()> {
        self.disk.flush()
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
        assert_eq!(read, "..ab");
        let mut all = String::new();
        disk.rewind().unwrap();
        disk.read_to_string(&mut all).unwrap();
        assert_eq!(all, ".....ab...");
    }
}
