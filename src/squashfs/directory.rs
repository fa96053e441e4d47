//! A directory's listing: runs of entries whose inodes lie close together. Reads the image only.

use std::io::{Read, Seek};

use super::{
    fields::Fields,
    image::Image,
    inode::{Directory, Inode},
    metadata::Place,
    unread::{Unread, damaged},
};

/// The most entries that are looked at together. A large image has a few hundred thousand.
pub(super) const MAX_ENTRIES: usize = 1 << 20;

/// The most bytes of one directory's listing.
const MAX_LISTING: u32 = 64 << 20;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    place: Place,
    kind: u16,
}

impl<R: Read + Seek> Image<R> {
    /// The entries of a directory, by name.
    pub(super) fn entries(&mut self, directory: Directory) -> Result<Vec<Entry>, Unread> {
        if directory.size > MAX_LISTING {
            return Err(damaged("a directory is too large"));
        }
        let mut place = directory.listing;
        let listing = self.table(&mut place, directory.size as usize)?;
        let mut fields = Fields(&listing);
        let mut entries: Vec<Entry> = Vec::new();
        while !fields.0.is_empty() {
            let (more, block, _number) = (fields.u32()?, fields.u32()?, fields.u32()?);
            for _ in 0..=more {
                let (offset, _delta, kind, length) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
                let name = fields.bytes(usize::from(length) + 1)?;
                let last = entries.last().map_or(&[][..], |entry| &entry.name);
                // Strictly ascending names are also distinct.
                if name <= last || matches!(name, b"." | b"..") || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
                    return Err(damaged("a directory has invalid names"));
                }
                if entries.len() >= MAX_ENTRIES {
                    return Err(Unread::TooMuch(format!(
                        "a directory has more than {MAX_ENTRIES} files"
                    )));
                }
                entries.push(Entry {
                    name: name.to_vec(),
                    place: self.inode_place(u64::from(block), usize::from(offset))?,
                    kind,
                });
            }
        }
        Ok(entries)
    }

    /// The inode of an entry.
    pub(super) fn inode_of(&mut self, entry: &Entry) -> Result<Inode, Unread> {
        let inode = self.inode(entry.place)?;
        if inode.kind.number() != entry.kind {
            return Err(damaged("an inode is of another type than its entry"));
        }
        Ok(inode)
    }
}
