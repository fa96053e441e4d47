//! Packs a changed root into a squashfs again, at the cost of the changes only. Reads the base image and the root, and
//! writes the new image; no network, no processes.
//!
//! A customize job unpacks an image with unsquashfs, lets the user change the root, and packs it. Almost all files
//! are unchanged, yet mksquashfs would compress every one of them again. [`rebase`] takes their compressed blocks
//! from the image they came from (the *base*), compresses only new content, and writes new tables for the whole tree.
//!
//! ```text
//!  unsquashfs base → root ;  Unpacked::record(base, root) ;  the user changes root ;  rebase(base, …, root, out)
//!
//!  base  [ super │ A B C D E F …                │ inodes │ directories │ fragments │ … ]
//!  out   [ super │ A · C D · F …                │ new blocks │ inodes │ directories │ fragments │ … ]
//!                  same bytes at the same offset; blocks that are no longer referenced are holes
//! ```
//!
//! docs/adr/0011 has the reasons and the cost.

use std::{
    io::{self, Read},
    path::Path,
};

use kiln_records::{Failure, protocol::SquashfsOptions};
use serde::{Deserialize, Serialize};

mod base;
mod codec;
mod compare;
mod device;
mod fields;
mod ids;
mod image;
mod listing;
mod metadata;
mod pack;
mod reuse;
mod stop;
mod superblock;
mod tables;
mod tree;
mod unpacked;
mod walk;
mod xattrs;

pub use device::Device;
use stop::Stop;
pub use unpacked::Unpacked;

/// How the new squashfs is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Supplies the level for new blocks when the base has this compressor. A squashfs has one compressor, so the
    /// base's is kept.
    pub squashfs: SquashfsOptions,
    /// Number of compression threads.
    pub cpus: u32,
    /// Device nodes of the image that are not in the tree; added where they still [belong](Device::belongs).
    pub devices: Vec<Device>,
    /// The creation time written into the image, in seconds since 1970. Nothing else in the image depends on the time.
    pub made: u32,
}

/// The outcome of [`rebase`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The image was written.
    Rebased(Rebased),
    /// The root has to be packed with mksquashfs. No file is left at the image's path.
    NotPossible(NotPossible),
}

/// Figures of a rebased image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebased {
    /// Bytes of compressed data taken from the base unchanged.
    pub reused_bytes: u64,
    /// Bytes of newly compressed data.
    pub new_bytes: u64,
    /// Bytes that are no longer referenced: holes in the image, which read as zeros.
    pub dead_bytes: u64,
    /// Regular files whose content was taken from the base.
    pub reused_files: u64,
    /// Regular files whose content was packed again, without empty ones.
    pub new_files: u64,
    /// The length up to which every byte of the image is either the base's or zero, except in the superblock (the
    /// first 96 bytes).
    pub prefix_bytes: u64,
    /// Size of the image in bytes.
    pub size: u64,
}

/// Why an image cannot be rebased although the root is sound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotPossible {
    /// The base is damaged or uses a feature that this code does not read.
    #[error("the base image cannot be read: {0}")]
    Base(String),
    /// The base is not the file that was unpacked.
    #[error("the base image is not the one that was unpacked")]
    OtherBase,
    /// The base uses a compressor that Kiln does not have.
    #[error("the base image has compressor {0}, which Kiln does not write")]
    Compressor(u16),
    /// Too little of the base is left to be worth the dead space.
    #[error("only {reused} of {of} bytes of the base image would be reused")]
    NotWorthIt {
        /// Bytes that could be reused.
        reused: u64,
        /// Bytes of the base's data in all.
        of: u64,
    },
    /// The root has something that this code cannot write, or it changed during the run.
    #[error("the root has something that only mksquashfs can handle: {0}")]
    Root(String),
}

/// The offset of what follows the squashfs that a file begins with. mksquashfs fills its last block (`-nopad` in mksquashfs(1)).
///
/// # Errors
///
/// The file cannot be read, or does not begin with a squashfs.
pub fn end_of_first(path: &Path) -> io::Result<u64> {
    const BLOCK: u64 = 4096;
    let mut file = fs_err::File::open(path)?;
    let mut head = [0; superblock::SIZE];
    file.read_exact(&mut head)?;
    let superblock = superblock::Superblock::parse(&head, file.metadata()?.len());
    let superblock = superblock.map_err(|_| io::Error::other("it does not begin with a squashfs"))?;
    Ok(superblock.end.next_multiple_of(BLOCK))
}

/// Writes the file `out`: a squashfs of exactly the tree `root` and the given device nodes. Files that still are as
/// `unpacked` recorded them keep their blocks from `base`; all others get new ones.
///
/// `root` must not change during the call. The same input gives the same bytes.
///
/// # Errors
///
/// The operating system refuses an operation. In that case, as in [`Outcome::NotPossible`], `out` does not exist.
pub fn rebase(
    base: &Path,
    unpacked: &Unpacked,
    root: &Path,
    out: &Path,
    options: &Options,
) -> Result<Outcome, Failure> {
    let stop = match image::make(base, unpacked, root, out, options) {
        Ok(rebased) => return Ok(Outcome::Rebased(rebased)),
        Err(stop) => stop,
    };
    if let Err(error) = fs_err::remove_file(out)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(Failure::io("cannot remove an incomplete image", &error));
    }
    match stop {
        Stop::NotPossible(why) => Ok(Outcome::NotPossible(why)),
        Stop::Failed(failure) => Err(failure),
    }
}
