//! Says what a job waits for: a kind that can be counted, and one sentence for its user; and how long a place has had no
//! room although no job is there. Pure: no I/O.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use kiln_records::JobId;

/// What a job waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The kind.
    pub waits_for: WaitsFor,
    /// The sentence.
    pub why: String,
}

/// The kinds of what jobs wait for. Their names are values of a label of `kiln_queue_jobs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitsFor {
    /// Fewer jobs at its place.
    Slots,
    /// Memory.
    Memory,
    /// Disk space.
    Disk,
    /// Inodes.
    Inodes,
    /// A job before it that waits itself.
    Turn,
    /// The end of the pause after an attempt that failed.
    Rest,
    /// A time without other jobs: it verifies native twins.
    Verification,
    /// Its turn at the host of another server.
    Elsewhere,
    /// A toolbox, or an agent.
    Toolbox,
    /// The answers of places that were not looked at yet.
    UnknownPlaces,
    /// A place that has gone, and may come back.
    NoPlace,
    /// Another process that gives its jobs room.
    Busy,
    /// Jobs that only a server of another version can read.
    Version,
    /// A place that does not say what room it has.
    PlaceFailed,
}

impl WaitsFor {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slots => "slots",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Inodes => "inodes",
            Self::Turn => "turn",
            Self::Rest => "rest",
            Self::Verification => "verification",
            Self::Elsewhere => "elsewhere",
            Self::Toolbox => "toolbox",
            Self::UnknownPlaces => "unknown_places",
            Self::NoPlace => "no_place",
            Self::Busy => "busy",
            Self::Version => "version",
            Self::PlaceFailed => "place_failed",
        }
    }

    /// Whether it is something that programs other than Kiln use up too.
    pub const fn is_shared_with_others(self) -> bool {
        matches!(self, Self::Disk | Self::Inodes)
    }

    /// This, for a reason.
    pub fn because(self, why: impl Into<String>) -> Wait {
        Wait {
            waits_for: self,
            why: why.into(),
        }
    }
}

/// The places that lack room although no job holds any, each with its first job and the time since when it waits for what
/// only other programs can free.
#[derive(Debug, Default)]
pub struct Starved(HashMap<String, (JobId, Instant)>);

impl Starved {
    /// How long the first job at a place has waited for room that no job holds; `first` is `None` where there is no such
    /// job now.
    pub fn waits(&mut self, place: &str, first: Option<JobId>, now: Instant) -> Duration {
        let Some(first) = first else {
            self.0.remove(place);
            return Duration::ZERO;
        };
        let entry = self.0.entry(place.to_owned()).or_insert((first, now));
        if entry.0 != first {
            *entry = (first, now);
        }
        now.saturating_duration_since(entry.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_first_job_has_its_own_time() {
        let (mut starved, start) = (Starved::default(), Instant::now());
        let (one, other) = (JobId::new(), JobId::new());
        let mut waits = |first, seconds| {
            starved
                .waits("local", first, start + Duration::from_secs(seconds))
                .as_secs()
        };
        assert_eq!((waits(Some(one), 0), waits(Some(one), 60)), (0, 60));
        assert_eq!((waits(Some(other), 61), waits(Some(other), 71)), (0, 10));
        assert_eq!((waits(None, 72), waits(Some(other), 80)), (0, 0));
    }
}
