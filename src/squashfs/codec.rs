//! Unpacks blocks with the compressors of squashfs. Pure: no I/O.

use std::io;

use flate2::{Decompress, FlushDecompress, Status};
use liblzma::stream::{Action, Stream};

use super::unread::{Unread, damaged};

/// The memory, in bytes, that unpacking one xz block may take; dictionaries have at most 1 MiB.
const XZ_MEMORY: u64 = 64 << 20;

/// How the blocks of an image are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Gzip,
    Xz,
    Lz4,
    Zstd,
}

impl Codec {
    /// The codec with this number in the superblock.
    pub(super) fn of(compressor: u16) -> Result<Self, Unread> {
        match compressor {
            1 => Ok(Self::Gzip),
            4 => Ok(Self::Xz),
            5 => Ok(Self::Lz4),
            6 => Ok(Self::Zstd),
            other => Err(Unread::Compressor(other)),
        }
    }

    /// Decompresses `packed` into at most `limit` bytes.
    pub(super) fn unpack(self, packed: &[u8], limit: usize) -> Result<Vec<u8>, Unread> {
        self.try_unpack(packed, limit)
            .map_err(|error| damaged(format_args!("a block cannot be decompressed: {error}")))
    }

    fn try_unpack(self, packed: &[u8], limit: usize) -> io::Result<Vec<u8>> {
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "it has no end");
        match self {
            Self::Gzip => {
                let mut raw = Vec::with_capacity(limit);
                match Decompress::new(true).decompress_vec(packed, &mut raw, FlushDecompress::Finish)? {
                    Status::StreamEnd => Ok(raw),
                    Status::Ok | Status::BufError => Err(broken()),
                }
            }
            Self::Xz => {
                let mut raw = Vec::with_capacity(limit);
                let mut stream = Stream::new_stream_decoder(XZ_MEMORY, 0)?;
                match stream.process_vec(packed, &mut raw, Action::Finish)? {
                    liblzma::stream::Status::StreamEnd => Ok(raw),
                    _ => Err(broken()),
                }
            }
            Self::Lz4 => {
                let mut raw = vec![0; limit];
                let size = lz4_flex::block::decompress_into(packed, &mut raw).map_err(io::Error::other)?;
                raw.truncate(size);
                Ok(raw)
            }
            Self::Zstd => zstd::bulk::decompress(packed, limit),
        }
    }
}
