//! Decides which blocks of the base are kept, and copies them into the new image. Reads the base; writes the new image
//! only.

use std::{
    io::{self, Read, Seek, SeekFrom},
    ops::Range,
};

use super::{
    NotPossible,
    base::{Base, Content, PLAIN, Tail},
    stop::{Stop, damaged},
};

/// The kept data must be at least half of the base's to be worth the dead space. The limit also bounds the dead space
/// of an image that is customized again and again.
const WORTH: u64 = 2;

/// How a fragment of the base is kept that contains ends of kept files.
#[derive(Debug)]
struct Kept {
    /// The fragment's number in the base.
    number: u32,
    /// The bytes that are kept, sorted.
    live: Vec<Range<u32>>,
    /// Every file in the fragment is kept, so it is copied unchanged. Otherwise a file in it was deleted and its bytes
    /// must not reach the new image.
    whole: bool,
}

/// The plan of which blocks are taken from the base.
#[derive(Debug)]
pub struct Reuse {
    /// Blocks that are copied unchanged, sorted and merged.
    ranges: Vec<Range<u64>>,
    /// In their order in the new image.
    fragments: Vec<Kept>,
    /// Bytes that are copied unchanged.
    pub bytes: u64,
}

impl Reuse {
    /// Plans the copy for the files whose element of `live` is true.
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

    /// Copies all unchanged blocks to the same offsets in `out`, leaving holes elsewhere.
    pub fn copy(&self, base: &Base, out: &std::fs::File) -> Result<(), Stop> {
        let (mut from, mut to) = (base.file.file(), out);
        // The compressor's options are kept too.
        let options = super::superblock::SIZE as u64..base.data;
        for range in std::iter::once(&options).chain(&self.ranges) {
            let size = range.end - range.start;
            from.seek(SeekFrom::Start(range.start))?;
            to.seek(SeekFrom::Start(range.start))?;
            // The kernel copies, and shares the space where the file system supports it.
            if io::copy(&mut from.take(size), &mut to)? < size {
                return Err(damaged("it became shorter"));
            }
        }
        Ok(())
    }

    /// The fragments of the new image in order: the number in the base, and new content for those that are not copied
    /// unchanged.
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
    /// The kept bytes of a fragment, with zeros in place of the rest.
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

/// The kept bytes of one fragment. `tails` lists every file's end in it.
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn ranges_are_joined() {
        assert_eq!(joined(vec![5..7, 1..2, 6..9, 2..3, 4..4, 6..7]), [1..3, 5..9]);
    }

    /// Small files share a block, so that block must not be kept unchanged once one of them was deleted.
    #[test]
    fn nothing_of_a_deleted_file_stays_in_a_fragment() {
        let dir = tempfile::tempdir().unwrap();
        let (source, image) = (dir.path().join("source"), dir.path().join("image"));
        fs_err::create_dir(&source).unwrap();
        fs_err::write(source.join("large"), vec![1; 200_000]).unwrap();
        for (name, content) in [("a", "first"), ("b", "a secret"), ("c", "last"), ("d", "also secret")] {
            fs_err::write(source.join(name), content).unwrap();
        }
        let packed = Command::new("mksquashfs")
            .args([&source, &image])
            .args(["-noD", "-noF"])
            .output();
        assert!(packed.unwrap().status.success());
        let base = Base::read(&image, None).unwrap();
        let plan = |gone: &[&str]| {
            let mut live = vec![true; base.files.len()];
            for (path, file) in &base.paths {
                live[*file] = !gone.contains(&path.to_str().unwrap());
            }
            let reuse = Reuse::plan(&base, &live).unwrap();
            let contents: Vec<_> = reuse.fragments(&base).map(|(_, content)| content.unwrap()).collect();
            contents
        };
        assert_eq!(plan(&[]), [None]);
        assert_eq!(plan(&["b", "d"]), [Some(b"first\0\0\0\0\0\0\0\0last".to_vec())]);
        assert_eq!(plan(&["a", "b", "c", "d"]), []);
    }
}
