//! Which blocks of the base stay.

use std::{
    io::{self, Read, Seek, SeekFrom},
    ops::Range,
};

use super::{
    NotPossible,
    base::{Base, Content, PLAIN, Tail},
    stop::{Stop, damaged},
};

/// Less than this part of the base's data is not worth the dead space: a half. It also bounds the dead space of an
/// image that is customized again and again.
const WORTH: u64 = 2;

/// What happens to a fragment of the base that has the ends of files that stay.
#[derive(Debug)]
struct Kept {
    /// Its number in the base.
    number: u32,
    /// Which of its bytes stay, sorted.
    live: Vec<Range<u32>>,
    /// All that any file has in it stays: it is taken as it is. Otherwise something of it was deleted, and must not be
    /// in the new image.
    whole: bool,
}

/// The plan of what is taken from the base.
#[derive(Debug)]
pub struct Reuse {
    /// Blocks that are taken as they are, sorted and joined.
    ranges: Vec<Range<u64>>,
    /// In the order that they have in the new image.
    fragments: Vec<Kept>,
    /// Bytes taken as they are.
    pub bytes: u64,
}

impl Reuse {
    /// What has to be taken for the files that `live` says yes to, by their index.
    pub fn plan(base: &Base, live: &[bool]) -> Result<Self, Stop> {
        let mut ranges = Vec::new();
        let mut tails: Vec<(Tail, bool)> = Vec::new();
        for (file, live) in base.files.iter().zip(live) {
            let Content { start, tail, .. } = file.content;
            tails.extend(tail.map(|tail| (tail, *live)));
            if *live {
                ranges.push(start..start + file.content.stored());
            }
        }
        tails.sort_unstable_by_key(|(tail, _)| (tail.fragment, tail.offset, tail.size));
        let fragments: Vec<Kept> = tails
            .chunk_by(|(one, _), (other, _)| one.fragment == other.fragment)
            .map(kept)
            .filter(|kept| !kept.live.is_empty())
            .collect();
        for kept in fragments.iter().filter(|kept| kept.whole) {
            let fragment = base.fragments[kept.number as usize];
            ranges.push(fragment.start..fragment.start + u64::from(fragment.size & !PLAIN));
        }
        let ranges = joined(ranges);
        let bytes = ranges.iter().map(|range| range.end - range.start).sum();
        let of = base.data_size();
        if bytes < of / WORTH {
            return Err(NotPossible::NotWorthIt { reused: bytes, of }.into());
        }
        Ok(Self {
            ranges,
            fragments,
            bytes,
        })
    }

    /// Copies all that is taken as it is to the same place in `out`, and leaves holes elsewhere.
    pub fn copy(&self, base: &Base, out: &std::fs::File) -> Result<(), Stop> {
        let (mut from, mut to) = (base.file.file(), out);
        // The compressor's options stay as well.
        let options = super::superblock::SIZE as u64..base.data;
        for range in std::iter::once(&options).chain(&self.ranges) {
            let size = range.end - range.start;
            from.seek(SeekFrom::Start(range.start))?;
            to.seek(SeekFrom::Start(range.start))?;
            // The kernel copies, and shares the space where the file system can.
            if io::copy(&mut from.take(size), &mut to)? < size {
                return Err(damaged("it became shorter"));
            }
        }
        Ok(())
    }

    /// The fragments of the new image in their order: the number in the base, and the new content of those that are
    /// not taken as they are.
    pub fn fragments<'a>(
        &'a self,
        base: &'a Base,
    ) -> impl Iterator<Item = (u32, Result<Option<Vec<u8>>, Stop>)> + use<'a> {
        self.fragments.iter().map(|kept| {
            let content = if kept.whole {
                Ok(None)
            } else {
                kept.rest(base).map(Some)
            };
            (kept.number, content)
        })
    }
}

impl Kept {
    /// What stays of a fragment, with zeros instead of the rest.
    fn rest(&self, base: &Base) -> Result<Vec<u8>, Stop> {
        let fragment = base.fragments[self.number as usize];
        let old = base.block(fragment.start, fragment.size)?;
        let mut new = Vec::new();
        for range in &self.live {
            let range = range.start as usize..range.end as usize;
            let live = old
                .get(range.clone())
                .ok_or_else(|| damaged("the end of a file is not in its fragment"))?;
            new.resize(range.end.max(new.len()), 0);
            new[range].copy_from_slice(live);
        }
        Ok(new)
    }
}

/// What stays of one fragment, where `tails` is all that files have in it.
fn kept(tails: &[(Tail, bool)]) -> Kept {
    let range = |(tail, _): &(Tail, bool)| tail.offset..tail.offset + tail.size;
    let all = joined(tails.iter().map(range).collect());
    let live = joined(tails.iter().filter(|(_, live)| *live).map(range).collect());
    Kept {
        number: tails[0].0.fragment,
        whole: all == live,
        live,
    }
}

/// The same numbers in as few ranges as possible, sorted.
fn joined<T: Ord + Copy>(mut ranges: Vec<Range<T>>) -> Vec<Range<T>> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut joined: Vec<Range<T>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
