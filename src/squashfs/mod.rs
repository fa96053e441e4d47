//! A changed root becomes a squashfs again, at the price of what changed in it.
//!
//! A customize job unpacks an image with unsquashfs, lets somebody change the root, and packs it. Almost all files are
//! still what they were, and mksquashfs would compress every one of them again. [`rebase`] takes their compressed
//! blocks from the image they came from (the *base*), compresses only what is new, and writes new tables for the whole
//! tree.
//!
//! ```text
//!  unsquashfs base → root ;  Unpacked::record(base, root) ;  the user changes root ;  rebase(base, …, root, out)
//!
//!  base  [ super │ A B C D E F …                │ inodes │ directories │ fragments │ … ]
//!  out   [ super │ A · C D · F …                │ new blocks │ inodes │ directories │ fragments │ … ]
//!                  same bytes at the same offset; blocks that nobody refers to any more are holes
//! ```
//!
//! docs/adr/0011 says why it is done so, and what it costs.

use std::{io, path::Path};

use serde::{Deserialize, Serialize};

use crate::records::{Failure, protocol::SquashfsOptions};

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
    /// The level of new blocks is taken from here when the base has this compressor. A squashfs has one compressor:
    /// the base's stays.
    pub squashfs: SquashfsOptions,
    /// How many threads compress.
    pub cpus: u32,
    /// Device nodes that the image has besides the tree, where they still [belong](Device::belongs).
    pub devices: Vec<Device>,
    /// The time of making that is written into the image, in seconds since 1970. Nothing else in the image depends on
    /// when it is made.
    pub made: u32,
}

/// What [`rebase`] came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The image is there.
    Rebased(Rebased),
    /// It has to be packed with mksquashfs. There is no file at the place of the image.
    NotPossible(NotPossible),
}

/// What an image was made of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebased {
    /// Bytes of compressed data taken from the base as they are.
    pub reused_bytes: u64,
    /// Bytes of compressed data made anew.
    pub new_bytes: u64,
    /// Bytes that nobody refers to any more: holes in the image, read as zeros.
    pub dead_bytes: u64,
    /// Regular files whose content was taken from the base.
    pub reused_files: u64,
    /// Regular files whose content was packed anew; empty ones do not count.
    pub new_files: u64,
    /// How far the image has, at every offset, either the base's bytes or zeros; the superblock (the first 96 bytes)
    /// excepted.
    pub prefix_bytes: u64,
    /// Size of the image.
    pub size: u64,
}

/// Why an image cannot be rebased, though nothing is wrong with the root.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotPossible {
    /// The base is damaged, or has something that this code does not read.
    #[error("the base image cannot be read: {0}")]
    Base(String),
    /// The base is not the file that was unpacked.
    #[error("the base image is not the one that was unpacked")]
    OtherBase,
    /// The base has a compressor that Kiln has not.
    #[error("the base image has compressor {0}, which Kiln does not write")]
    Compressor(u16),
    /// Too little is left of the base for it to be worth its dead space.
    #[error("only {reused} of {of} bytes of the base image would be reused")]
    NotWorthIt {
        /// Bytes that could be reused.
        reused: u64,
        /// Bytes of the base's data.
        of: u64,
    },
    /// Something in the root is beyond what this code writes, or changed while it was read.
    #[error("the root has what only mksquashfs can judge: {0}")]
    Root(String),
}

/// Makes the file `out`, a squashfs of exactly the tree `root` and the given device nodes, from the blocks of `base` where files are still what
/// `unpacked` noted, and from new ones elsewhere.
///
/// Nobody may change `root` meanwhile. The same input gives the same bytes.
///
/// # Errors
///
/// The operating system refuses something. As when it is not possible, there is no file at `out` then.
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
        return Err(Failure::io("cannot remove an unfinished image", &error));
    }
    match stop {
        Stop::NotPossible(why) => Ok(Outcome::NotPossible(why)),
        Stop::Failed(failure) => Err(failure),
    }
}
