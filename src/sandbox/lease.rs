//! The lease of the sandboxes on this host: a file that says when their server last showed life. Reads that file and the
//! kernel's clock.
//!
//! A server that shares its records with others loses its jobs to them when it shows no life. Its sandboxes stand still
//! before that, so that no job runs twice at the same time; they go on when the server is back in time.

use std::{path::PathBuf, time::Duration};

use nix::time::{ClockId, clock_gettime};
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
        let of = |text: String| Some(Duration::from_millis(text.trim().parse().ok()?));
        let begun = fs_err::read_to_string(&self.0).ok().and_then(of);
        let age = begun.and_then(|begun| since_boot().checked_sub(begun));
        age.is_some_and(|age| age < HELD)
    }

    /// The content of the file for a lease that begins at this time since the host was started. Its size is always the
    /// same.
    pub fn text(begun: Duration) -> String {
        format!("{:020}\n", begun.as_millis())
    }
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
}
