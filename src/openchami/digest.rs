//! The tag of a layer of a manifest: a digest of all that it is made of. Pure: the caller reads the files.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::{
    Wrong,
    fields::{At, Manners},
    patterns::left_out,
    yaml::parse,
};

/// What a path of a file is relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The directory of the manifest: layer files and files of variables.
    Manifest,
    /// Where image-thrillhouse would run: what layers copy.
    Work,
}

/// The files that tags are made of.
pub trait Inputs {
    /// The content of a file, whose path may be absolute.
    ///
    /// # Errors
    ///
    /// Why it cannot be read.
    fn file(&mut self, base: Base, path: &str) -> Result<Vec<u8>, String>;

    /// All that is in a directory, without itself, in any order; links are not followed. `None` if there is no directory.
    ///
    /// # Errors
    ///
    /// Why it cannot be read.
    fn tree(&mut self, base: Base, path: &str) -> Result<Option<Vec<Entry>>, String>;
}

/// A file of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path, relative to the directory, with `/`.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Its mode; the permission bits count.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// What a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A file with this content.
    File(Vec<u8>),
    /// A directory.
    Directory,
    /// A symbolic link to this.
    Link(String),
    /// Anything else.
    Other,
}

/// The tag of a layer: 32 hexadecimal digits. `rendered` is its file, with `__self_tag__` for its own tag; `parents` are the tags of the
/// layers that it depends on, in the order of the manifest.
///
/// # Errors
///
/// The file cannot be understood, or what it copies cannot be read.
pub fn tag(rendered: &str, parents: &[String], inputs: &mut dyn Inputs) -> Result<String, Wrong> {
    let mut sum = Sum(Sha256::new());
    for parent in parents {
        sum.sized(parent.as_bytes());
    }
    sum.sized(rendered.as_bytes());
    let node = parse(rendered, true)?;
    let mut layer = At::top(&node, Manners::Strict).fields()?.below("layer")?;
    for key in ["files", "repos"] {
        for at in layer.items(key)? {
            let mut fields = at.fields()?;
            if let Some(src) = fields.text("src")? {
                sum.sized(&file(inputs, &src)?);
            }
            if let Some(url) = fields.text("url")? {
                sum.sized(url.as_bytes());
            }
        }
    }
    for at in layer.items("directories")? {
        let mut fields = at.fields()?;
        let src = fields.need("src")?;
        let mut excludes = vec!["**/.git".to_owned()];
        excludes.extend(fields.texts("excludes")?);
        let modes = fields.text("mode")?.is_none();
        let owners = fields.flag("preserve_ownership", false)? && fields.text("owner")?.is_none();
        let entries = tree(inputs, &src)?.ok_or_else(|| Wrong::Input {
            path: src,
            why: "there is no such directory".to_owned(),
        })?;
        sum.tree(entries, &excludes, modes, owners);
    }
    let mut known = Vec::new();
    for at in layer.below("actions")?.items("commands")? {
        let mut fields = at.fields()?;
        let Some(at) = fields.get("ansible").filter(|at| !at.node.is_null()) else {
            continue;
        };
        let mut fields = at.fields()?;
        let mut new = |path: &str| {
            let clean: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
            let clean = (path.starts_with('/'), clean.join("/"));
            let new = !known.contains(&clean);
            known.push(clean);
            new
        };
        let playbook = fields.need("playbook")?;
        if new(&playbook) {
            sum.sized(&file(inputs, &playbook)?);
        }
        let roles = fields.text("roles")?.unwrap_or_else(|| "roles".to_owned());
        if new(&roles)
            && let Some(entries) = tree(inputs, &roles)?
        {
            sum.tree(entries, &[], true, false);
        }
        if let Some(inventory) = fields.text("inventory")?
            && new(&inventory)
        {
            match tree(inputs, &inventory)? {
                Some(entries) => sum.tree(entries, &[], true, false),
                None => sum.sized(&file(inputs, &inventory)?),
            }
        }
    }
    let digest = sum.0.finalize();
    let mut tag = String::new();
    for byte in digest.iter().take(16) {
        let _ = write!(tag, "{byte:02x}");
    }
    Ok(tag)
}

fn file(inputs: &mut dyn Inputs, path: &str) -> Result<Vec<u8>, Wrong> {
    inputs.file(Base::Work, path).map_err(|why| Wrong::Input {
        path: path.to_owned(),
        why,
    })
}

fn tree(inputs: &mut dyn Inputs, path: &str) -> Result<Option<Vec<Entry>>, Wrong> {
    inputs.tree(Base::Work, path).map_err(|why| Wrong::Input {
        path: path.to_owned(),
        why,
    })
}

struct Sum(Sha256);

impl Sum {
    fn sized(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    fn tree(&mut self, mut entries: Vec<Entry>, excludes: &[String], modes: bool, owners: bool) {
        entries.retain(|entry| !left_out(&entry.path, excludes));
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        for entry in entries {
            self.sized(entry.path.as_bytes());
            match &entry.kind {
                EntryKind::Link(target) => {
                    self.0.update(b"l");
                    self.sized(target.as_bytes());
                }
                EntryKind::Directory => self.0.update(b"d"),
                EntryKind::File(bytes) => {
                    self.0.update(b"f");
                    self.sized(bytes);
                }
                EntryKind::Other => {}
            }
            if modes {
                self.0.update((entry.mode & 0o777).to_be_bytes());
            }
            if owners {
                self.0.update(entry.uid.to_be_bytes());
                self.0.update(entry.gid.to_be_bytes());
            }
        }
    }
}
