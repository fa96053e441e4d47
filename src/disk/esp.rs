//! The EFI system partition: a FAT with the boot loader and its files. Reads these, and writes to the partition.

use std::{
    io::{Read, Seek, Write},
    path::Path,
};

use fatfs::{FatType, FileSystem, FormatVolumeOptions, FsOptions};
use kiln_records::{Code, Failure};

use super::MIB;

/// The least size.
const LEAST: u64 = 4 * MIB;

/// The most that a FAT with 16 bits holds.
const MOST: u64 = 2000 * MIB;

/// The content of a file.
pub(super) enum Content<'c> {
    Bytes(&'c [u8]),
    File(&'c Path),
}

/// The size of a partition for so many bytes of files.
pub(super) fn size_for(files: u64) -> Result<u64, Failure> {
    // Beside the files: two tables of at most 128 KiB, directories, and the rest of each file's last cluster.
    let size = (files + 4 * MIB).next_multiple_of(MIB).max(LEAST);
    if size > MOST {
        let detail = format!(
            "kernel and initrd have {} MiB together, too many for a FAT",
            files / MIB
        );
        return Err(Failure::new(Code::DiskUnsupported, detail).hint("a smaller initrd"));
    }
    Ok(size)
}

/// The largest clusters of which there are enough for a FAT with 16 bits, which has 4085 to 65 524. Each cluster costs
/// several small writes.
fn cluster_size(size: u64) -> u32 {
    let mut bytes = 512;
    while bytes < 32768 && size / u64::from(bytes) > 16_000 {
        bytes *= 2;
    }
    bytes
}

/// Writes the file system. Its times are 1980, so that equal files make equal bytes.
pub(super) fn write<D: Read + Write + Seek>(
    mut partition: D,
    size: u64,
    serial: u32,
    files: &[(&str, Content<'_>)],
) -> std::io::Result<()> {
    let options = FormatVolumeOptions::new()
        .bytes_per_cluster(cluster_size(size))
        .fat_type(FatType::Fat16)
        .volume_id(serial)
        .volume_label(*b"EFI        ");
    fatfs::format_volume(&mut partition, options)?;
    partition.rewind()?;
    let system = FileSystem::new(&mut partition, FsOptions::new().update_accessed_date(false))?;
    for (path, content) in files {
        let mut dir = system.root_dir();
        let mut names = path.trim_start_matches('/').split('/').peekable();
        while let Some(name) = names.next() {
            if names.peek().is_some() {
                dir = dir.create_dir(name)?;
                continue;
            }
            let mut file = dir.create_file(name)?;
            match content {
                Content::Bytes(bytes) => file.write_all(bytes)?,
                Content::File(path) => copy(&mut fs_err::File::open(path)?, &mut file)?,
            }
        }
    }
    system.unmount()?;
    partition.flush()
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            count => to.write_all(&buffer[..count])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn every_size_has_room_for_its_files_and_the_right_number_of_clusters() {
        for files in [0, MIB, 9 * MIB, 27 * MIB, 28 * MIB + 1, 200 * MIB, 1900 * MIB] {
            let size = size_for(files).unwrap();
            let clusters = size / u64::from(cluster_size(size));
            assert!((4085..65525).contains(&clusters), "{files}: {clusters}");
        }
        assert_eq!(size_for(MOST).unwrap_err().code, Code::DiskUnsupported);
    }

    #[test]
    fn files_are_read_as_they_were_written() {
        let size = size_for(0).unwrap();
        let make = || {
            let mut disk = Cursor::new(vec![0; usize::try_from(size).unwrap()]);
            let files = [
                ("/EFI/BOOT/BOOTX64.EFI", Content::Bytes(b"loader")),
                ("/a", Content::Bytes(b"a")),
            ];
            write(&mut disk, size, 7, &files).unwrap();
            disk.into_inner()
        };
        let disk = make();
        assert!(disk == make(), "equal files make different bytes");
        let system = FileSystem::new(Cursor::new(disk), FsOptions::new()).unwrap();
        let mut text = String::new();
        let mut file = system.root_dir().open_file("EFI/BOOT/BOOTX64.EFI").unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), system.volume_id()), ("loader", 7));
    }
}
