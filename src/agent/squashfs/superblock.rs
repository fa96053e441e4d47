//! The superblock: the first 96 bytes of an image. Pure: no I/O.

use super::{
    fields::{Fields, Put},
    stop::{Stop, damaged},
};

/// Size of the superblock in bytes.
pub const SIZE: usize = 96;

/// The offset that marks an absent table.
pub const ABSENT: u64 = u64::MAX;

/// The compressor's options follow the superblock.
pub const COMPRESSOR_OPTIONS: u16 = 1 << 10;
/// Equal files share their data.
pub const DUPLICATES: u16 = 1 << 6;
/// The image has a table from inode numbers to inodes.
pub const EXPORTABLE: u16 = 1 << 7;
/// The image has no extended attributes.
pub const NO_XATTRS: u16 = 1 << 9;

const MAGIC: u32 = 0x7371_7368;
const VERSION: (u16, u16) = (4, 0);

/// The fields of a superblock. Places are offsets in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    pub inodes: u32,
    /// Seconds since 1970.
    pub made: u32,
    /// Size of a full data block in bytes: a power of two, from 4 KiB to 1 MiB.
    pub block_size: u32,
    pub fragments: u32,
    pub compressor: u16,
    pub flags: u16,
    pub ids: u16,
    /// Place of the root directory's inode: a metadata block in the inode table, shifted left by 16, and an offset in
    /// it.
    pub root: u64,
    /// Offset at which the last table ends.
    pub end: u64,
    pub id_table: u64,
    pub xattr_table: u64,
    pub inode_table: u64,
    pub directory_table: u64,
    pub fragment_table: u64,
    pub export_table: u64,
}

impl Superblock {
    /// Reads the superblock of a file of `length` bytes.
    pub fn parse(bytes: &[u8; SIZE], length: u64) -> Result<Self, Stop> {
        let mut fields = Fields(bytes);
        if fields.u32()? != MAGIC {
            return Err(damaged("it is not a squashfs"));
        }
        let (inodes, made, block_size, fragments) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
        let (compressor, block_log, flags, ids) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
        let version = (fields.u16()?, fields.u16()?);
        if version != VERSION {
            return Err(damaged(format!("version {}.{}", version.0, version.1)));
        }
        if !(12..=20).contains(&block_log) || block_size != 1 << block_log {
            return Err(damaged(format!("blocks of {block_size} bytes")));
        }
        let parsed = Self {
            inodes,
            made,
            block_size,
            fragments,
            compressor,
            flags,
            ids,
            root: fields.u64()?,
            end: fields.u64()?,
            id_table: fields.u64()?,
            xattr_table: fields.u64()?,
            inode_table: fields.u64()?,
            directory_table: fields.u64()?,
            fragment_table: fields.u64()?,
            export_table: fields.u64()?,
        };
        let places = [
            SIZE as u64,
            parsed.inode_table,
            parsed.directory_table,
            parsed.end,
            length,
        ];
        if !places.is_sorted() || parsed.inode_table == parsed.directory_table {
            return Err(damaged("its tables do not lie in the file"));
        }
        Ok(parsed)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SIZE);
        for value in [MAGIC, self.inodes, self.made, self.block_size, self.fragments] {
            bytes.put_u32(value);
        }
        // The trailing zeros of a power of two are its logarithm, at most 20 here.
        let block_log = u16::try_from(self.block_size.trailing_zeros()).unwrap_or(0);
        for value in [self.compressor, block_log, self.flags, self.ids, VERSION.0, VERSION.1] {
            bytes.put_u16(value);
        }
        for value in [
            self.root,
            self.end,
            self.id_table,
            self.xattr_table,
            self.inode_table,
            self.directory_table,
            self.fragment_table,
            self.export_table,
        ] {
            bytes.put_u64(value);
        }
        bytes
    }
}
