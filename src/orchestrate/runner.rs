//! Tells apart the processes that carry out jobs for one data directory: a server, and the commands that carry out jobs
//! of their own beside it. Makes, locks and removes files below the directory of runners.
//!
//! ```text
//! runners/ID/lock     held as long as the process lives
//! runners/ID/doors    the sockets that its sandboxes see
//! runners/ID/api.sock the address of its own API
//! runners/room.lock   held by the process that gives its jobs room on this host
//! ```

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use kiln_records::{Code, Failure, ServerId};

use crate::sandbox::namespace::make_private_dir;

const LOCK: &str = "lock";

const ROOM: &str = "room.lock";

/// How long to wait for another process that gives its jobs room, which takes milliseconds.
const ROOM_PATIENCE: Duration = Duration::from_secs(2);

/// The prefix of a directory that is not locked yet.
const NEW: &str = "new-";

/// The directory in which the runners of a data directory are known to each other.
#[derive(Debug, Clone)]
pub struct Runners(PathBuf);

/// This process as a runner: it carries out its own jobs, and no other process does as long as it lives.
#[derive(Debug)]
pub struct Runner {
    id: ServerId,
    dir: PathBuf,
    /// The kernel releases it when the process ends, however that happens.
    _lock: fs_err::File,
}

impl Runners {
    /// The runners of a data directory.
    pub fn of(data_dir: &Path) -> Self {
        Self(data_dir.join("runners"))
    }

    /// Makes this process a runner.
    ///
    /// # Errors
    ///
    /// When the directory cannot be written to.
    pub fn enter(&self) -> Result<Runner, Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot make the directory of this command", &error);
        make_private_dir(&self.0)?;
        let id = ServerId::new();
        // The directory gets its name once it is locked, so that the name of a living runner is never free.
        let new = tempfile::Builder::new()
            .prefix(NEW)
            .tempdir_in(&self.0)
            .map_err(failed)?;
        let lock = fs_err::File::create(new.path().join(LOCK)).map_err(failed)?;
        lock.file().lock().map_err(failed)?;
        let dir = self.0.join(id.to_string());
        fs_err::rename(new.keep(), &dir).map_err(failed)?;
        Ok(Runner { id, dir, _lock: lock })
    }

    /// Whether a runner of this data directory is shown to be gone. One that cannot be looked at may be alive.
    pub fn is_gone(&self, id: ServerId) -> bool {
        match fs_err::File::open(self.0.join(id.to_string()).join(LOCK)) {
            // A shared lock, since other processes may look at the same moment.
            Ok(lock) => lock.file().try_lock_shared().is_ok(),
            // A runner removes its directory when it leaves.
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    /// Excludes the other processes of the data directory from giving jobs room on this host, until the returned file is
    /// dropped: each counts what the others have taken. `None` when another one does not let go in time.
    ///
    /// # Errors
    ///
    /// When the file cannot be made.
    pub async fn room(&self) -> Result<Option<fs_err::File>, Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot lock the room on this host", &error);
        make_private_dir(&self.0)?;
        let path = self.0.join(ROOM);
        let lock = fs_err::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path);
        let lock = lock.map_err(failed)?;
        let until = Instant::now() + ROOM_PATIENCE;
        loop {
            match lock.file().try_lock() {
                Ok(()) => return Ok(Some(lock)),
                Err(std::fs::TryLockError::WouldBlock) if Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
                Err(std::fs::TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }

    /// Removes the directories of runners that are gone.
    ///
    /// # Errors
    ///
    /// When one of them cannot be removed.
    pub fn sweep(&self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot remove what a command left", &error);
        let entries = match fs_err::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            let id = path.file_name().and_then(|name| name.to_str()?.parse().ok());
            if id.is_some_and(|id| self.is_gone(id)) {
                match fs_err::remove_dir_all(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Runner {
    /// Its id.
    pub fn id(&self) -> ServerId {
        self.id
    }

    /// Its own directory, which only this user may enter.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if let Err(error) = fs_err::remove_dir_all(&self.dir) {
            // The next command removes it.
            tracing::debug!(%error, "the directory of this command is left");
        }
    }
}

/// The id of a data directory, made by the first process that asks: a sandbox belongs to the data directory in which it
/// is, and any server of that directory recognises it.
///
/// # Errors
///
/// When the file cannot be read or written, or is damaged.
pub fn server_id(data_dir: &Path) -> Result<ServerId, Failure> {
    let path = data_dir.join("server-id");
    let failed = |error: std::io::Error| Failure::io("cannot keep this server's id", &error);
    loop {
        match fs_err::read_to_string(&path) {
            Ok(text) => {
                return text.trim().parse().map_err(|error| {
                    Failure::new(Code::Io, format_args!("{}: {error}", path.display()))
                        .hint("remove the file if no job of this server runs; a new one is made")
                });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let mut file = tempfile::NamedTempFile::new_in(data_dir).map_err(failed)?;
        std::io::Write::write_all(&mut file, format!("{}\n", ServerId::new()).as_bytes()).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        match file.persist_noclobber(&path) {
            // Another process may have been faster: its id is the one.
            Err(error) if error.error.kind() != ErrorKind::AlreadyExists => return Err(failed(error.error)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_is_gone_only_when_its_lock_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let runners = Runners::of(dir.path());
        runners.sweep().unwrap();
        let (one, two) = (runners.enter().unwrap(), runners.enter().unwrap());
        assert!(!runners.is_gone(one.id()) && !runners.is_gone(two.id()));
        runners.sweep().unwrap();
        assert!(one.dir().exists() && two.dir().exists());
        let id = one.id();
        drop(one);
        assert!(runners.is_gone(id) && !runners.is_gone(two.id()));

        // A killed one leaves its directory behind, with a free lock.
        let left = dir.path().join("runners").join(id.to_string());
        fs_err::create_dir(&left).unwrap();
        fs_err::write(left.join(LOCK), "").unwrap();
        assert!(runners.is_gone(id));
        runners.sweep().unwrap();
        assert!(!left.exists() && two.dir().exists());

        // What cannot be looked at is not known to be gone.
        fs_err::write(&left, "no directory").unwrap();
        assert!(!runners.is_gone(id));
    }

    #[tokio::test]
    async fn one_process_at_a_time_gives_room() {
        let dir = tempfile::tempdir().unwrap();
        let runners = Runners::of(dir.path());
        let taken = runners.room().await.unwrap();
        assert!(taken.is_some());
        assert!(runners.room().await.unwrap().is_none());
        runners.sweep().unwrap();
        drop(taken);
        assert!(runners.room().await.unwrap().is_some());
    }

    #[test]
    fn a_data_directory_has_one_id() {
        let dir = tempfile::tempdir().unwrap();
        let ids: Vec<_> = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..8).map(|_| scope.spawn(|| server_id(dir.path()).unwrap())).collect();
            asking.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]));
        assert_eq!(server_id(dir.path()).unwrap(), ids[0]);
        fs_err::write(dir.path().join("server-id"), "nonsense").unwrap();
        assert_eq!(server_id(dir.path()).unwrap_err().code, Code::Io);
    }
}
