//! The sandbox of a trial, which leaves nothing: a machine that is only to boot. Touches the directory of sandboxes.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use kiln_records::Failure;
use uuid::Uuid;

use super::{
    cgroup,
    files::{self, Files},
    handle::Handle,
    make_shared_dir,
};

/// The prefix of the names of trials, which belong to no job.
const TRIAL: &str = "trial-";

/// No trial takes that long to lock itself.
const UNLOCKED_TRIAL: Duration = Duration::from_mins(10);

/// How long the end of a killed trial may take.
const DYING: Duration = Duration::from_secs(1);

/// The sandbox of a trial. Whatever becomes of the trial, nothing of it is left when this is dropped: a process may end
/// while one of its trials is under way.
pub(super) struct Trial {
    /// The directory of a trial has only files of this process's.
    pub(super) files: Files,
    pub(super) handle: Option<Handle>,
}

impl Trial {
    /// Makes the directory of a new trial.
    pub(super) fn new(sandboxes: &Path) -> Result<Self, Failure> {
        let dir = sandboxes.join(format!("{TRIAL}{}", Uuid::new_v4()));
        let trial = Self {
            files: Files::of(&dir),
            handle: None,
        };
        make_shared_dir(&dir)?;
        Ok(trial)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let Some(handle) = &mut self.handle {
            // Where the trial has ended, these do nothing. Otherwise all of its processes die with the supervisor, which
            // would make its lock anew if it came to that later.
            let _ = handle.child.start_kill();
            let until = Instant::now() + DYING;
            while matches!(handle.child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if let Some(group) = self.files.dir().file_name().and_then(|name| name.to_str())
            && let Err(failure) = cgroup::remove_by_name(group)
        {
            tracing::warn!("the control groups of a trial are not cleared away: {failure}");
        }
        let removed = match fs_err::remove_dir_all(self.files.dir()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::io("the directory", &error)),
            _ => Ok(()),
        };
        let removed = removed
            .and_then(|()| files::remove_file(&self.files.kvm()))
            .and_then(|()| files::remove_file(&self.files.lock_path()));
        if let Err(failure) = removed {
            tracing::warn!("the trial of a virtual machine is not cleared away: {failure}");
        }
    }
}

/// Removes what trials left whose process was killed: their locks are free. A failure is met again, and reported, by the
/// next trial.
pub(super) fn sweep_trials(sandboxes: &Path) {
    for entry in fs_err::read_dir(sandboxes).into_iter().flatten().flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_dir || !entry.file_name().to_string_lossy().starts_with(TRIAL) {
            continue;
        }
        let files = Files::of(&entry.path());
        let made = entry.metadata().and_then(|meta| meta.modified());
        let is_old = || made.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > UNLOCKED_TRIAL));
        let was_killed = match (files::is_there(&files.lock_path()), files.is_alive()) {
            (Ok(true), Ok(false)) => true,
            // It may be about to lock itself.
            (Ok(false), Ok(false)) => is_old(),
            _ => false,
        };
        if was_killed {
            drop(Trial { files, handle: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::io::BufReader;

    use super::*;

    fn trial(sandboxes: &Path, name: &str) -> Files {
        let files = Files::of(&sandboxes.join(name));
        fs_err::create_dir(files.dir()).unwrap();
        for file in [files.kvm(), files.lock_path()] {
            fs_err::write(file, "").unwrap();
        }
        files
    }

    fn left(sandboxes: &Path) -> Vec<String> {
        let entries = fs_err::read_dir(sandboxes).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    #[tokio::test]
    async fn a_trial_that_is_given_up_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut supervisor = tokio::process::Command::new("sleep");
        let child = supervisor.arg("600").spawn().unwrap();
        let pid = child.id().unwrap();
        let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
        let (reports, lifeline) = ours.into_split();
        let handle = Some(Handle {
            child,
            reports: BufReader::new(reports),
            lifeline: Some(lifeline),
        });
        drop(Trial {
            files: trial(dir.path(), "trial-1"),
            handle,
        });
        assert_eq!(left(dir.path()), [""; 0]);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn only_trials_without_a_process_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name| trial(dir.path(), name);
        make("trial-killed");
        make("another");
        let _lock = make("trial-alive").lock().unwrap();
        for (name, age) in [("trial-new", 1), ("trial-old", 2 * UNLOCKED_TRIAL.as_secs())] {
            let files = make(name);
            fs_err::remove_file(files.lock_path()).unwrap();
            let opened = fs_err::File::open(files.dir()).unwrap();
            let then = SystemTime::now() - Duration::from_secs(age);
            opened.file().set_modified(then).unwrap();
        }
        sweep_trials(dir.path());
        let expected = [
            "another",
            "another.kvm",
            "another.lock",
            "trial-alive",
            "trial-alive.kvm",
            "trial-alive.lock",
            "trial-new",
            "trial-new.kvm",
        ];
        assert_eq!(left(dir.path()), expected);
    }
}
