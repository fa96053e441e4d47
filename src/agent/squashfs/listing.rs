//! A directory's listing: runs of entries whose inodes lie close together. Pure: no I/O.

use super::{
    fields::Put,
    metadata::{self, Place, Writer},
    stop::{Stop, unfit},
};

/// The largest number of entries in a run.
const RUN: usize = 256;

/// One entry of a directory.
#[derive(Debug)]
pub struct Entry<'a> {
    pub name: &'a [u8],
    /// The inode's number.
    pub inode: u32,
    /// The inode's place.
    pub place: Place,
    /// The inode's type, in its short form.
    pub kind: u16,
}

/// An entry of the index that lets the kernel search a large directory without reading all of it.
#[derive(Debug)]
pub struct Step<'a> {
    /// Offset in the listing at which the run begins.
    pub offset: u32,
    /// The table's block that contains the run's start.
    pub block: u64,
    /// The run's first name.
    pub name: &'a [u8],
}

/// A written listing.
#[derive(Debug)]
pub struct Listing<'a> {
    pub place: Place,
    /// Size in bytes.
    pub size: u32,
    pub index: Vec<Step<'a>>,
}

impl<'a> Listing<'a> {
    /// Writes the listing of entries, which must be sorted.
    pub fn write(entries: &[Entry<'a>], table: &mut Writer) -> Result<Self, Stop> {
        let too_large = || unfit("a directory is too large");
        let mut listing = Self {
            place: table.place(),
            size: 0,
            index: Vec::new(),
        };
        let (mut rest, mut since_step) = (entries, 0);
        while let [first, ..] = rest {
            // An index entry must point to the start of a run, and two of them may be at most one block apart.
            let at = table.place();
            if since_step > 0 && since_step + size(first) + 12 > metadata::BLOCK {
                listing.index.push(Step {
                    offset: listing.size,
                    block: at.block,
                    name: first.name,
                });
                since_step = 0;
            }
            let run = &rest[..run_length(rest, metadata::BLOCK.saturating_sub(since_step + 12))];
            let bytes = encode(first, run)?;
            table.write(&bytes)?;
            since_step += bytes.len();
            let more = u32::try_from(bytes.len()).map_err(unfit)?;
            listing.size = listing.size.checked_add(more).ok_or_else(too_large)?;
            rest = &rest[run.len()..];
        }
        Ok(listing)
    }
}

/// The size of an entry in bytes.
fn size(entry: &Entry<'_>) -> usize {
    8 + entry.name.len()
}

/// How many entries, at least one, can be encoded relative to the first within `room` bytes.
fn run_length(entries: &[Entry<'_>], mut room: usize) -> usize {
    let first = &entries[0];
    let fits = |entry: &&Entry<'_>| {
        let near = i16::try_from(i64::from(entry.inode) - i64::from(first.inode)).is_ok();
        let left = room.checked_sub(size(entry));
        room = left.unwrap_or(0);
        near && left.is_some() && entry.place.block == first.place.block
    };
    entries.iter().take(RUN).take_while(fits).count().max(1)
}

fn encode(first: &Entry<'_>, run: &[Entry<'_>]) -> Result<Vec<u8>, Stop> {
    let mut bytes = Vec::new();
    bytes.put_u32(u32::try_from(run.len() - 1).map_err(unfit)?);
    bytes.put_u32(u32::try_from(first.place.block).map_err(unfit)?);
    bytes.put_u32(first.inode);
    for entry in run {
        let delta = i64::from(entry.inode) - i64::from(first.inode);
        bytes.put_u16(u16::try_from(entry.place.offset).map_err(unfit)?);
        bytes.extend(i16::try_from(delta).map_err(unfit)?.to_le_bytes());
        bytes.put_u16(entry.kind);
        bytes.put_u16(u16::try_from(entry.name.len() - 1).map_err(unfit)?);
        bytes.extend(entry.name);
    }
    Ok(bytes)
}
