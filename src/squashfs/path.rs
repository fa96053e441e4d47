//! Finds what a path names, as the kernel would with the image as its root. Reads the image only.

use std::{
    collections::VecDeque,
    io::{Read, Seek},
};

use super::{
    image::Image,
    inode::{Inode, Kind},
    unread::Unread,
};

/// The most links that lead from one to the next, as in Linux.
const MAX_LINKS: usize = 40;

/// The most names on the way to a file, those in links among them: paths of Linux have 4096 bytes.
const MAX_NAMES: usize = 4096;

/// What a path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its path from the root, without links on the way: `/usr/bin/ls`.
    pub path: Vec<u8>,
    /// What is there.
    pub inode: Inode,
}

impl<R: Read + Seek> Image<R> {
    /// What `given` names, with or without a slash before it. Links on the way are followed, and never lead out of the
    /// image; a link at the end is followed if `follow` says so, or a slash comes after it.
    ///
    /// # Errors
    ///
    /// When there is nothing, and when the image cannot be read.
    pub fn find(&mut self, given: &[u8], follow: bool) -> Result<Found, Unread> {
        let follow = follow || given.ends_with(b"/");
        let mut ahead: VecDeque<Vec<u8>> = parts(given).collect();
        let (mut links, mut names) = (0, 0);
        let root = self.root()?;
        // The directories from the root to here, with their names.
        let mut here: Vec<(Vec<u8>, Inode)> = Vec::new();
        while let Some(name) = ahead.pop_front() {
            names += 1;
            if names > MAX_NAMES {
                return Err(Unread::TooMuch(format!(
                    "{} leads through too many directories",
                    shown(given)
                )));
            }
            let inode = here.last().map_or(&root, |(_, inode)| inode);
            let Kind::Directory(directory) = inode.kind else {
                return Err(Unread::Missing(format!("{} is not a directory", shown(&joined(&here)))));
            };
            if name == b".." {
                here.pop();
                continue;
            }
            let entries = self.entries(directory)?;
            let entry = entries.iter().find(|entry| entry.name == name);
            let Some(entry) = entry else {
                let mut path = joined(&here);
                append(&mut path, &name);
                return Err(Unread::Missing(format!("there is no {}", shown(&path))));
            };
            let inode = self.inode_of(entry)?;
            match &inode.kind {
                Kind::Link(target) if follow || !ahead.is_empty() => {
                    links += 1;
                    if links > MAX_LINKS {
                        let detail = format!("{} leads through more than {MAX_LINKS} links", shown(given));
                        return Err(Unread::Missing(detail));
                    }
                    if target.starts_with(b"/") {
                        here.clear();
                    }
                    for part in parts(target).collect::<Vec<_>>().into_iter().rev() {
                        ahead.push_front(part);
                    }
                }
                _ => here.push((name, inode)),
            }
        }
        let path = joined(&here);
        let inode = here.pop().map_or(root, |(_, inode)| inode);
        if given.ends_with(b"/") && !matches!(inode.kind, Kind::Directory(_)) {
            return Err(Unread::Missing(format!("{} is not a directory", shown(&path))));
        }
        Ok(Found { path, inode })
    }
}

fn parts(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/');
    parts.filter(|part| !matches!(*part, b"" | b".")).map(<[u8]>::to_vec)
}

fn joined(here: &[(Vec<u8>, Inode)]) -> Vec<u8> {
    let mut path = b"/".to_vec();
    for (name, _) in here {
        append(&mut path, name);
    }
    path
}

/// Adds a name to a path.
pub(super) fn append(path: &mut Vec<u8>, name: &[u8]) {
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
