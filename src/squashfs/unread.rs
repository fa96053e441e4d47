//! The error type of this module. Pure: no I/O.

use std::{fmt, io};

/// Why something of a squashfs is not read.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    /// The image is malformed, or uses a feature that this code does not read.
    #[error("the squashfs is damaged: {0}")]
    Damaged(String),
    /// A compressor that Kiln does not have.
    #[error("the squashfs has compressor {0}, which Kiln does not read")]
    Compressor(u16),
    /// More than anybody would look at.
    #[error("{0}")]
    TooMuch(String),
    /// There is no such path in the image.
    #[error("{0}")]
    Missing(String),
    /// The bytes of the image cannot be had.
    #[error(transparent)]
    Source(#[from] io::Error),
}

/// The image is malformed.
pub(super) fn damaged(what: impl fmt::Display) -> Unread {
    Unread::Damaged(what.to_string())
}
