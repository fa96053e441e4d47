//! Builds the tables of inodes and directories in memory. No I/O.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use super::{
    base::{Content, NO_FRAGMENT},
    codec::Codec,
    fields::Put,
    listing::{Entry, Listing},
    metadata::{Place, Writer},
    stop::{Stop, unfit},
    tree::{Kind, Node, Tree},
};

/// The number that marks an inode without extended attributes.
const NO_XATTRS: u32 = u32::MAX;

/// Added to the type of an inode in its extended form.
const EXTENDED: u16 = 7;

/// Both tables, packed.
#[derive(Debug)]
pub struct Tables {
    pub inodes: Vec<u8>,
    pub directories: Vec<u8>,
    /// The place of each node's inode, in the form in which tables refer to it.
    pub references: Vec<u64>,
}

/// Builds the inodes and directories of `tree`. `contents` has one element per node; only those of regular files are
/// used.
pub fn write(tree: &Tree, contents: &[Content], codec: Codec, block_size: u32) -> Result<Tables, Stop> {
    let mut work = Work {
        tree,
        contents,
        block_size: u64::from(block_size),
        inodes: Writer::new(codec),
        directories: Writer::new(codec),
        places: vec![None; tree.nodes.len()],
    };
    // A directory's listing refers to inodes that must be written already, and each directory precedes its children.
    for index in (0..tree.nodes.len()).rev() {
        if let Kind::Directory { parent, children } = &tree.nodes[index].kind {
            work.directory(index, *parent, children)?;
        }
    }
    Ok(Tables {
        references: work.places.into_iter().flatten().map(Place::reference).collect(),
        inodes: work.inodes.finish()?.0,
        directories: work.directories.finish()?.0,
    })
}

struct Work<'a> {
    tree: &'a Tree,
    contents: &'a [Content],
    block_size: u64,
    inodes: Writer,
    directories: Writer,
    places: Vec<Option<Place>>,
}

/// The type of an inode, in its short form.
fn kind_number(kind: &Kind) -> u16 {
    match kind {
        Kind::Directory { .. } => 1,
        Kind::File(_) => 2,
        Kind::Link(_) => 3,
        Kind::BlockDevice(_) => 4,
        Kind::CharacterDevice(_) => 5,
        Kind::Fifo => 6,
        Kind::Socket => 7,
    }
}

/// The inode number of a node. [`Tree::scan`] has checked that there are not too many.
fn number(node: usize) -> u32 {
    u32::try_from(node + 1).unwrap_or(u32::MAX)
}

impl Work<'_> {
    fn head(&self, index: usize, extended: bool) -> Vec<u8> {
        let node = &self.tree.nodes[index];
        let mut bytes = Vec::new();
        bytes.put_u16(kind_number(&node.kind) + if extended { EXTENDED } else { 0 });
        for value in [node.mode, node.owner.0, node.owner.1] {
            bytes.put_u16(value);
        }
        bytes.put_u32(node.mtime);
        bytes.put_u32(number(index));
        bytes
    }

    fn put(&mut self, index: usize, bytes: &[u8]) -> Result<Place, Stop> {
        let place = self.inodes.place();
        self.inodes.write(bytes)?;
        self.places[index] = Some(place);
        Ok(place)
    }

    fn directory(&mut self, index: usize, parent: usize, children: &[(std::ffi::OsString, usize)]) -> Result<(), Stop> {
        let mut entries = Vec::with_capacity(children.len());
        for (name, child) in children {
            let place = match self.places[*child] {
                Some(place) => place,
                None => self.leaf(*child)?,
            };
            entries.push(Entry {
                name: OsStr::as_bytes(name),
                inode: number(*child),
                place,
                kind: kind_number(&self.tree.nodes[*child].kind),
            });
        }
        let listing = Listing::write(&entries, &mut self.directories)?;
        let node = &self.tree.nodes[index];
        // The root directory's parent has a number that no inode has.
        let parent = if index == 0 {
            number(self.tree.nodes.len())
        } else {
            number(parent)
        };
        // The size includes `.` and `..`.
        let size = listing
            .size
            .checked_add(3)
            .ok_or_else(|| unfit("a directory is too large"))?;
        let block = u32::try_from(listing.place.block).map_err(unfit)?;
        let offset = u16::try_from(listing.place.offset).map_err(unfit)?;
        let short = u16::try_from(size).ok();
        let short = short.filter(|_| node.xattrs.is_none() && listing.index.is_empty());
        let mut bytes = self.head(index, short.is_none());
        if let Some(size) = short {
            bytes.put_u32(block);
            bytes.put_u32(node.links);
            bytes.put_u16(size);
            bytes.put_u16(offset);
            bytes.put_u32(parent);
        } else {
            for value in [node.links, size, block, parent] {
                bytes.put_u32(value);
            }
            bytes.put_u16(u16::try_from(listing.index.len()).map_err(unfit)?);
            bytes.put_u16(offset);
            bytes.put_u32(node.xattrs.unwrap_or(NO_XATTRS));
            for step in &listing.index {
                bytes.put_u32(step.offset);
                bytes.put_u32(u32::try_from(step.block).map_err(unfit)?);
                // Names have at least one byte, so the length is stored less one.
                bytes.put_u32(u32::try_from(step.name.len() - 1).map_err(unfit)?);
                bytes.extend(step.name);
            }
        }
        self.put(index, &bytes)?;
        Ok(())
    }

    /// Writes any inode other than a directory.
    fn leaf(&mut self, index: usize) -> Result<Place, Stop> {
        let node = &self.tree.nodes[index];
        if matches!(node.kind, Kind::File(_)) {
            return self.file(index);
        }
        let mut bytes = self.head(index, node.xattrs.is_some());
        bytes.put_u32(node.links);
        match &node.kind {
            Kind::Link(target) => {
                bytes.put_u32(u32::try_from(target.len()).map_err(unfit)?);
                bytes.extend(target);
            }
            Kind::BlockDevice(device) | Kind::CharacterDevice(device) => bytes.put_u32(*device),
            Kind::Fifo | Kind::Socket | Kind::File(_) | Kind::Directory { .. } => {}
        }
        if let Some(xattrs) = node.xattrs {
            bytes.put_u32(xattrs);
        }
        self.put(index, &bytes)
    }

    fn file(&mut self, index: usize) -> Result<Place, Stop> {
        let (node, content): (&Node, &Content) = (&self.tree.nodes[index], &self.contents[index]);
        let (fragment, offset) = (content.tail).map_or((NO_FRAGMENT, 0), |tail| (tail.fragment, tail.offset));
        let holes = content.holes(self.block_size);
        let short = u32::try_from(content.start).ok().zip(u32::try_from(content.size).ok());
        let short = short.filter(|_| node.links == 1 && node.xattrs.is_none() && holes == 0);
        let mut bytes = self.head(index, short.is_none());
        if let Some((start, size)) = short {
            for value in [start, fragment, offset, size] {
                bytes.put_u32(value);
            }
        } else {
            for value in [content.start, content.size, holes] {
                bytes.put_u64(value);
            }
            for value in [node.links, fragment, offset, node.xattrs.unwrap_or(NO_XATTRS)] {
                bytes.put_u32(value);
            }
        }
        for block in &content.blocks {
            bytes.put_u32(*block);
        }
        self.put(index, &bytes)
    }
}
