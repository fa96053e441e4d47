//! Makes recipe archives, including ones that no honest tool would make.

use std::{
    io::{Read, Write},
    path::PathBuf,
};

use flate2::{Compression, write::GzEncoder};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

/// An archive under construction.
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
    /// An archive with a harmless `config.xml`.
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
        self.named(name.as_bytes(), 0o644, content)
    }

    /// A file with these permission bits and a name that need not be UTF-8.
    #[must_use]
    pub fn named(self, name: &[u8], mode: u32, content: &[u8]) -> Self {
        self.entry(EntryType::Regular, name, "", mode, content.len() as u64, content)
    }

    /// Adds that many empty files.
    #[must_use]
    pub fn empty_files(self, count: u32) -> Self {
        (0..count).fold(self, |archive, number| archive.file(&format!("many/{number}"), b""))
    }

    /// A file of this size that is one hole.
    #[must_use]
    pub fn hole(mut self, name: &str, size: u64) -> Self {
        let mut header = Header::new_gnu();
        header.set_path(name).unwrap();
        header.set_entry_type(EntryType::GNUSparse);
        header.set_size(0);
        header.set_mode(0o644);
        let gnu = header.as_gnu_mut().unwrap();
        gnu.set_real_size(size);
        gnu.sparse[0].set_offset(size);
        gnu.sparse[0].set_length(0);
        header.set_cksum();
        self.tar.append(&header, std::io::empty()).unwrap();
        self
    }

    #[must_use]
    pub fn link(self, kind: EntryType, name: &str, target: &str) -> Self {
        self.entry(kind, name.as_bytes(), target, 0o644, 0, std::io::empty())
    }

    /// Any entry; the name is written unchanged, even if the tar library would refuse it.
    fn entry(mut self, kind: EntryType, name: &[u8], target: &str, mode: u32, size: u64, content: impl Read) -> Self {
        let mut header = Header::new_gnu();
        let old = header.as_gnu_mut().unwrap();
        old.name[..name.len()].copy_from_slice(name);
        old.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(mode);
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

/// A file of any content, with the name of an archive.
pub fn no_archive(content: &[u8]) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recipe.tar.gz");
    fs_err::write(&path, content).unwrap();
    Made { path, _dir: dir }
}

/// A small archive with a file of that many zero bytes. Only zstd compresses them this well: gzip's best is a
/// thousandth.
pub fn bomb(size: u64) -> Made {
    packed_zeros("recipe.tar.zst", size, |file| {
        zstd::Encoder::new(file, 1).unwrap().auto_finish()
    })
}

/// The same with gzip.
pub fn gzip_bomb(size: u64) -> Made {
    packed_zeros("recipe.tar.gz", size, |file| {
        GzEncoder::new(file, Compression::default())
    })
}

fn packed_zeros<W: Write>(name: &str, size: u64, pack: impl FnOnce(fs_err::File) -> W) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    let mut tar = Builder::new(pack(fs_err::File::create(&path).unwrap()));
    let mut header = Header::new_gnu();
    header.set_path("zeros").unwrap();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    tar.append(&header, std::io::repeat(0).take(size)).unwrap();
    // Compressors end their streams when they are dropped.
    drop(tar.into_inner().unwrap());
    Made { path, _dir: dir }
}
