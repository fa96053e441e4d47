//! Reads a squashfs with `unsquashfs`.

use std::{collections::BTreeMap, path::Path};

use super::tool;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its mode as `ls -l` prints it: `-rwsr-xr-x`.
    pub mode: String,
    pub uid: u32,
    pub gid: u32,
}

impl Entry {
    pub fn new(mode: &str, uid: u32, gid: u32) -> Self {
        Self {
            mode: mode.to_owned(),
            uid,
            gid,
        }
    }
}

/// Every entry by its path, which begins with `/`; the top is the empty path.
pub fn list(image: &Path) -> BTreeMap<String, Entry> {
    let text = tool("unsquashfs", &["-lln", image.to_str().unwrap()]);
    let entry = |line: &str| {
        // `-rw-r----- 0/42   501 2026-11-21 07:00 squashfs-root/etc/shadow`
        let mut words = line.split_whitespace();
        let mode = words.next().filter(|mode| mode.len() == 10)?;
        let (uid, gid) = words.next()?.split_once('/')?;
        let (_, path) = line.split_once(" squashfs-root")?;
        let path = path.split(" -> ").next()?;
        Some((path.to_owned(), Entry::new(mode, uid.parse().ok()?, gid.parse().ok()?)))
    };
    text.lines().filter_map(entry).collect()
}

/// Unpacks some paths, or everything, below `into`.
pub fn unpack(image: &Path, into: &Path, paths: &[&str]) {
    let mut args = vec![
        "-no-progress",
        "-force",
        "-d",
        into.to_str().unwrap(),
        image.to_str().unwrap(),
    ];
    args.extend(paths);
    tool("unsquashfs", &args);
}

/// The content of one file.
pub fn read(image: &Path, path: &str) -> String {
    tool("unsquashfs", &["-cat", image.to_str().unwrap(), path])
}
