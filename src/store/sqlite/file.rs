//! Checks and creates the file of an SQLite database: its place, and the permission to read it. Touches this file and
//! those beside it only.

use std::{
    ffi::OsString,
    fmt,
    fs::Permissions,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use fs_err::os::unix::fs::OpenOptionsExt;
use nix::sys::statfs::{FsType, statfs};

use crate::store::{Result, StoreError};

/// File systems that other hosts may have mounted too. SQLite's index of the log is shared memory, which does not
/// reach across hosts, and locks there are often unreliable. The numbers are those of Linux's `magic.h` and of the
/// file systems that are not in it.
const NETWORK_FILE_SYSTEMS: [(u32, &str); 9] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x00c3_6400, "CephFS"),
    (0x5346_414f, "AFS"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
];

/// A file on a local disk that only its owner can read.
#[derive(Debug)]
pub(super) struct DatabaseFile(PathBuf);

impl DatabaseFile {
    /// The file at `path`, created if necessary.
    pub(super) async fn at(path: &Path) -> Result<Self> {
        let file = Self(path.to_owned());
        file.blocking(|path| {
            let directory = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            refuse_network(directory)?;
            // Only an open that creates the file may be closed again: closing any other would release the locks that
            // SQLite holds on the file elsewhere in this process.
            let made = fs_err::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path);
            match made {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            // The database holds digests of tokens.
            for file in [path.to_owned(), beside(path, "-wal"), beside(path, "-shm")] {
                keep_private(&file)?;
            }
            Ok(())
        })
        .await?;
        Ok(file)
    }

    /// Waits until no other process is changing the tables. Dropping the file releases the lock.
    pub(super) async fn lock(&self) -> Result<fs_err::File> {
        self.blocking(|path| {
            let lock = fs_err::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(beside(path, ".lock"))?;
            lock.lock()?;
            Ok(lock)
        })
        .await
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The error for a file that cannot be used.
    pub(super) fn fault(&self, error: impl fmt::Display) -> StoreError {
        StoreError::Unavailable(format!("{self}: {error}"))
    }

    async fn blocking<T: Send + 'static>(&self, work: fn(&Path) -> io::Result<T>) -> Result<T> {
        let path = self.0.clone();
        let done = tokio::task::spawn_blocking(move || work(&path)).await;
        match done {
            Ok(done) => done.map_err(|error| self.fault(error)),
            Err(error) => Err(self.fault(error)),
        }
    }
}

impl fmt::Display for DatabaseFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// A file beside the database.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Restricts a file to its owner, if it exists.
fn keep_private(path: &Path) -> io::Result<()> {
    let mode = match fs_err::metadata(path) {
        Ok(metadata) => metadata.permissions().mode(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if mode & 0o077 != 0 {
        fs_err::set_permissions(path, Permissions::from_mode(0o600))?;
    }
    Ok(())
}

fn refuse_network(directory: &Path) -> io::Result<()> {
    match network_file_system(statfs(directory)?.filesystem_type()) {
        Some(name) => Err(io::Error::other(format!(
            "the directory is on {name}, where SQLite cannot lock between hosts; use a local disk, or PostgreSQL"
        ))),
        None => Ok(()),
    }
}

/// The name of a network file system; `None` for a local one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the numbers have 32 bits"
)]
fn network_file_system(kind: FsType) -> Option<&'static str> {
    let magic = kind.0 as u32;
    let found = NETWORK_FILE_SYSTEMS.iter().find(|(known, _)| *known == magic);
    found.map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_told_from_local_ones() {
        assert_eq!(network_file_system(nix::sys::statfs::NFS_SUPER_MAGIC), Some("NFS"));
        // On some architectures the kernel reports this one with its sign extended.
        assert_eq!(network_file_system(FsType(-0x00ac_b2be)), Some("CIFS"));
        assert_eq!(network_file_system(nix::sys::statfs::EXT4_SUPER_MAGIC), None);
        assert_eq!(network_file_system(nix::sys::statfs::TMPFS_MAGIC), None);
    }

    #[test]
    fn a_file_beside_keeps_the_whole_name() {
        assert_eq!(
            beside(Path::new("/d/kiln.sqlite"), "-wal"),
            Path::new("/d/kiln.sqlite-wal")
        );
    }
}
