//! Scans the current state of the root. Reads metadata of files, never their content.

use std::{
    collections::HashMap,
    ffi::OsString,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use nix::sys::stat::{major, minor};

use super::{
    device::Device,
    ids::Ids,
    stop::{Stop, unfit},
    unpacked,
    xattrs::Xattrs,
};

/// All inodes of a root, without the content of files.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    /// The root directory comes first, and every directory precedes its children. A file with several hard links
    /// appears once.
    pub nodes: Vec<Node>,
    pub ids: Ids,
    pub xattrs: Xattrs,
}

/// One inode.
#[derive(Debug)]
pub struct Node {
    /// The directory that contains it; the first, if there are several. The root directory contains itself.
    parent: usize,
    name: OsString,
    pub kind: Kind,
    /// Permissions, with set-id and sticky bits.
    pub mode: u16,
    /// Indexes into the table of ids.
    pub owner: (u16, u16),
    /// Seconds since 1970.
    pub mtime: u32,
    /// Number of its paths; for a directory, as file systems count them.
    pub links: u32,
    /// Its set of extended attributes.
    pub xattrs: Option<u32>,
}

/// The type of an inode.
#[derive(Debug)]
pub enum Kind {
    Directory {
        parent: usize,
        /// Names and nodes, sorted.
        children: Vec<(OsString, usize)>,
    },
    File(Found),
    Link(Vec<u8>),
    /// Devices carry their number in squashfs's form.
    BlockDevice(u32),
    CharacterDevice(u32),
    Fifo,
    Socket,
}

/// A regular file in the root.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// Identifies the file's state: a changed file has a different key.
    pub key: (u64, i64, i64, u64),
    /// Size in bytes.
    pub size: u64,
    /// The file takes fewer bytes on disk than its size.
    pub sparse: bool,
}

impl Tree {
    /// Scans everything below `root`.
    pub fn scan(root: &Path) -> Result<Self, Stop> {
        let mut tree = Self {
            root: root.to_owned(),
            nodes: Vec::new(),
            ids: Ids::default(),
            xattrs: Xattrs::default(),
        };
        let mut linked = HashMap::new();
        tree.add(0, OsString::new(), root, &mut linked)?;
        let mut index = 0;
        // New nodes are appended while the loop runs, so it visits all of them.
        while index < tree.nodes.len() {
            if matches!(tree.nodes[index].kind, Kind::Directory { .. }) {
                tree.scan_directory(index, &mut linked)?;
            }
            index += 1;
        }
        Ok(tree)
    }

    /// The path of a node in the file system.
    pub fn path(&self, node: usize) -> PathBuf {
        self.root.join(self.relative_path(node))
    }

    /// The path of a node in the root; its first, if there are several.
    pub fn relative_path(&self, mut node: usize) -> PathBuf {
        let mut names = Vec::new();
        while node != 0 {
            names.push(&self.nodes[node].name);
            node = self.nodes[node].parent;
        }
        names.into_iter().rev().collect()
    }

    /// The regular files.
    pub fn files(&self) -> impl Iterator<Item = (usize, &Found)> {
        self.nodes.iter().enumerate().filter_map(|(node, it)| match &it.kind {
            Kind::File(found) => Some((node, found)),
            _ => None,
        })
    }

    fn scan_directory(&mut self, index: usize, linked: &mut HashMap<(u64, u64), usize>) -> Result<(), Stop> {
        let path = self.path(index);
        let mut names = Vec::new();
        for entry in fs_err::read_dir(&path)? {
            names.push(entry?.file_name());
        }
        names.sort_unstable_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            let node = self.add(index, name.clone(), &path.join(&name), linked)?;
            found.push((name, node));
        }
        let directories = found.iter().filter(|(_, node)| self.is_directory(*node)).count();
        let node = &mut self.nodes[index];
        // As ext4 counts: its own entry, its `.`, and the `..` of each subdirectory.
        node.links = u32::try_from(directories + 2).map_err(unfit)?;
        if let Kind::Directory { children, .. } = &mut node.kind {
            *children = found;
        }
        Ok(())
    }

    fn is_directory(&self, node: usize) -> bool {
        matches!(self.nodes[node].kind, Kind::Directory { .. })
    }

    fn add(
        &mut self,
        parent: usize,
        name: OsString,
        path: &Path,
        linked: &mut HashMap<(u64, u64), usize>,
    ) -> Result<usize, Stop> {
        let stat = fs_err::symlink_metadata(path)?;
        let index = self.nodes.len();
        if !stat.is_dir() && stat.nlink() > 1 {
            let first = *linked.entry((stat.dev(), stat.ino())).or_insert(index);
            if first != index {
                self.nodes[first].links += 1;
                return Ok(first);
            }
        }
        let kind = stat.file_type();
        let kind = if kind.is_dir() {
            let children = Vec::new();
            Kind::Directory { parent, children }
        } else if kind.is_file() {
            Kind::File(Found {
                key: unpacked::key(&stat),
                size: stat.size(),
                sparse: stat.blocks().saturating_mul(512) < stat.size(),
            })
        } else if kind.is_symlink() {
            Kind::Link(fs_err::read_link(path)?.into_os_string().into_vec())
        } else if kind.is_block_device() {
            Kind::BlockDevice(device(major(stat.rdev()), minor(stat.rdev()))?)
        } else if kind.is_char_device() {
            Kind::CharacterDevice(device(major(stat.rdev()), minor(stat.rdev()))?)
        } else if kind.is_fifo() {
            Kind::Fifo
        } else if kind.is_socket() {
            Kind::Socket
        } else {
            return Err(unfit(format!("{} is of no known type", path.display())));
        };
        let node = Node {
            parent,
            name,
            kind,
            mode: u16::try_from(stat.mode() & 0o7777).map_err(unfit)?,
            owner: (self.ids.of(stat.uid())?, self.ids.of(stat.gid())?),
            mtime: time(stat.mtime()),
            links: 1,
            xattrs: self.xattrs.of(path)?,
        };
        self.push(node)
    }

    fn push(&mut self, node: Node) -> Result<usize, Stop> {
        let index = self.nodes.len();
        // Inode numbers have 32 bits and start at 1.
        u32::try_from(index + 2).map_err(unfit)?;
        self.nodes.push(node);
        Ok(index)
    }

    /// Adds a device node that does not exist in the root, in a directory that does.
    pub fn add_device(&mut self, added: &Device) -> Result<(), Stop> {
        let (major, minor) = added.number;
        let number = device(major.into(), minor.into())?;
        let path = Path::new(&added.path);
        let parent = path.parent().and_then(|dir| self.directory(dir));
        let (Some(parent), Some(name)) = (parent, path.file_name()) else {
            return Err(unfit("a device node is in no directory"));
        };
        let node = Node {
            parent,
            name: name.to_owned(),
            kind: if added.kind == 'b' {
                Kind::BlockDevice(number)
            } else {
                Kind::CharacterDevice(number)
            },
            mode: u16::try_from(added.mode & 0o7777).map_err(unfit)?,
            owner: (self.ids.of(added.owner.0)?, self.ids.of(added.owner.1)?),
            mtime: time(added.time),
            links: 1,
            xattrs: None,
        };
        let index = self.push(node)?;
        if let Kind::Directory { children, .. } = &mut self.nodes[parent].kind {
            let at = children.partition_point(|(other, _)| other.as_bytes() < name.as_bytes());
            children.insert(at, (name.to_owned(), index));
        }
        Ok(())
    }

    /// The node of a directory of the root.
    fn directory(&self, path: &Path) -> Option<usize> {
        path.iter().try_fold(0, |node, name| match &self.nodes[node].kind {
            Kind::Directory { children, .. } => {
                let found = children.binary_search_by(|(other, _)| other.as_bytes().cmp(name.as_bytes()));
                found.ok().map(|at| children[at].1)
            }
            _ => None,
        })
    }
}

/// A time in squashfs's form, clamped to the range it can express: 1970 to 2106.
fn time(seconds: i64) -> u32 {
    u32::try_from(seconds.max(0)).unwrap_or(u32::MAX)
}

/// A device number in squashfs's form: 12 bits of major, 20 of minor.
fn device(major: u64, minor: u64) -> Result<u32, Stop> {
    let outside = || unfit("a device has a number that does not fit into squashfs");
    let major = u32::try_from(major).ok().filter(|major| *major < 1 << 12);
    let minor = u32::try_from(minor).ok().filter(|minor| *minor < 1 << 20);
    let (major, minor) = major.zip(minor).ok_or_else(outside)?;
    Ok(major << 8 | minor & 0xff | (minor & !0xff) << 12)
}
