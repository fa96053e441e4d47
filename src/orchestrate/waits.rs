//! Says what a job waits for: a kind that can be counted, and one sentence for its user. Pure: no I/O.

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

    /// This, for a reason.
    pub fn because(self, why: impl Into<String>) -> Wait {
        Wait {
            waits_for: self,
            why: why.into(),
        }
    }
}
