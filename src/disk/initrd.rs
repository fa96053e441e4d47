//! Looks into an initrd: can it boot a squashfs from a disk? Reads one file, with limits: its content may be hostile.

use std::{
    io::{BufRead, BufReader, Error, ErrorKind, Read, Result},
    path::Path,
};

/// The most bytes that an initrd may unpack to.
const MOST_UNPACKED: u64 = 4 << 30;

/// The longest name of a file in it.
const LONGEST_NAME: u64 = 4096;

/// The length of an entry's header in cpio's "new" format.
const HEADER: usize = 110;

/// Files of the part of dracut that boots a squashfs from a disk. Dracut sorts the names of an initrd's files: the first of
/// these comes before all kernel modules, which would take longer to unpack than the disk to write.
const LIVE_ROOT: [&str; 2] = [
    "lib/dracut/hooks/cmdline/30-parse-dmsquash-live.sh",
    "sbin/dmsquash-live-root",
];

/// Whether an initrd has dracut's `dmsquash-live`; `None` if it has a format that is not known here.
///
/// # Errors
///
/// When it cannot be read, or is damaged.
pub fn boots_live(path: &Path) -> Result<Option<bool>> {
    search(&mut BufReader::new(fs_err::File::open(path)?), true)
}

/// Searches archives one after the other, as the kernel reads them; the last one is usually packed.
fn search(input: &mut dyn BufRead, may_be_packed: bool) -> Result<Option<bool>> {
    loop {
        let start = loop {
            let start = input.fill_buf()?;
            let padding = start.iter().take_while(|byte| **byte == 0).count();
            if padding == 0 {
                break start;
            }
            input.consume(padding);
        };
        let packed = |decoder: &mut dyn Read| search(&mut BufReader::new(decoder.take(MOST_UNPACKED)), false);
        match start {
            [] => return Ok(Some(false)),
            [b'0', b'7', b'0', b'7', ..] => {
                if has_live_root(input)? {
                    return Ok(Some(true));
                }
            }
            _ if !may_be_packed => return Ok(None),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => return packed(&mut zstd::Decoder::with_buffer(input)?),
            [0x1f, 0x8b, ..] => return packed(&mut flate2::bufread::MultiGzDecoder::new(input)),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => return packed(&mut liblzma::bufread::XzDecoder::new(input)),
            [b'B', b'Z', b'h', ..] => return packed(&mut bzip2::bufread::BzDecoder::new(input)),
            _ => return Ok(None),
        }
    }
}

/// Reads an archive up to its end, or to the file.
fn has_live_root(input: &mut dyn BufRead) -> Result<bool> {
    loop {
        let mut header = [0; HEADER];
        input.read_exact(&mut header)?;
        let (size, length) = (field(&header, 54)?, field(&header, 94)?);
        if !header.starts_with(b"0707") || length > LONGEST_NAME {
            return Err(damaged());
        }
        let mut name = Vec::new();
        let padded = (HEADER as u64 + length).next_multiple_of(4) - HEADER as u64;
        input.take(padded).read_to_end(&mut name)?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if name == b"TRAILER!!!" {
            return Ok(false);
        }
        if LIVE_ROOT.iter().any(|file| name.ends_with(file.as_bytes())) {
            return Ok(true);
        }
        let content = size.next_multiple_of(4);
        if std::io::copy(&mut input.take(content), &mut std::io::sink())? < content {
            return Err(damaged());
        }
    }
}

/// A number of eight hexadecimal digits.
fn field(header: &[u8; HEADER], at: usize) -> Result<u64> {
    let digits = std::str::from_utf8(&header[at..at + 8]).map_err(|_| damaged())?;
    u64::from_str_radix(digits, 16).map_err(|_| damaged())
}

fn damaged() -> Error {
    Error::new(
        ErrorKind::InvalidData,
        "the initrd is damaged: it is no cpio archive to its end",
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use cpio::newc::{Builder, ModeFileType, trailer};

    use super::*;

    fn archive(names: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for name in names {
            let entry = Builder::new(name).mode(0o644).set_mode_file_type(ModeFileType::Regular);
            let mut writer = entry.write(&mut out, 3);
            writer.write_all(b"abc").unwrap();
            writer.finish().unwrap();
        }
        trailer(&mut out).unwrap();
        out.resize(out.len().next_multiple_of(512), 0);
        out
    }

    fn found(bytes: &[u8]) -> Result<Option<bool>> {
        search(&mut Cursor::new(bytes), true)
    }

    #[test]
    fn it_is_found_in_every_archive_and_packed_in_the_last() {
        let (early, live) = (
            archive(&["kernel/x86/microcode"]),
            archive(&["init", "usr/sbin/dmsquash-live-root"]),
        );
        let sorted = archive(&["usr/lib/dracut/hooks/cmdline/30-parse-dmsquash-live.sh"]);
        assert_eq!(found(&early).unwrap(), Some(false));
        assert_eq!(found(&live).unwrap(), Some(true));
        // What comes after that is not read.
        assert_eq!(found(&sorted[..200]).unwrap(), Some(true));
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&live).unwrap();
        for packed in [zstd::encode_all(&live[..], 1).unwrap(), gzip.finish().unwrap()] {
            assert_eq!(found(&[&early[..], &packed].concat()).unwrap(), Some(true));
            assert_eq!(found(&packed).unwrap(), Some(true));
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_an_answer() {
        assert_eq!(found(b"\x02\x21\x4c\x18lz4").unwrap(), None);
        let live = archive(&["init", "usr/sbin/dmsquash-live-root"]);
        assert!(found(&live[..120]).is_err());
        let packed = zstd::encode_all(&live[..], 1).unwrap();
        assert!(found(&packed[..packed.len() / 2]).is_err());
        let mut huge = live;
        huge[94..102].copy_from_slice(b"FFFFFFFF");
        assert!(found(&huge).is_err());
    }
}
