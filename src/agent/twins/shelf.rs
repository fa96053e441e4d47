//! Stores files for the directory of twins: first aside, then published in one step each. Touches the two directories
//! of the shelf only.

use std::{
    fs::Permissions,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::{choice::Id, layout};

/// A directory that is mounted into the root, and another on the same file system that is not.
#[derive(Debug)]
pub struct Shelf {
    mounted: PathBuf,
    store: PathBuf,
}

impl Shelf {
    /// Makes both directories in the empty directory `dir`.
    pub fn new(dir: &Path) -> io::Result<Self> {
        let shelf = Self {
            mounted: dir.join("mounted"),
            store: dir.join("store"),
        };
        fs_err::create_dir(&shelf.store)?;
        shelf.make_dir("")?;
        Ok(shelf)
    }

    /// The mounted directory.
    pub fn mounted(&self) -> &Path {
        &self.mounted
    }

    /// Makes a directory that all users may read.
    pub fn make_dir(&self, name: &str) -> io::Result<()> {
        let dir = self.mounted.join(name);
        fs_err::create_dir(&dir)?;
        set_mode(&dir, 0o755)
    }

    /// Stores `file` unchanged. It is linked, not copied, where possible.
    pub fn keep(&self, id: Id, file: &Path, mode: u32) -> io::Result<()> {
        let kept = self.kept(id);
        if fs_err::hard_link(file, &kept).is_err() {
            fs_err::copy(file, &kept)?;
        }
        set_mode(&kept, mode)
    }

    /// Stores a file with these bytes.
    pub fn keep_bytes(&self, id: Id, bytes: &[u8], mode: u32) -> io::Result<()> {
        let kept = self.kept(id);
        fs_err::write(&kept, bytes)?;
        set_mode(&kept, mode)
    }

    /// Removes a stored file. A published link to it stays.
    pub fn discard(&self, id: Id) -> io::Result<()> {
        gone(&self.kept(id))
    }

    /// Publishes a stored file under `name`, replacing any other file of that name.
    pub fn publish(&self, id: Id, name: &str) -> io::Result<()> {
        let new = self.store.join("new");
        // Left over when `name` was a link to this very file: renaming does nothing then.
        gone(&new)?;
        fs_err::hard_link(self.kept(id), &new)?;
        fs_err::rename(new, self.mounted.join(name))
    }

    /// Publishes a file with these bytes under `name`.
    pub fn publish_bytes(&self, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
        let new = self.store.join("new");
        gone(&new)?;
        fs_err::write(&new, bytes)?;
        set_mode(&new, mode)?;
        fs_err::rename(new, self.mounted.join(name))
    }

    /// Removes `name` from the mounted directory.
    pub fn withdraw(&self, name: &str) -> io::Result<()> {
        gone(&self.mounted.join(name))
    }

    fn kept(&self, id: Id) -> PathBuf {
        self.store.join(id.to_string())
    }
}

/// A path of the layout, as a name in the mounted directory.
pub fn below_mount(path: &str) -> &str {
    path.trim_start_matches(layout::MOUNT).trim_matches('/')
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs_err::set_permissions(path, Permissions::from_mode(mode))
}

fn gone(path: &Path) -> io::Result<()> {
    match fs_err::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
