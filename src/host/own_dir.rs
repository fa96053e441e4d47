//! Directories for what a process has as long as it lives: downloads, sockets. Writes below a directory that its caller names.
//!
//! A directory is locked for as long as its process lives. What a killed process left is removed by the next one.

use std::{
    fs::TryLockError,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use kiln_records::Failure;
use tempfile::TempDir;

/// The lock of a directory, inside it.
const LOCK: &str = ".lock";

/// A younger directory may be about to be locked.
const YOUNG: Duration = Duration::from_mins(1);

/// A directory that goes with its owner.
#[derive(Debug)]
pub struct OwnDir {
    // Dropped first: what is left of a directory without a lock is anybody's to remove.
    dir: TempDir,
    _lock: fs_err::File,
}

impl OwnDir {
    /// Makes a directory for downloads in a data directory, and removes those of killed processes.
    ///
    /// # Errors
    ///
    /// `io` or `disk_full` when it cannot be made.
    pub fn for_downloads(data: &Path) -> Result<Self, Failure> {
        let make = || -> io::Result<Self> {
            let parent = data.join("downloads");
            fs_err::create_dir_all(&parent)?;
            Self::new_in(&parent, "")
        };
        make().map_err(|error| Failure::io("cannot make a directory for downloads", &error))
    }

    /// Makes a directory whose name begins with `prefix`, and removes those of killed processes with such names.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn new_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        sweep(parent, prefix);
        let dir = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        let lock = fs_err::File::create(dir.path().join(LOCK))?;
        lock.file().try_lock()?;
        Ok(Self { dir, _lock: lock })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes directories whose process is gone. One that cannot be removed is left to the next process.
fn sweep(parent: &Path, prefix: &str) {
    let entries = fs_err::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()));
    for dir in named.map(|entry| entry.path()).filter(is_left) {
        let _ = fs_err::remove_dir_all(dir);
    }
}

/// Whether nobody holds the lock of a directory that is not young. What cannot be looked at is not left.
fn is_left(dir: &PathBuf) -> bool {
    let age = fs_err::symlink_metadata(dir).and_then(|metadata| metadata.modified());
    let is_old = age.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > YOUNG));
    if !is_old {
        return false;
    }
    match fs_err::File::open(dir.join(LOCK)) {
        Ok(lock) => !matches!(
            lock.file().try_lock(),
            Err(TryLockError::WouldBlock | TryLockError::Error(_))
        ),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn what_a_killed_command_left_goes_and_nothing_else() {
        let data = tempfile::tempdir().unwrap();
        let downloads = data.path().join("downloads");
        let live = OwnDir::for_downloads(data.path()).unwrap();
        let old = |name: &str| {
            let dir = downloads.join(name);
            fs_err::create_dir_all(&dir).unwrap();
            fs_err::write(dir.join(LOCK), "").unwrap();
            fs_err::write(dir.join("rootfs"), "large").unwrap();
            dir
        };
        let age = |dir: &Path| {
            let hour_ago = SystemTime::now() - Duration::from_hours(1);
            let dir = fs_err::File::open(dir).unwrap();
            dir.file().set_modified(hour_ago).unwrap();
        };
        let (left, young) = (old("left"), old("young"));
        age(&left);
        age(live.path());
        let next = OwnDir::for_downloads(data.path()).unwrap();
        assert!(!left.exists() && young.exists() && live.path().exists());
        drop((live, next));
        assert_eq!(fs_err::read_dir(&downloads).unwrap().count(), 1);
    }
}
