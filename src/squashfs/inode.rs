//! Inodes: what an entry of a directory is. Reads the image only.

use std::io::{Read, Seek};

use super::{
    fields::Fields,
    image::Image,
    metadata::Place,
    unread::{Unread, damaged},
};

/// The fragment number that means "no fragment".
const NO_FRAGMENT: u32 = u32::MAX;

/// The longest target of a link, in bytes. Linux makes none of more than 4095.
const MAX_TARGET: u32 = 4095;

/// The types of inodes, in their short form.
const DIRECTORY: u16 = 1;
const FILE: u16 = 2;
const LINK: u16 = 3;
const BLOCK: u16 = 4;
const CHARACTER: u16 = 5;
const PIPE: u16 = 6;
const SOCKET: u16 = 7;
/// Added to the type of an inode in its extended form.
const EXTENDED: u16 = 7;

/// A file, directory or link of an image, whatever its names are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// What it is.
    pub kind: Kind,
    /// Permissions, with set-id and sticky bits.
    pub mode: u16,
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// When it was last modified, in seconds since 1970.
    pub modified: u32,
    pub(super) place: Place,
}

/// What an inode is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory(Directory),
    /// A regular file.
    File(Content),
    /// A symbolic link, with its target.
    Link(Vec<u8>),
    /// A block device: major and minor.
    Block(u32, u32),
    /// A character device: major and minor.
    Character(u32, u32),
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
}

/// Where a directory's listing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Directory {
    pub(super) listing: Place,
    /// Bytes of the listing.
    pub(super) size: u32,
}

/// Where a file's content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// Bytes in all.
    pub size: u64,
    /// Offset of the first block in the image; the others follow without gaps.
    pub(super) start: u64,
    /// The number of blocks.
    pub(super) blocks: u64,
    /// Where the stored sizes of the blocks are.
    pub(super) sizes: Place,
    /// The fragment with the end of the content, and the offset in it.
    pub(super) tail: Option<(u32, u32)>,
}

impl Kind {
    /// The type that a directory's entry has for it.
    pub(super) fn number(&self) -> u16 {
        match self {
            Self::Directory(_) => DIRECTORY,
            Self::File(_) => FILE,
            Self::Link(_) => LINK,
            Self::Block(..) => BLOCK,
            Self::Character(..) => CHARACTER,
            Self::Pipe => PIPE,
            Self::Socket => SOCKET,
        }
    }
}

impl<R: Read + Seek> Image<R> {
    /// The inode of the root directory.
    pub(super) fn root(&mut self) -> Result<Inode, Unread> {
        let root = self.superblock.root;
        let place = self.inode_place(root >> 16, usize::from(u16::try_from(root & 0xffff).unwrap_or(0)))?;
        let inode = self.inode(place)?;
        match inode.kind {
            Kind::Directory(_) => Ok(inode),
            _ => Err(damaged("its root is no directory")),
        }
    }

    /// The place of an inode, from the offset of its block in the table.
    pub(super) fn inode_place(&self, block: u64, offset: usize) -> Result<Place, Unread> {
        let block = self.superblock.inode_table.saturating_add(block);
        if block >= self.superblock.directory_table {
            return Err(damaged("an inode is not among the inodes"));
        }
        Ok(Place { block, offset })
    }

    /// The inode at a place.
    pub(super) fn inode(&mut self, place: Place) -> Result<Inode, Unread> {
        let mut rest = place;
        let head = self.table(&mut rest, 16)?;
        let mut head = Fields(&head);
        let (kind, mode, user, group) = (head.u16()?, head.u16()?, head.u16()?, head.u16()?);
        let (modified, _number) = (head.u32()?, head.u32()?);
        Ok(Inode {
            kind: self.kind(kind, rest)?,
            mode: mode & 0o7777,
            uid: self.owner(user)?,
            gid: self.owner(group)?,
            modified,
            place,
        })
    }

    /// What an inode of this type is, by what follows its head.
    fn kind(&mut self, kind: u16, mut place: Place) -> Result<Kind, Unread> {
        let (short, is_extended) = match kind {
            DIRECTORY..=SOCKET => (kind, false),
            _ => (kind.wrapping_sub(EXTENDED), true),
        };
        let size = match (short, is_extended) {
            (DIRECTORY | FILE, false) => 16,
            (DIRECTORY, true) => 24,
            (FILE, true) => 40,
            (LINK | BLOCK | CHARACTER, _) => 8,
            (PIPE | SOCKET, _) => 4,
            _ => return Err(damaged(format_args!("an inode has the type {kind}"))),
        };
        let fields = self.table(&mut place, size)?;
        let mut fields = Fields(&fields);
        match short {
            DIRECTORY => self.directory(fields, is_extended),
            FILE if is_extended => {
                let (start, size, _holes, _links) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u32()?);
                let (fragment, offset) = (fields.u32()?, fields.u32()?);
                Ok(Kind::File(self.content(place, start, size, (fragment, offset))))
            }
            FILE => {
                let (start, fragment, offset, size) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
                let content = self.content(place, start.into(), size.into(), (fragment, offset));
                Ok(Kind::File(content))
            }
            LINK => {
                let (_links, size) = (fields.u32()?, fields.u32()?);
                if size > MAX_TARGET {
                    return Err(damaged("a link has a target that is too long"));
                }
                Ok(Kind::Link(self.table(&mut place, size as usize)?))
            }
            BLOCK | CHARACTER => {
                let (_links, number) = (fields.u32()?, fields.u32()?);
                // As the kernel packs them: the major number is in the middle.
                let (major, minor) = (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xf_ff00);
                Ok(match short {
                    BLOCK => Kind::Block(major, minor),
                    _ => Kind::Character(major, minor),
                })
            }
            PIPE => Ok(Kind::Pipe),
            _ => Ok(Kind::Socket),
        }
    }

    fn directory(&self, mut fields: Fields<'_>, is_extended: bool) -> Result<Kind, Unread> {
        let (block, size, offset);
        if is_extended {
            let _links = fields.u32()?;
            (size, block) = (fields.u32()?, fields.u32()?);
            let (_parent, _indexes) = (fields.u32()?, fields.u16()?);
            offset = fields.u16()?;
        } else {
            block = fields.u32()?;
            let _links = fields.u32()?;
            (size, offset) = (u32::from(fields.u16()?), fields.u16()?);
        }
        Ok(Kind::Directory(Directory {
            listing: Place {
                block: self.superblock.directory_table.saturating_add(u64::from(block)),
                offset: usize::from(offset),
            },
            // The size includes `.` and `..`, which are not in the listing.
            size: size.saturating_sub(3),
        }))
    }

    fn content(&self, sizes: Place, start: u64, size: u64, (fragment, offset): (u32, u32)) -> Content {
        let block_size = u64::from(self.superblock.block_size);
        let has_rest = !size.is_multiple_of(block_size);
        let tail = (fragment != NO_FRAGMENT && has_rest).then_some((fragment, offset));
        Content {
            size,
            start,
            blocks: size / block_size + u64::from(has_rest && fragment == NO_FRAGMENT),
            sizes,
            tail,
        }
    }
}
