//! The time as the parts of a server see it: the host's, unless a test has moved it forward. Reads the clock, nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::Moment;

/// A clock. Its clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// How far it was moved, in microseconds.
    ahead: Arc<AtomicU64>,
}

impl Clock {
    /// The moment by the site's clock.
    pub fn moment(&self) -> Moment {
        Moment::now().plus(self.ahead())
    }

    /// The time by this host's clock.
    pub fn timestamp(&self) -> Timestamp {
        Timestamp::now().saturating_add(self.ahead()).unwrap_or(Timestamp::MAX)
    }

    /// The time of a clock that nobody sets, for measuring.
    pub fn instant(&self) -> Instant {
        Instant::now() + self.ahead()
    }

    /// Moves it forward, for tests.
    pub fn forward(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.ahead.fetch_add(micros, Ordering::Relaxed);
    }

    fn ahead(&self) -> Duration {
        Duration::from_micros(self.ahead.load(Ordering::Relaxed))
    }
}
