//! The lease of the sandboxes on this host: a file that says when their server last showed life, and which process that is. Reads
//! that file, the kernel's clock and its list of processes.
//!
//! A server that shares its records with others loses its jobs to them when it shows no life. Its sandboxes stand still
//! before that, so that no job runs twice at the same time; they go on when the server is back in time.

use std::{io::ErrorKind, path::PathBuf, time::Duration};

use nix::{
    errno::Errno,
    time::{ClockId, clock_gettime},
    unistd::getpid,
};
use serde::{Deserialize, Serialize};

/// How long a lease lasts.
pub const HELD: Duration = Duration::from_secs(15);

/// The file of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease(pub PathBuf);

impl Lease {
    /// Whether it lasts. One that cannot be read does not, and neither does one from the future, which an earlier boot of
    /// the host has left.
    pub fn is_held(&self) -> bool {
        let [begun, ..] = self.numbers();
        let age = begun.and_then(|begun| since_boot().checked_sub(Duration::from_millis(begun)));
        age.is_some_and(|age| age < HELD)
    }

    /// Whether the process that wrote it is known to be gone.
    pub fn is_orphaned(&self) -> bool {
        let [_, pid, started] = self.numbers();
        // One that could not tell its own start says 0.
        let pid = pid.and_then(|pid| i32::try_from(pid).ok());
        pid.zip(started.filter(|started| *started > 0))
            .is_some_and(|(pid, started)| start_time(pid).is_ok_and(|now| now != Some(started)))
    }

    /// What the file says, as far as it does: the beginning in milliseconds, the process, and that one's start.
    fn numbers(&self) -> [Option<u64>; 3] {
        let text = fs_err::read_to_string(&self.0).unwrap_or_default();
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        [(); 3].map(|()| numbers.next().flatten())
    }

    /// The content of the file for a lease of this process that begins at this time since the host was started. Its size is
    /// always the same.
    pub fn text(begun: Duration) -> String {
        let pid = getpid().as_raw();
        let started = start_time(pid).ok().flatten().unwrap_or_default();
        format!("{:020} {pid:010} {started:020}\n", begun.as_millis())
    }
}

/// The start time of a process, if there is one: field 22 of `/proc/PID/stat`. Field 2, the name, is in parentheses and
/// may contain anything.
///
/// # Errors
///
/// When it cannot be read.
pub fn start_time(pid: i32) -> std::io::Result<Option<u64>> {
    let stat = match fs_err::read_to_string(format!("/proc/{pid}/stat")) {
        // The process may end between the opening and the reading.
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32) => {
            return Ok(None);
        }
        stat => stat?,
    };
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after_name.split_whitespace().nth(19).and_then(|text| text.parse().ok());
    field
        .map(Some)
        .ok_or_else(|| std::io::Error::from(ErrorKind::InvalidData))
}

/// The time since the host was started, the time while it slept included.
pub fn since_boot() -> Duration {
    // Linux has had the clock since 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lease_that_can_be_read_and_is_young_lasts() {
        let dir = tempfile::tempdir().unwrap();
        let lease = Lease(dir.path().join("lease"));
        assert!(!lease.is_held());
        let now = since_boot();
        for (begun, is_held) in [
            (now, true),
            (now.saturating_sub(HELD / 2), true),
            (now.saturating_sub(HELD), false),
            (now + Duration::from_mins(1), false),
        ] {
            fs_err::write(&lease.0, Lease::text(begun)).unwrap();
            assert_eq!(lease.is_held(), is_held, "{begun:?}");
        }
        fs_err::write(&lease.0, "soon").unwrap();
        assert!(!lease.is_held());
    }

    #[test]
    fn the_end_of_the_process_that_wrote_it_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let lease = Lease(dir.path().join("lease"));
        assert!(!lease.is_orphaned(), "nothing is known of it");
        fs_err::write(&lease.0, Lease::text(since_boot())).unwrap();
        assert!(!lease.is_orphaned());
        // Another process has the number now.
        let pid = getpid().as_raw();
        fs_err::write(&lease.0, format!("{:020} {pid:010} {:020}\n", 1, 1)).unwrap();
        assert!(lease.is_orphaned());
        fs_err::write(&lease.0, format!("{:020}\n", 1)).unwrap();
        assert!(!lease.is_orphaned());
    }
}
