//! Packs content in every format, for tests: those of this module, and those of the agent, which compiles this file too.
//! Pure: no I/O.

use std::io::{Read, Write};

use liblzma::stream::Stream;

use super::Compression;

/// Packs `content` as the command-line tool of the format would.
pub fn pack(compression: Compression, content: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    match compression {
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Bzip2 => {
            let mut encoder = bzip2::write::BzEncoder::new(packed, bzip2::Compression::fast());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Xz => {
            liblzma::read::XzEncoder::new(content, 1)
                .read_to_end(&mut packed)
                .unwrap();
            packed
        }
        Compression::Lzma => {
            let options = liblzma::stream::LzmaOptions::new_preset(1).unwrap();
            let stream = Stream::new_lzma_encoder(&options).unwrap();
            liblzma::read::XzEncoder::new_stream(content, stream)
                .read_to_end(&mut packed)
                .unwrap();
            packed
        }
        Compression::Zstd => zstd::encode_all(content, 1).unwrap(),
    }
}

/// Every format.
pub const ALL: [Compression; 5] = [
    Compression::Gzip,
    Compression::Bzip2,
    Compression::Xz,
    Compression::Lzma,
    Compression::Zstd,
];
