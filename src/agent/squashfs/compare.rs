//! Finds files that were touched but kept their content: the mode or owner changed, or a package was installed again.
//! Reading a block is cheaper than compressing it. Reads the base image and the root.

use std::{
    collections::HashMap,
    io::{self, Read},
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
};

use super::{
    base::{Base, Content},
    pack::open_found,
    stop::Stop,
    tree::{Found, Tree},
};

/// A file of the tree and the base's file at the same path.
type Pair = (usize, usize);

/// Files that equal the base's file at the same path. Skips those in `taken`, which maps nodes to files of the base.
pub fn equal_files(base: &Base, tree: &Tree, taken: &HashMap<usize, usize>, cpus: u32) -> Result<Vec<Pair>, Stop> {
    let by_path: HashMap<&Path, usize> = base.paths.iter().map(|(path, file)| (path.as_path(), *file)).collect();
    let pairs: Vec<(Pair, &Found)> = tree
        .files()
        .filter(|(node, found)| found.size > 0 && !taken.contains_key(node))
        .filter_map(|(node, found)| {
            let file = *by_path.get(tree.relative_path(node).as_path())?;
            (base.files[file].content.size == found.size).then_some(((node, file), found))
        })
        .collect();
    let threads = (cpus.max(1) as usize).min(pairs.len());
    let work = Mutex::new(pairs.into_iter());
    let one_after_the_other = || -> Result<Vec<Pair>, Stop> {
        let mut last = Last::default();
        let mut equal = Vec::new();
        loop {
            let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((pair, found)) = next else {
                return Ok(equal);
            };
            if is_equal(base, &base.files[pair.1].content, &tree.path(pair.0), found, &mut last)? {
                equal.push(pair);
            }
        }
    };
    thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(one_after_the_other)).collect();
        let mut equal = one_after_the_other()?;
        for helper in helpers {
            equal.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(equal)
    })
}

/// The fragment unpacked last: the next file is probably in the same one.
#[derive(Debug, Default)]
struct Last(Option<(u32, Vec<u8>)>);

impl Last {
    fn fragment(&mut self, base: &Base, number: u32) -> Result<&[u8], Stop> {
        if self.0.as_ref().is_none_or(|(last, _)| *last != number) {
            let fragment = base.fragments[number as usize];
            self.0 = Some((number, base.block(fragment.start, fragment.size)?));
        }
        Ok(self.0.as_ref().map_or(&[], |(_, bytes)| bytes))
    }
}

fn is_equal(base: &Base, content: &Content, path: &Path, found: &Found, last: &mut Last) -> Result<bool, Stop> {
    let mut file = open_found(path, found)?;
    let block_size = u64::from(base.superblock.block_size);
    let (mut left, mut start) = (content.size, content.start);
    let mut piece = Vec::new();
    for size in &content.blocks {
        let length = left.min(block_size);
        let is = next_piece(&mut file, length, &mut piece)?;
        let same = if *size == 0 {
            is.iter().all(|byte| *byte == 0)
        } else {
            is == base.block(start, *size)?
        };
        if !same {
            return Ok(false);
        }
        left -= length;
        start += Content::stored_size(*size);
    }
    let Some(tail) = content.tail else {
        return Ok(left == 0);
    };
    let is = next_piece(&mut file, left, &mut piece)?;
    let from = tail.offset as usize;
    let was = last.fragment(base, tail.fragment)?.get(from..from + tail.size as usize);
    Ok(was == Some(is))
}

/// The next `length` bytes, or fewer at the end of the file.
fn next_piece<'a>(file: &mut fs_err::File, length: u64, piece: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
    piece.clear();
    file.take(length).read_to_end(piece)?;
    Ok(piece)
}
