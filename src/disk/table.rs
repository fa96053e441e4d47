//! The partition table: a GPT and its protective MBR. Writes both to the disk.

use std::collections::BTreeMap;

use gpt::{
    DiskDevice, GptConfig,
    disk::LogicalBlockSize,
    mbr::ProtectiveMBR,
    partition::Partition,
    partition_types::{EFI, LINUX_FS, Type},
};
use uuid::Uuid;

const SECTOR: u64 = 512;

/// The ids of a disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ids {
    disk: Uuid,
    esp: Uuid,
    pub(super) root: Uuid,
    /// The serial number of the FAT.
    pub(super) volume: u32,
}

impl From<[u8; 32]> for Ids {
    fn from(seed: [u8; 32]) -> Self {
        use sha2::{Digest, Sha256};
        let id = |what: &str| {
            let digest: [u8; 32] = Sha256::new().chain_update(seed).chain_update(what).finalize().into();
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&digest[..16]);
            uuid::Builder::from_custom_bytes(bytes).into_uuid()
        };
        let [a, b, c, d, ..] = seed;
        Self {
            disk: id("disk"),
            esp: id("esp"),
            root: id("root"),
            volume: u32::from_le_bytes([a, b, c, d]),
        }
    }
}

/// Writes the table of a disk with so many bytes for an EFI system partition and a root file system: offset and size of each
/// in bytes.
pub(super) fn write<D: DiskDevice>(
    mut disk: D,
    size: u64,
    ids: &Ids,
    esp: (u64, u64),
    root: (u64, u64),
) -> std::io::Result<()> {
    let partition = |kind: Type, id, name: &str, (begin, size): (u64, u64)| Partition {
        part_type_guid: kind,
        part_guid: id,
        first_lba: begin / SECTOR,
        last_lba: (begin + size) / SECTOR - 1,
        flags: 0,
        name: name.to_owned(),
    };
    // All sectors but its own, as far as the field can say.
    let protected = u32::try_from(size / SECTOR - 1).unwrap_or(u32::MAX);
    let failed = std::io::Error::other::<gpt::mbr::MBRError>;
    ProtectiveMBR::with_lb_size(protected)
        .overwrite_lba0(&mut disk)
        .map_err(failed)?;
    let mut table = GptConfig::new()
        .writable(true)
        .logical_block_size(LogicalBlockSize::Lb512)
        .create_from_device(disk, Some(ids.disk))
        .map_err(std::io::Error::other)?;
    // A generic type: no system mounts it by itself.
    let partitions = [
        (1, partition(EFI, ids.esp, "efi", esp)),
        (2, partition(LINUX_FS, ids.root, "root", root)),
    ];
    table
        .update_partitions(BTreeMap::from(partitions))
        .map_err(std::io::Error::other)?;
    table.write().map(drop).map_err(std::io::Error::other)
}
