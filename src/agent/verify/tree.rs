//! Compares whole trees of files: paths, types, modes, owners, sizes, hard links, extended attributes (including
//! capabilities), content, link targets and device numbers. Times are not compared. Reads the trees only.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    io::{self, Read},
    os::unix::{
        ffi::OsStringExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{lgetxattr, llistxattr, major, minor},
    io::Errno,
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
    Bytes { size: u64, sha256: [u8; 32] },
    Target(PathBuf),
    Device(u64),
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no content"),
            Self::Bytes { size, sha256 } => write!(f, "{size} bytes ({}…)", hex::encode(&sha256[..6])),
            Self::Target(path) => write!(f, "target {}", path.display()),
            Self::Device(number) => write!(f, "number {}:{}", major(*number), minor(*number)),
        }
    }
}

/// An aspect in which an entry differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Aspect {
    Presence,
    Kind,
    Mode,
    Owner,
    Attributes,
    HardLink,
    Content,
}

/// One difference between two trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The path of the entry.
    pub path: PathBuf,
    aspect: Aspect,
    what: String,
}

impl Difference {
    /// What differences that come from the same cause have in common. Names in a directory may be random, so that other
    /// ones come and go each time.
    pub fn likeness(&self) -> Likeness<'_> {
        let place = match self.aspect {
            Aspect::Presence => self.path.parent(),
            _ => Some(self.path.as_path()),
        };
        Likeness(self.aspect, place)
    }
}

/// Equal for differences that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Likeness<'a>(Aspect, Option<&'a Path>);

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.display(), self.what)
    }
}

/// Reads a tree, without what is mounted in it. Only root may read all of it.
///
/// # Errors
///
/// Something cannot be read.
pub fn read(top: &Path) -> io::Result<Tree> {
    let mut reader = Reader {
        top,
        device: fs_err::symlink_metadata(top)?.dev(),
        tree: Tree::new(),
        files: BTreeMap::new(),
    };
    reader.add(Path::new("/"))?;
    Ok(reader.tree)
}

struct Reader<'a> {
    top: &'a Path,
    device: u64,
    tree: Tree,
    /// The first path of each file that has several.
    files: BTreeMap<(u64, u64), PathBuf>,
}

impl Reader<'_> {
    fn add(&mut self, path: &Path) -> io::Result<()> {
        let real = self.top.join(path.strip_prefix("/").unwrap_or(path));
        let found = fs_err::symlink_metadata(&real)?;
        let kind = found.file_type();
        let mut same_as = None;
        if !kind.is_dir() && found.nlink() > 1 {
            let file = (found.dev(), found.ino());
            let first = self.files.entry(file).or_insert_with(|| path.to_owned());
            same_as = (first != path).then(|| first.clone());
        }
        let (kind, content) = if kind.is_dir() {
            ("directory", Content::None)
        } else if kind.is_symlink() {
            ("link", Content::Target(fs_err::read_link(&real)?))
        } else if kind.is_file() {
            ("file", bytes(&real)?)
        } else if kind.is_block_device() {
            ("block device", Content::Device(found.rdev()))
        } else if kind.is_char_device() {
            ("character device", Content::Device(found.rdev()))
        } else if kind.is_fifo() {
            ("fifo", Content::None)
        } else {
            ("socket", Content::None)
        };
        let node = Node {
            kind,
            mode: found.mode() & 0o7777,
            owner: (found.uid(), found.gid()),
            attributes: attributes(&real)?,
            same_as,
            content,
        };
        self.tree.insert(path.to_owned(), node);
        if found.is_dir() && found.dev() == self.device {
            let entries = fs_err::read_dir(&real)?.map(|entry| Ok(entry?.file_name()));
            let mut names = entries.collect::<io::Result<Vec<_>>>()?;
            names.sort();
            for name in names {
                self.add(&path.join(name))?;
            }
        }
        Ok(())
    }
}

fn bytes(path: &Path) -> io::Result<Content> {
    let (mut file, mut digest, mut size) = (fs_err::File::open(path)?, Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 18];
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        digest.update(&buffer[..count]);
        size += count as u64;
    }
    let sha256 = digest.finalize().into();
    Ok(Content::Bytes { size, sha256 })
}

fn attributes(path: &Path) -> io::Result<BTreeMap<OsString, Vec<u8>>> {
    /// The most bytes that Linux returns: for the names of a file, or for a value.
    const MOST: usize = 1 << 16;
    let mut buffer = vec![0; MOST];
    let size = match llistxattr(path, &mut buffer[..]) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        size => size?,
    };
    let names = buffer[..size].to_vec();
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let size = lgetxattr(path, name, &mut buffer[..])?;
            Ok((OsString::from_vec(name.to_vec()), buffer[..size].to_vec()))
        })
        .collect()
}

/// A file whose content may differ between two builds of the same recipe. Everything else of it must be equal.
#[derive(Debug, Clone, Copy)]
pub struct Unlike {
    /// Its path.
    pub path: &'static str,
    /// Why it differs, however the tools are run.
    pub why: &'static str,
}

/// Every difference of `other` from `one`, in the order of paths.
pub fn differences(one: &Tree, other: &Tree, unlike: &[Unlike]) -> Vec<Difference> {
    let mut found = Vec::new();
    for (path, node) in one {
        let mut say = |aspect, what| {
            let path = path.clone();
            found.push(Difference { path, aspect, what });
        };
        let Some(twin) = other.get(path) else {
            say(Aspect::Presence, "is missing".to_owned());
            continue;
        };
        let may_differ = unlike.iter().any(|unlike| Path::new(unlike.path) == path);
        if node.kind != twin.kind {
            let what = format!("is a {} instead of a {}", twin.kind, node.kind);
            say(Aspect::Kind, what);
            continue;
        }
        if node.mode != twin.mode {
            let what = format!("has mode {:o} instead of {:o}", twin.mode, node.mode);
            say(Aspect::Mode, what);
        }
        if node.owner != twin.owner {
            let shown = |(user, group): (u32, u32)| format!("{user}:{group}");
            let what = format!("belongs to {} instead of {}", shown(twin.owner), shown(node.owner));
            say(Aspect::Owner, what);
        }
        if node.attributes != twin.attributes {
            let (is, was) = (shown(&twin.attributes), shown(&node.attributes));
            say(Aspect::Attributes, format!("has {is} instead of {was}"));
        }
        if node.same_as != twin.same_as {
            let (is, was) = (file_of(twin), file_of(node));
            say(Aspect::HardLink, format!("is {is} instead of {was}"));
        }
        if node.content != twin.content && !may_differ {
            let what = format!("has {} instead of {}", twin.content, node.content);
            say(Aspect::Content, what);
        }
    }
    let besides = other.keys().filter(|path| !one.contains_key(*path));
    found.extend(besides.map(|path| Difference {
        path: path.clone(),
        aspect: Aspect::Presence,
        what: "is there besides".to_owned(),
    }));
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn shown(attributes: &BTreeMap<OsString, Vec<u8>>) -> String {
    if attributes.is_empty() {
        return "no attributes".to_owned();
    }
    let one = |(name, value): (&OsString, &Vec<u8>)| format!("{}={}", name.display(), value.escape_ascii());
    let all: Vec<_> = attributes.iter().map(one).collect();
    format!("attributes {}", all.join(" "))
}

fn file_of(node: &Node) -> String {
    match &node.same_as {
        Some(path) => format!("the same file as {}", path.display()),
        None => "a file of its own".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(path: &str) -> Difference {
        Difference {
            path: path.into(),
            aspect: Aspect::Presence,
            what: String::new(),
        }
    }

    fn content(path: &str) -> Difference {
        Difference {
            aspect: Aspect::Content,
            ..there(path)
        }
    }

    #[test]
    fn what_differs_each_time_is_known_by_its_path_or_as_a_name_in_its_directory() {
        let noise = [there("/var/cache/a1"), content("/etc/seed")];
        let noise: Vec<_> = noise.iter().map(Difference::likeness).collect();
        for (difference, is_like) in [
            (content("/etc/seed"), true),
            (there("/etc/seed"), false),
            (content("/etc/passwd"), false),
            (there("/var/cache/b2"), true),
            (content("/var/cache/b2"), false),
            (there("/var/cache/a1/x"), false),
        ] {
            assert_eq!(noise.contains(&difference.likeness()), is_like, "{difference:?}");
        }
    }
}
