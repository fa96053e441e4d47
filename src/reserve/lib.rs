//! Keeps blocks of the disk for an SQLite database's write-ahead log, so that records can be removed when the disk is
//! full. Touches that log only.
//!
//! SQLite writes every change to the log first, and a removal is a change too. The blocks are allocated behind the end
//! of the log, where no other file can take them. Whatever may grow the database asks for [room](Reserve::room) before
//! it begins, so that the blocks stay for what removes. On a file system that cannot allocate blocks in advance, or
//! that never writes to a block twice (btrfs, ZFS), removing needs free space as everything else does.

use std::{
    ffi::OsString,
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{FallocateFlags, fallocate},
    sys::statvfs::fstatvfs,
};

/// The bytes kept behind the end of the log. A removal of one record writes some ten pages of 4 KiB.
const RESERVE: u64 = 16 << 20;

/// The smallest free space, in bytes, in which the database may grow.
const ROOM: u64 = 4 << 20;

/// Bytes in one of the blocks that `stat` counts, on every file system.
const STAT_BLOCK: u64 = 512;

/// The blocks kept for one database.
#[derive(Debug, Clone)]
pub struct Reserve {
    log: PathBuf,
}

impl Reserve {
    /// For the database in this file, which is open and in WAL mode: otherwise it has no log.
    pub fn of(database: &Path) -> Self {
        let mut log = OsString::from(database);
        log.push("-wal");
        Self { log: log.into() }
    }

    /// Whether the database may grow. Takes blocks for the reserve first, where it misses some.
    ///
    /// # Errors
    ///
    /// The kind is [`StorageFull`](io::ErrorKind::StorageFull) when the rest of the disk is kept for removals. Any other
    /// error says that the log cannot be looked at.
    pub fn room(&self) -> io::Result<()> {
        // SQLite's locks are on other files: closing this one releases none of them.
        let log = fs_err::OpenOptions::new().write(true).open(&self.log)?;
        let about = log.metadata()?;
        let kept = (about.blocks() * STAT_BLOCK).saturating_sub(about.len());
        // The log grows into the reserve, which need not be made up for after every change.
        let taken = kept >= RESERVE / 2 || keep(&log, about.len() + RESERVE)?;
        let disk = fstatvfs(log.as_fd())?;
        if taken && disk.blocks_available() * disk.fragment_size() >= ROOM {
            Ok(())
        } else {
            Err(io::ErrorKind::StorageFull.into())
        }
    }
}

/// Allocates the file's blocks up to `bytes`, without making it longer. Returns whether the disk had them, or the file
/// system does not know how.
fn keep(log: &fs_err::File, bytes: u64) -> io::Result<bool> {
    let bytes = i64::try_from(bytes).map_err(io::Error::other)?;
    match fallocate(log.as_fd(), FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, bytes) {
        Ok(()) | Err(nix::Error::EOPNOTSUPP | nix::Error::ENOSYS) => Ok(true),
        Err(nix::Error::ENOSPC | nix::Error::EDQUOT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_gets_blocks_and_no_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("x.sqlite");
        let reserve = Reserve::of(&database);
        assert_eq!(reserve.room().unwrap_err().kind(), io::ErrorKind::NotFound);
        let log = dir.path().join("x.sqlite-wal");
        fs_err::write(&log, "log").unwrap();
        for _ in 0..2 {
            reserve.room().unwrap();
            let about = fs_err::metadata(&log).unwrap();
            assert_eq!(about.len(), 3);
            assert!((RESERVE..2 * RESERVE).contains(&(about.blocks() * STAT_BLOCK)));
        }
        assert_eq!(fs_err::read(&log).unwrap(), b"log");
    }
}
