//! Looks into an initrd: can it boot a squashfs from a disk? Reads one file.

use std::{
    io::{BufRead, BufReader, Result},
    path::Path,
};

use kiln_records::initrd::{Extent, names};

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
    search(&mut BufReader::new(fs_err::File::open(path)?))
}

fn search(input: &mut dyn BufRead) -> Result<Option<bool>> {
    let mut is_live_root = |name: &[u8]| LIVE_ROOT.iter().any(|file| name.ends_with(file.as_bytes()));
    Ok(match names(input, &mut is_live_root)? {
        Extent::Enough => Some(true),
        Extent::Whole => Some(false),
        Extent::Unknown => None,
    })
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
        search(&mut Cursor::new(bytes))
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
