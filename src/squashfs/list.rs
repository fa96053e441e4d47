//! Lists a directory, or all that is below it. Reads the image only.

use std::{
    collections::HashSet,
    io::{Read, Seek},
    vec::IntoIter,
};

use super::{
    directory::{Entry, MAX_ENTRIES},
    image::Image,
    inode::{Inode, Kind},
    metadata::Place,
    path::{Found, append},
    unread::{Unread, damaged},
};

/// The most bytes of all paths of one answer.
const MAX_PATHS: usize = 256 << 20;

impl<R: Read + Seek> Image<R> {
    /// What is in a directory, by name; `deep` means all below it, each directory before what is in it. Anything but a
    /// directory is listed itself.
    ///
    /// # Errors
    ///
    /// When there is too much, and when the image cannot be read.
    pub fn list(&mut self, found: Found, deep: bool) -> Result<Vec<Found>, Unread> {
        let Kind::Directory(directory) = found.inode.kind else {
            return Ok(vec![found]);
        };
        let mut seen = HashSet::from([found.inode.place]);
        // Directories that are being listed, each with its entries that are still to come.
        let entries = self.entries(directory)?;
        // All that was read counts, listed or not yet.
        let mut read = entries.len();
        let mut open = vec![(found.path, entries.into_iter())];
        let (mut listed, mut bytes) = (Vec::new(), 0);
        while let Some((above, entries)) = open.last_mut() {
            let Some(entry) = entries.next() else {
                open.pop();
                continue;
            };
            let mut path = above.clone();
            append(&mut path, &entry.name);
            bytes += path.len();
            if read > MAX_ENTRIES || bytes > MAX_PATHS {
                return Err(Unread::TooMuch(format!(
                    "it has more than {MAX_ENTRIES} files, or their paths are too long"
                )));
            }
            let inode = self.inode_of(&entry)?;
            if deep && let Some(below) = self.below(&inode, &mut seen)? {
                read += below.len();
                open.push((path.clone(), below));
            }
            listed.push(Found { path, inode });
        }
        Ok(listed)
    }

    /// The entries of a directory that was not seen before: directories have no hard links, and none is in itself.
    fn below(&mut self, inode: &Inode, seen: &mut HashSet<Place>) -> Result<Option<IntoIter<Entry>>, Unread> {
        let Kind::Directory(directory) = inode.kind else {
            return Ok(None);
        };
        if !seen.insert(inode.place) {
            return Err(damaged("a directory is in two places"));
        }
        Ok(Some(self.entries(directory)?.into_iter()))
    }
}
