//! The superblock: the first 96 bytes of an image. Pure: no I/O.

use super::{
    fields::Fields,
    unread::{Unread, damaged},
};

/// Its size in bytes.
pub(super) const SIZE: usize = 96;

const MAGIC: u32 = 0x7371_7368;
const VERSION: (u16, u16) = (4, 0);

/// What is needed of a superblock. Places are offsets in the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Superblock {
    /// Size of a full data block in bytes: a power of two, from 4 KiB to 1 MiB.
    pub(super) block_size: u32,
    pub(super) fragments: u32,
    pub(super) compressor: u16,
    pub(super) ids: u16,
    /// Place of the root directory's inode: a block in the table of inodes, shifted left by 16, and an offset in it.
    pub(super) root: u64,
    /// Where the last table ends.
    pub(super) end: u64,
    pub(super) id_table: u64,
    pub(super) inode_table: u64,
    pub(super) directory_table: u64,
    pub(super) fragment_table: u64,
}

impl Superblock {
    /// Reads the superblock of an image of `length` bytes.
    pub(super) fn parse(bytes: &[u8], length: u64) -> Result<Self, Unread> {
        let mut fields = Fields(bytes);
        if fields.u32()? != MAGIC {
            return Err(damaged("it does not begin like a squashfs"));
        }
        let (_inodes, _made, block_size, fragments) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
        let (compressor, block_log, _flags, ids) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
        let version = (fields.u16()?, fields.u16()?);
        if version != VERSION {
            return Err(damaged(format!("version {}.{}", version.0, version.1)));
        }
        if !(12..=20).contains(&block_log) || block_size != 1 << block_log {
            return Err(damaged(format!("blocks of {block_size} bytes")));
        }
        let (root, end, id_table, _xattr_table) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
        let (inode_table, directory_table, fragment_table) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let places = [SIZE as u64, inode_table, directory_table, end, length];
        if !places.is_sorted() || inode_table == directory_table {
            return Err(damaged("its tables do not lie in it"));
        }
        Ok(Self {
            block_size,
            fragments,
            compressor,
            ids,
            root,
            end,
            id_table,
            inode_table,
            directory_table,
            fragment_table,
        })
    }
}
