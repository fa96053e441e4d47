//! QEMU's format for disks, version 3: tables, and then the disk byte for byte. Writes the tables only.
//!
//! Every cluster of the disk has its place in the file, so that the same bytes are written as for a raw disk and in one go.
//! Parts of the disk that nothing is written to are holes of the file.

use std::{fs::File, io, os::unix::fs::FileExt};

/// The unit of the tables and of the disk.
const CLUSTER: u64 = 1 << CLUSTER_BITS;
const CLUSTER_BITS: u32 = 16;

/// The entries of 64 bits in a cluster.
const ENTRIES: u64 = CLUSTER / 8;

/// The counters of 16 bits in a cluster.
const COUNTERS: u64 = CLUSTER / 2;

/// Says of a cluster that it is used once.
const COPIED: u64 = 1 << 63;

/// The length of the header.
const HEADER: u32 = 104;

/// Writes the tables for a disk of so many bytes to an empty file. Returns where the disk begins in it.
pub(super) fn write_tables(file: &File, disk: u64) -> io::Result<u64> {
    let clusters = disk.div_ceil(CLUSTER);
    let second = clusters.div_ceil(ENTRIES);
    let first = second.div_ceil(ENTRIES);
    // The clusters of counters count themselves, too, and the header and the table of those clusters.
    let counted = (2 + first + second + clusters).div_ceil(COUNTERS - 1);
    if counted > ENTRIES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "the disk is too large for qcow2",
        ));
    }
    let offset = |cluster: u64| cluster * CLUSTER;
    let (counters, first_level) = (2, 2 + counted);
    let second_level = first_level + first;
    let begin = second_level + second;

    let mut header = b"QFI\xfb".to_vec();
    let mut number = |value: u64, bytes: usize| header.extend(&value.to_be_bytes()[8 - bytes..]);
    number(3, 4);
    // No other file below it.
    number(0, 8);
    number(0, 4);
    number(CLUSTER_BITS.into(), 4);
    number(disk, 8);
    // Not encrypted.
    number(0, 4);
    number(second, 4);
    number(offset(first_level), 8);
    number(offset(1), 8);
    number(1, 4);
    // No snapshots.
    number(0, 4);
    number(0, 8);
    // No features of three kinds.
    number(0, 8);
    number(0, 8);
    number(0, 8);
    // Counters have 2^4 bits.
    number(4, 4);
    number(HEADER.into(), 4);

    let entries = |clusters: std::ops::Range<u64>, flags: u64| -> Vec<u8> {
        clusters
            .flat_map(|cluster| (offset(cluster) | flags).to_be_bytes())
            .collect()
    };
    file.write_all_at(&header, 0)?;
    file.write_all_at(&entries(counters..first_level, 0), offset(1))?;
    let used = usize::try_from(begin + clusters).map_err(io::Error::other)?;
    file.write_all_at(&1_u16.to_be_bytes().repeat(used), offset(counters))?;
    file.write_all_at(&entries(second_level..begin, COPIED), offset(first_level))?;
    file.write_all_at(&entries(begin..begin + clusters, COPIED), offset(second_level))?;
    Ok(offset(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk whose tables have more than one cluster of each kind but the highest.
    #[test]
    fn every_cluster_of_a_disk_is_found_and_counted_once() {
        let file = tempfile::tempfile().unwrap();
        let disk = 5 << 30;
        let begin = write_tables(&file, disk).unwrap();
        let number = |at: u64| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at).unwrap();
            u64::from_be_bytes(bytes)
        };
        assert_eq!(number(24), disk);
        let (tables, first_level) = (number(36) >> 32, number(40));
        assert_eq!(tables, 10);
        for cluster in 0..disk / CLUSTER {
            let table = number(first_level + cluster / ENTRIES * 8) & !COPIED;
            let place = number(table + cluster % ENTRIES * 8);
            assert_eq!(place, (begin + cluster * CLUSTER) | COPIED);
        }
        let all = (begin + disk) / CLUSTER;
        let counter = |cluster: u64| {
            let block = number(number(48) + cluster / COUNTERS * 8);
            number(block + cluster % COUNTERS * 2) >> 48
        };
        assert!((0..all).all(|cluster| counter(cluster) == 1));
        assert_eq!(counter(all), 0);
        assert!(write_tables(&file, 1 << 60).is_err());
    }
}
