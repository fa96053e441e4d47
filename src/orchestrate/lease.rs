//! Tells which of the processes that share the records hold their leases, this one's own included. Pure, but for the
//! clock.
//!
//! No two clocks are compared. A process writes a mark into its row every few seconds; the others measure, each by its own
//! clock, for how long they have seen the same mark. The process itself counts from before it wrote the last one:
//!
//! ```text
//!  last mark     + HELD                              + GONE
//!  ────┼───────────┼───────────────────────────────────┼────────────▶
//!      the holder acts, and its sandboxes run          others may take its jobs
//!                  neither acts; sandboxes stand still
//! ```
//!
//! So a job never runs twice at the same time, whatever became of the process: killed, stopped for a while, or cut off from
//! the database.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kiln_records::ServerId;

use crate::{
    sandbox::lease::{HELD, since_boot},
    store::ServerRow,
};

/// A process whose mark has not changed for this long has lost its lease.
const GONE: Duration = Duration::from_secs(25);

/// The longest pause between two looks at the marks. After a longer one this process may have missed some, so it begins
/// again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The leases of all processes, as this one knows them.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<Known>);

/// All times are since the host was started, the time while it slept included.
#[derive(Debug, Default)]
struct Known {
    /// When this process began to write the last mark that the database has.
    held: Option<Duration>,
    /// Since when it has looked at the marks without a long pause, and when it did so last.
    looking: Option<(Duration, Duration)>,
    /// The marks of the processes, and since when they are the same.
    marks: HashMap<ServerId, (i64, Duration)>,
}

impl Known {
    /// Notes the marks that are there now. Returns whether another process has lost its lease since the last look.
    fn note(&mut self, rows: &[ServerRow], now: Duration) -> bool {
        let since = match self.looking {
            Some((since, last)) if now.saturating_sub(last) <= LONGEST_PAUSE => since,
            _ => {
                self.marks.clear();
                now
            }
        };
        let before = self.looking.replace((since, now));
        let last = before.map_or(now, |(_, last)| last);
        self.marks.retain(|id, _| rows.iter().any(|row| row.id == *id));
        let mut is_news = false;
        for row in rows {
            let (mark, seen) = self.marks.entry(row.id).or_insert((row.mark, now));
            if *mark != row.mark {
                (*mark, *seen) = (row.mark, now);
            }
            let ages = [now, last].map(|at| at.saturating_sub(*seen));
            is_news |= ages[0] >= GONE && ages[1] < GONE;
        }
        is_news
    }

    /// Whether a process is shown to have lost its lease. A process that has no row has none; one that this process has
    /// not watched for long enough may have one.
    fn is_gone(&self, id: ServerId, now: Duration) -> bool {
        let Some((since, last)) = self.looking else {
            return false;
        };
        if now.saturating_sub(last) > LONGEST_PAUSE {
            return false;
        }
        let same_since = self.marks.get(&id).map_or(since, |(_, seen)| *seen);
        last.saturating_sub(same_since) >= GONE
    }

    fn is_held(&self, now: Duration) -> bool {
        self.held.is_some_and(|held| now.saturating_sub(held) < HELD)
    }
}

impl Leases {
    fn known(&self) -> MutexGuard<'_, Known> {
        // Each change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a process is shown to have lost its lease.
    pub(super) fn is_gone(&self, id: ServerId) -> bool {
        self.known().is_gone(id, since_boot())
    }

    /// Whether this process holds its own lease.
    pub(super) fn is_held(&self) -> bool {
        self.known().is_held(since_boot())
    }

    /// Notes that this process shows life since then, and the marks that are there now. Returns whether another process has
    /// lost its lease since the last time.
    pub(super) fn note(&self, held: Duration, rows: &[ServerRow]) -> bool {
        let mut known = self.known();
        known.held = Some(held);
        known.note(rows, since_boot())
    }

    /// Moves everything that is known into the past.
    #[cfg(test)]
    pub(super) fn let_pass(&self, time: Duration) {
        let mut known = self.known();
        for (_, seen) in known.marks.values_mut() {
            *seen = seen.saturating_sub(time);
        }
        if let Some((since, _)) = &mut known.looking {
            *since = since.saturating_sub(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: ServerId, mark: i64) -> ServerRow {
        ServerRow { id, mark, offers: None }
    }

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    #[test]
    fn a_process_is_gone_when_its_mark_stays_the_same() {
        let (one, two, none) = (ServerId::new(), ServerId::new(), ServerId::new());
        let mut known = Known::default();
        assert!(!known.is_gone(one, at(1000)));
        let mut news = Vec::new();
        for second in 0..40_u32 {
            let now = at(1000 + u64::from(second));
            // The clock of the database goes back.
            let rows = [row(one, 7), row(two, 1000 - i64::from(second) * 5)];
            if known.note(&rows, now) {
                news.push(second);
            }
            assert_eq!(known.is_gone(one, now), second >= 25, "{second}");
            assert!(!known.is_gone(two, now));
            assert_eq!(known.is_gone(none, now), second >= 25, "{second}");
        }
        assert_eq!(news, [25]);
        // It shows life again.
        known.note(&[row(one, 8), row(two, 0)], at(1041));
        assert!(!known.is_gone(one, at(1041)));
    }

    #[test]
    fn a_process_that_slept_knows_nothing_of_the_others() {
        let (one, other) = (ServerId::new(), ServerId::new());
        let mut known = Known::default();
        for second in 0..30 {
            known.note(&[row(one, 7)], at(second));
        }
        assert!(known.is_gone(one, at(30)));
        // Nobody has looked for two minutes.
        assert!(!known.is_gone(one, at(150)));
        known.note(&[row(one, 7), row(other, 7)], at(150));
        assert!(!known.is_gone(one, at(151)) && !known.is_gone(other, at(151)));
    }

    #[test]
    fn a_lease_ends_before_others_may_act_on_it() {
        let mut known = Known::default();
        assert!(!known.is_held(at(0)));
        known.held = Some(at(100));
        assert!(known.is_held(at(100)) && known.is_held(at(100) + HELD / 2));
        assert!(!known.is_held(at(100) + HELD));
        assert!(HELD + LONGEST_PAUSE <= GONE);
    }
}
