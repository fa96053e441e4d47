//! Archives that no honest tool would make.

use std::{
    io::{Read, Write},
    path::PathBuf,
};

use flate2::{Compression, write::GzEncoder};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

/// An archive in the making.
pub struct Archive {
    dir: TempDir,
    path: PathBuf,
    tar: Builder<GzEncoder<fs_err::File>>,
}

/// An archive on disk.
pub struct Made {
    _dir: TempDir,
    pub path: PathBuf,
}

impl Made {
    pub fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

impl Archive {
    /// With a harmless `config.xml`.
    pub fn with_config() -> Self {
        let config = fs_err::read(super::source_dir().join("recipes/rpm-minimal/config.xml")).unwrap();
        Self::empty().file("config.xml", &config)
    }

    pub fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recipe.tar.gz");
        let tar = Builder::new(GzEncoder::new(
            fs_err::File::create(&path).unwrap(),
            Compression::fast(),
        ));
        Self { dir, path, tar }
    }

    #[must_use]
    pub fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(EntryType::Regular, name, "", content.len() as u64, content)
    }

    #[must_use]
    pub fn link(self, kind: EntryType, name: &str, target: &str) -> Self {
        self.entry(kind, name, target, 0, std::io::empty())
    }

    /// Any entry; the name is written as it is, which the tar library would refuse.
    fn entry(mut self, kind: EntryType, name: &str, target: &str, size: u64, content: impl Read) -> Self {
        let mut header = Header::new_gnu();
        let old = header.as_gnu_mut().unwrap();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o644);
        if kind == EntryType::Block {
            header.set_device_major(8).unwrap();
            header.set_device_minor(0).unwrap();
        }
        header.set_cksum();
        self.tar.append(&header, content).unwrap();
        self
    }

    pub fn made(self) -> Made {
        self.tar.into_inner().unwrap().finish().unwrap().flush().unwrap();
        Made {
            path: self.path,
            _dir: self.dir,
        }
    }
}

/// A file of any content, called an archive.
pub fn no_archive(content: &[u8]) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recipe.tar.gz");
    fs_err::write(&path, content).unwrap();
    Made { path, _dir: dir }
}

/// A small archive with a file of so many zero bytes. Only zstd packs them this well: gzip's best is a thousandth.
pub fn bomb(size: u64) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recipe.tar.zst");
    let packed = zstd::Encoder::new(fs_err::File::create(&path).unwrap(), 1).unwrap();
    let mut tar = Builder::new(packed);
    let mut header = Header::new_gnu();
    header.set_path("zeros").unwrap();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    tar.append(&header, std::io::repeat(0).take(size)).unwrap();
    tar.into_inner().unwrap().finish().unwrap();
    Made { path, _dir: dir }
}
