//! Compares whole trees of files: paths, types, modes, owners, sizes, hard links, extended attributes (including
//! capabilities), content, link targets and device numbers. Times are not compared.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// All entries of a tree by their path below the top, which begins with `/`.
pub type Tree = BTreeMap<PathBuf, Node>;

/// One entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    kind: &'static str,
    /// Permissions, with set-id and sticky bits.
    mode: u32,
    owner: (u32, u32),
    attributes: BTreeMap<OsString, Vec<u8>>,
    /// The first path of the same file, if it has several.
    same_as: Option<PathBuf>,
    content: Content,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    None,
    Bytes { size: u64, sha256: String },
    Target(PathBuf),
    Device(u64),
}

/// Reads a tree. Only root may read all of it.
pub fn read(top: &Path) -> Tree {
    let (mut tree, mut files) = (Tree::new(), BTreeMap::new());
    add(top, Path::new("/"), &mut tree, &mut files);
    tree
}

fn add(top: &Path, path: &Path, tree: &mut Tree, files: &mut BTreeMap<(u64, u64), PathBuf>) {
    let real = top.join(path.strip_prefix("/").unwrap());
    let found = fs_err::symlink_metadata(&real).unwrap();
    let kind = found.file_type();
    let mut same_as = None;
    if !kind.is_dir() && found.nlink() > 1 {
        let first = files
            .entry((found.dev(), found.ino()))
            .or_insert_with(|| path.to_owned());
        same_as = (first != path).then(|| first.clone());
    }
    let (kind, content) = if kind.is_dir() {
        ("directory", Content::None)
    } else if kind.is_symlink() {
        ("link", Content::Target(fs_err::read_link(&real).unwrap()))
    } else if kind.is_file() {
        let bytes = fs_err::read(&real).unwrap();
        let (size, sha256) = (bytes.len() as u64, hex::encode(Sha256::digest(&bytes)));
        ("file", Content::Bytes { size, sha256 })
    } else if kind.is_block_device() {
        ("block device", Content::Device(found.rdev()))
    } else if kind.is_char_device() {
        ("character device", Content::Device(found.rdev()))
    } else if kind.is_fifo() {
        ("fifo", Content::None)
    } else {
        ("socket", Content::None)
    };
    let attributes = xattr::list(&real).unwrap().map(|name| {
        let value = xattr::get(&real, &name).unwrap().unwrap();
        (name, value)
    });
    let node = Node {
        kind,
        mode: found.mode() & 0o7777,
        owner: (found.uid(), found.gid()),
        attributes: attributes.collect(),
        same_as,
        content,
    };
    tree.insert(path.to_owned(), node);
    if found.is_dir() {
        let mut names: Vec<_> = fs_err::read_dir(&real)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        for name in names {
            add(top, &path.join(name), tree, files);
        }
    }
}

/// A file whose content may differ between two builds of the same recipe. Everything else of it must be equal.
#[derive(Debug, Clone, Copy)]
pub struct Unlike {
    pub path: &'static str,
    /// Why it differs, however the tools are run.
    pub why: &'static str,
}

/// Every difference between `one` and `other`, one per line.
pub fn differences(one: &Tree, other: &Tree, unlike: &[Unlike]) -> Vec<String> {
    let mut found = Vec::new();
    let mut say = |path: &Path, what: String| found.push(format!("{}: {what}", path.display()));
    for (path, node) in one {
        let Some(twin) = other.get(path) else {
            say(path, "is missing".to_owned());
            continue;
        };
        let may_differ = unlike.iter().any(|unlike| Path::new(unlike.path) == path);
        if node.kind != twin.kind {
            say(path, format!("is a {} instead of a {}", twin.kind, node.kind));
            continue;
        }
        if node.mode != twin.mode {
            say(path, format!("has mode {:o} instead of {:o}", twin.mode, node.mode));
        }
        if node.owner != twin.owner {
            say(path, format!("belongs to {:?} instead of {:?}", twin.owner, node.owner));
        }
        if node.attributes != twin.attributes {
            let (is, was) = (&twin.attributes, &node.attributes);
            say(path, format!("has the attributes {is:?} instead of {was:?}"));
        }
        if node.same_as != twin.same_as {
            let (is, was) = (&twin.same_as, &node.same_as);
            say(path, format!("is the same file as {is:?} instead of {was:?}"));
        }
        if node.content != twin.content && !may_differ {
            say(path, format!("has {:?} instead of {:?}", twin.content, node.content));
        }
    }
    for path in other.keys().filter(|path| !one.contains_key(*path)) {
        say(path, "is there besides".to_owned());
    }
    found
}
