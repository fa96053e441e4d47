//! Unpacks the compressed formats of recipes and kernels. Works on readers: no I/O of its own.

use std::io::{self, BufRead, Read};

use liblzma::stream::Stream;

/// The most memory for unpacking, in bytes. `xz -9` needs 65 MiB; a hostile header could ask for 4 GiB.
const MEMORY: u64 = 256 << 20;

/// The same for zstd, as the logarithm of its window.
const ZSTD_WINDOW_LOG: u32 = 27;

/// A compressed format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Deflate in gzip's wrapping.
    Gzip,
    /// bzip2.
    Bzip2,
    /// LZMA2 in xz's wrapping.
    Xz,
    /// LZMA, the predecessor of xz. It has no magic number: [`Compression::detect`] never finds it.
    Lzma,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// The format of data that begins with `head`; none if it is not a known compressed format.
    pub fn detect(head: &[u8]) -> Option<Self> {
        const MAGIC: [(&[u8], Compression); 4] = [
            (b"\x1f\x8b", Compression::Gzip),
            (b"BZh", Compression::Bzip2),
            (b"\xfd7zXZ\0", Compression::Xz),
            (b"\x28\xb5\x2f\xfd", Compression::Zstd),
        ];
        MAGIC
            .iter()
            .find(|(magic, _)| head.starts_with(magic))
            .map(|(_, compression)| *compression)
    }

    /// Unpacks all of `packed`, even if it consists of several compressed pieces.
    pub fn reader<'a>(self, packed: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
            Compression::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(packed)),
            Compression::Xz => {
                let stream = Stream::new_stream_decoder(MEMORY, liblzma::stream::CONCATENATED)?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(packed, stream))
            }
            Compression::Zstd => Box::new(zstd_decoder(packed)?),
            Compression::Lzma => self.first(packed)?,
        })
    }

    /// Unpacks the first compressed piece of `packed` and ignores the rest.
    pub fn first<'a>(self, packed: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Compression::Gzip => Box::new(flate2::bufread::GzDecoder::new(packed)),
            Compression::Bzip2 => Box::new(bzip2::bufread::BzDecoder::new(packed)),
            Compression::Xz => {
                let stream = Stream::new_stream_decoder(MEMORY, 0)?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(packed, stream))
            }
            Compression::Lzma => {
                let stream = Stream::new_lzma_decoder(MEMORY)?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(packed, stream))
            }
            Compression::Zstd => Box::new(zstd_decoder(packed)?.single_frame()),
        })
    }
}

fn zstd_decoder<'a, R: BufRead>(packed: R) -> io::Result<zstd::Decoder<'a, R>> {
    let mut decoder = zstd::Decoder::with_buffer(packed)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG)?;
    Ok(decoder)
}

#[cfg(test)]
mod packing;

#[cfg(test)]
mod tests {
    use super::{
        packing::{ALL, pack},
        *,
    };

    #[test]
    fn every_format_is_detected_and_unpacked() {
        for compression in ALL {
            let mut packed = pack(compression, b"some content");
            if compression != Compression::Lzma {
                assert_eq!(Compression::detect(&packed), Some(compression));
                packed.extend(pack(compression, b" and more"));
                let mut unpacked = String::new();
                compression
                    .reader(&packed[..])
                    .unwrap()
                    .read_to_string(&mut unpacked)
                    .unwrap();
                assert_eq!(unpacked, "some content and more", "{compression:?}");
            }
            packed.extend(b"\0\0\0\x2a");
            let mut unpacked = String::new();
            compression
                .first(&packed[..])
                .unwrap()
                .read_to_string(&mut unpacked)
                .unwrap();
            assert_eq!(unpacked, "some content", "{compression:?}");
        }
        assert_eq!(Compression::detect(b"PK\x03\x04"), None);
        assert_eq!(Compression::detect(b""), None);
    }
}
