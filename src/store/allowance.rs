//! On whose behalf records are added, and how many that caller may have. The task of a request carries it, so that
//! whatever the request has made counts, by whichever way it is made. What Kiln makes later because of a record counts for
//! whoever has made that.

use std::{fmt, future::Future};

use kiln_records::{JobId, ScheduleId, SetId};

tokio::task_local! {
    static CURRENT: Allowance;
}

/// What a caller may add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowance {
    /// The caller.
    pub caller: String,
    /// How many records it may have; none where Kiln ends what it has begun: that counts, and is not refused.
    pub most: Option<Most>,
}

/// The most records of a kind. 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Most {
    /// Those that one caller may have made.
    pub of_caller: u32,
    /// Those in all beyond which a caller makes no more.
    pub of_all: u32,
}

/// A record because of which Kiln makes others, or tells of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// A job: its image.
    Job(JobId),
    /// A set: its jobs.
    Set(SetId),
    /// A schedule: its jobs and sets.
    Schedule(ScheduleId),
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(id) => write!(f, "job {id}"),
            Self::Set(id) => write!(f, "set {id}"),
            Self::Schedule(id) => write!(f, "schedule {id}"),
        }
    }
}

impl Allowance {
    /// Does `work` on behalf of the caller.
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// That of this task; none where Kiln acts by itself.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }
}
