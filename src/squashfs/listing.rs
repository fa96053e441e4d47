//! A directory's listing: runs of entries whose inodes lie close together.

use super::{
    fields::Put,
    metadata::{self, Place, Writer},
    stop::{Stop, unfit},
};

/// Most entries of a run.
const RUN: usize = 256;

/// One name.
#[derive(Debug)]
pub struct Entry<'a> {
    pub name: &'a [u8],
    /// Number of the inode.
    pub inode: u32,
    /// Where the inode is.
    pub place: Place,
    /// Type of the inode, without its longer form.
    pub kind: u16,
}

/// A step of the index that lets a large directory be searched without reading all of it.
#[derive(Debug)]
pub struct Step<'a> {
    /// Where in the listing the run begins.
    pub offset: u32,
    /// In which block of the table.
    pub block: u64,
    /// The run's first name.
    pub name: &'a [u8],
}

/// A listing that was written.
#[derive(Debug)]
pub struct Listing<'a> {
    pub place: Place,
    /// Bytes.
    pub size: u32,
    pub index: Vec<Step<'a>>,
}

impl<'a> Listing<'a> {
    /// Writes the listing of sorted entries.
    pub fn write(entries: &[Entry<'a>], table: &mut Writer) -> Result<Self, Stop> {
        let too_large = || unfit("a directory is too large");
        let mut listing = Self {
            place: table.place(),
            size: 0,
            index: Vec::new(),
        };
        let (mut rest, mut since_step) = (entries, 0);
        while let [first, ..] = rest {
            // A step must lead to the beginning of a run, and no two steps may be further apart than a block.
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

/// Bytes of an entry.
fn size(entry: &Entry<'_>) -> usize {
    8 + entry.name.len()
}

/// How many of the entries, at least the first, can be told relative to the first, in `room` bytes.
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
