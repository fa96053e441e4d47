//! Reads a squashfs whose bytes are somewhere else: directories, inodes and the content of files. Reads of its source what
//! is asked for and no more, and writes nothing.
//!
//! ```text
//!  open: superblock, owners        find: a path, link by link        list: a directory, or all below it
//!                                  pieces: the content of a file, block by block
//! ```
//!
//! The image may be hostile: anything irregular is refused, links lead nowhere outside, nothing is called for each level
//! of a tree, and memory and the number of entries are bounded.

mod codec;
mod content;
mod directory;
mod fields;
mod image;
mod inode;
mod list;
mod metadata;
mod path;
mod source;
mod superblock;
#[cfg(test)]
mod tests;
mod unread;

pub use content::Pieces;
pub use image::Image;
pub use inode::{Content, Directory, Inode, Kind};
pub use path::Found;
pub use unread::Unread;
