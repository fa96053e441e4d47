//! Marks of sandboxes that no record names, so that those of killed processes are found. Makes, locks and removes files in one
//! directory.

use std::{
    fs::TryLockError,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use kiln_records::JobId;

/// The mark of a sandbox. It is locked as long as its process lives, and goes with this value.
#[derive(Debug)]
pub(super) struct Mark {
    path: PathBuf,
    /// The kernel releases it when the process ends, however that happens.
    _lock: fs_err::File,
}

impl Mark {
    /// Marks a sandbox that is about to be made.
    pub(super) fn new(dir: &Path, job: JobId) -> io::Result<Self> {
        fs_err::create_dir_all(dir)?;
        let path = dir.join(job.to_string());
        let lock = fs_err::File::create(&path)?;
        // Another process may look at it at this moment.
        lock.file().lock()?;
        Ok(Self { path, _lock: lock })
    }

    /// Leaves the mark, for a sandbox that could not be removed.
    pub(super) fn leave(self) {
        std::mem::forget(self);
    }

    /// The marks that killed processes have left.
    pub(super) fn left(dir: &Path) -> io::Result<Vec<(JobId, Self)>> {
        let entries = match fs_err::read_dir(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut left = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let Some(job) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) else {
                continue;
            };
            let lock = match fs_err::File::open(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened?,
            };
            match lock.file().try_lock() {
                Ok(()) => left.push((job, Self { path, _lock: lock })),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(left)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Err(error) = fs_err::remove_file(&self.path) {
            // The next process finds that it marks nothing.
            tracing::debug!(%error, "a mark is left");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_marks_of_ended_processes_are_left() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Mark::left(&dir.path().join("none")).unwrap().is_empty());
        let (alive, killed) = (JobId::new(), JobId::new());
        let mark = Mark::new(dir.path(), alive).unwrap();
        fs_err::write(dir.path().join(killed.to_string()), "").unwrap();
        let left = Mark::left(dir.path()).unwrap();
        assert_eq!(left.iter().map(|(job, _)| *job).collect::<Vec<_>>(), [killed]);
        drop((left, mark));
        assert_eq!(fs_err::read_dir(dir.path()).unwrap().count(), 0);
    }
}
