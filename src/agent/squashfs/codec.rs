//! The compressors of squashfs, configured as mksquashfs configures them. Pure: no I/O.

use std::io;

use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};
use kiln_records::protocol::{Compressor, SquashfsOptions};
use liblzma::stream::{Action, Check, Filters, LzmaOptions, Stream};

use super::{NotPossible, fields::Fields, stop::Stop, superblock::Superblock};

/// The gzip level that mksquashfs uses.
const GZIP_LEVEL: u32 = 9;

/// Kiln's level of Zstandard, see [`mksquashfs_args`](crate::mksquashfs::mksquashfs_args).
const ZSTD_LEVEL: u32 = 3;

/// The xz preset that mksquashfs uses.
const XZ_PRESET: u32 = 6;

/// The memory, in bytes, that unpacking one xz block may take; dictionaries have at most 1 MiB.
const XZ_MEMORY: u64 = 64 << 20;

/// How blocks of one image are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    Gzip {
        level: u32,
    },
    Xz {
        /// Bytes. The kernel allocates the dictionary size that the image's options give, or one block.
        dictionary: u32,
    },
    Lz4,
    Zstd {
        level: u32,
    },
}

impl Codec {
    /// The codec of an image. `settings` is the image's compressor options, if it has any. Levels matter for packing
    /// only.
    pub fn of(
        superblock: &Superblock,
        settings: Option<&[u8]>,
        options: Option<&SquashfsOptions>,
    ) -> Result<Self, Stop> {
        let level = |compressor, default| {
            let options = options.filter(|options| options.compressor == compressor);
            options.and_then(|options| options.level).unwrap_or(default)
        };
        Ok(match superblock.compressor {
            1 => Self::Gzip {
                level: level(Compressor::Gzip, GZIP_LEVEL).clamp(1, 9),
            },
            4 => Self::Xz {
                dictionary: match settings {
                    Some(settings) => Fields(settings).u32()?.min(superblock.block_size).max(4096),
                    None => superblock.block_size,
                },
            },
            5 => Self::Lz4,
            6 => Self::Zstd {
                level: level(Compressor::Zstd, ZSTD_LEVEL).clamp(1, 22),
            },
            other => return Err(NotPossible::Compressor(other).into()),
        })
    }

    /// The compressed form of `raw`, if it is shorter.
    pub fn pack(self, raw: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let packed = match self {
            Self::Gzip { level } => {
                let mut packed = Vec::with_capacity(raw.len());
                let status = Compress::new(flate2::Compression::new(level), true).compress_vec(
                    raw,
                    &mut packed,
                    FlushCompress::Finish,
                )?;
                // When compressing does not pay, the buffer is full before the stream ends.
                (status == Status::StreamEnd).then_some(packed)
            }
            Self::Xz { dictionary } => {
                let mut settings = LzmaOptions::new_preset(XZ_PRESET)?;
                settings.dict_size(dictionary);
                let mut stream = Stream::new_stream_encoder(Filters::new().lzma2(&settings), Check::Crc32)?;
                let mut packed = Vec::with_capacity(raw.len());
                let status = stream.process_vec(raw, &mut packed, Action::Finish)?;
                (status == liblzma::stream::Status::StreamEnd).then_some(packed)
            }
            Self::Lz4 => Some(lz4_flex::block::compress(raw)),
            Self::Zstd { level } => Some(zstd::bulk::compress(raw, i32::try_from(level).unwrap_or(i32::MAX))?),
        };
        Ok(packed.filter(|packed| packed.len() < raw.len()))
    }

    /// Decompresses `packed` into at most `limit` bytes.
    pub fn unpack(self, packed: &[u8], limit: usize) -> io::Result<Vec<u8>> {
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "a block cannot be decompressed");
        match self {
            Self::Gzip { .. } => {
                let mut raw = Vec::with_capacity(limit);
                match Decompress::new(true).decompress_vec(packed, &mut raw, FlushDecompress::Finish)? {
                    Status::StreamEnd => Ok(raw),
                    Status::Ok | Status::BufError => Err(broken()),
                }
            }
            Self::Xz { .. } => {
                let mut raw = Vec::with_capacity(limit);
                let mut stream = Stream::new_stream_decoder(XZ_MEMORY, 0)?;
                match stream.process_vec(packed, &mut raw, Action::Finish)? {
                    liblzma::stream::Status::StreamEnd => Ok(raw),
                    _ => Err(broken()),
                }
            }
            Self::Lz4 => {
                let mut raw = vec![0; limit];
                let size = lz4_flex::block::decompress_into(packed, &mut raw).map_err(|_| broken())?;
                raw.truncate(size);
                Ok(raw)
            }
            Self::Zstd { .. } => zstd::bulk::decompress(packed, limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub const ALL: [Codec; 4] = [
        Codec::Gzip { level: 9 },
        Codec::Xz { dictionary: 131_072 },
        Codec::Lz4,
        Codec::Zstd { level: 3 },
    ];

    #[test]
    fn what_is_packed_can_be_unpacked() {
        let text = "words, and words again; ".repeat(400);
        for codec in ALL {
            let packed = codec.pack(text.as_bytes()).unwrap().unwrap();
            assert_eq!(codec.unpack(&packed, text.len()).unwrap(), text.as_bytes(), "{codec:?}");
            codec.unpack(&packed, text.len() - 1).unwrap_err();
            codec.unpack(&packed[..packed.len() - 1], text.len()).unwrap_err();
            assert_eq!(codec.pack(b"too short").unwrap(), None, "{codec:?}");
        }
    }
}
