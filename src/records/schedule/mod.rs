//! Schedules: jobs that are made repeatedly. Types and rules. Pure: no I/O.
//!
//! Each time at which a schedule is due is a [`Tick`], and each tick makes one job at most, or one image set with a job for
//! each architecture:
//!
//! ```text
//!             ┌──────────────▶ skipped
//!  waiting ───┤
//!             └─▶ making ──┬─▶ made ──▶ ended
//!                          └─▶ failed ┈┈▶ made
//! ```
//!
//! The id of the job or set is chosen with the tick. After a crash, or beside another server, a tick in `making` therefore
//! leads to the same job or set. `failed` gives way to `made` where one server failed and another did not.

pub mod image_name;
pub mod timing;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{JobId, Moment, PublicKeyId, RecipeId, ScheduleId, SetId, job::JobOptions, set::Requirement};
pub use timing::Timing;

/// The largest possible limit of missed runs to catch up on.
pub const MOST_MISSED: u32 = 100;

/// A recurring job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Schedule {
    /// Its id.
    #[schema(value_type = uuid::Uuid)]
    pub id: ScheduleId,
    /// The time of its creation.
    #[schema(value_type = String)]
    pub created: Moment,
    /// Its name, which need not be unique.
    pub name: String,
    /// The recipe to build; null if the runs make image sets. A run fails if the recipe does not exist at that time.
    #[schema(value_type = Option<uuid::Uuid>)]
    pub recipe_id: Option<RecipeId>,
    /// The time of its runs: minute, hour, day of the month, month, day of the week.
    pub cron: String,
    /// The time zone of `cron`.
    pub timezone: String,
    /// The names of the resulting images, with the placeholders `{date}`, `{time}`, `{recipe}`, `{arch}` and `{n}`; null if
    /// the runs make image sets.
    pub image_root_archive_name: Option<String>,
    /// The image sets that the runs make; null if they build one recipe.
    #[serde(default)]
    pub image_set: Option<ScheduledSet>,
    /// The public key of its jobs; null if they have none.
    #[schema(value_type = Option<uuid::Uuid>)]
    pub public_key_id: Option<PublicKeyId>,
    /// The options of its jobs.
    #[serde(flatten)]
    pub options: JobOptions,
    /// The treatment of missed runs.
    pub missed_runs: MissedRuns,
    /// The maximum number of missed runs that `all` makes up for, the latest first.
    pub missed_runs_limit: u32,
    /// The treatment of a run while an earlier one has not ended.
    pub overlap: Overlap,
    /// Whether the schedule is paused.
    pub paused: bool,
    /// The time of its next run; null while the schedule is paused.
    #[schema(value_type = Option<String>)]
    pub next_run: Option<Moment>,
    /// The time of its last run.
    #[schema(value_type = Option<String>)]
    pub last_run: Option<Moment>,
    /// The number of its runs, including skipped ones. `{n}` stands for it.
    pub runs: u32,
}

/// The image sets of a schedule: one for each run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ScheduledSet {
    /// Their name.
    pub name: String,
    /// Their versions, with the placeholders `{date}`, `{time}` and `{n}`.
    pub version: String,
    /// The recipes to build, each for another architecture.
    pub recipes: Vec<ScheduledRecipe>,
    /// What each image of a set needs before it counts as complete: `boot`, `signature`.
    #[serde(default)]
    pub requires: Vec<Requirement>,
}

/// A recipe of scheduled image sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ScheduledRecipe {
    /// The recipe. A run fails if it does not exist at that time.
    #[schema(value_type = uuid::Uuid)]
    pub recipe_id: RecipeId,
    /// Whether a set is incomplete without its architecture.
    pub required: bool,
    /// How long an attempt of its job may take from its launch, in seconds; null for no limit.
    pub time_limit_s: Option<u32>,
}

/// The treatment of missed runs: those that are at least one minute late because no server was running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MissedRuns {
    /// Nothing: the next run is the next one of the line.
    Skip,
    /// The last of them is made up for.
    Once,
    /// All are made up for, one after the other, up to a limit.
    All,
}

impl MissedRuns {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Skip, Self::Once, Self::All];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Once => "once",
            Self::All => "all",
        }
    }
}

/// The treatment of a run while an earlier one has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// It is skipped.
    Forbid,
    /// It waits.
    Queue,
    /// The earlier one is cancelled.
    Replace,
}

impl Overlap {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Forbid, Self::Queue, Self::Replace];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forbid => "forbid",
            Self::Queue => "queue",
            Self::Replace => "replace",
        }
    }
}

/// A time at which a schedule was due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Tick {
    /// The schedule.
    #[schema(value_type = uuid::Uuid)]
    pub schedule_id: ScheduleId,
    /// The time at which it was due. With the schedule, this identifies it.
    #[schema(value_type = String)]
    pub due: Moment,
    /// The time at which a server noticed it.
    #[schema(value_type = String)]
    pub fired: Moment,
    /// The number of the run, from 1.
    pub number: u32,
    /// Its outcome.
    pub outcome: Outcome,
    /// The id of its job, chosen before the job exists; null if it gets none.
    #[schema(value_type = Option<uuid::Uuid>)]
    pub job_id: Option<JobId>,
    /// The id of its image set, chosen before the set exists; null if it gets none.
    #[serde(default)]
    #[schema(value_type = Option<uuid::Uuid>)]
    pub set_id: Option<SetId>,
    /// The reason why it waits, was skipped or failed.
    pub why: Option<String>,
}

/// What a run makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A job.
    Job(JobId),
    /// An image set.
    Set(SetId),
}

impl fmt::Display for Work {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(job) => write!(out, "job {job}"),
            Self::Set(set) => write!(out, "image set {set}"),
        }
    }
}

impl Tick {
    /// What it makes; `None` if nothing.
    pub fn work(&self) -> Option<Work> {
        self.job_id.map(Work::Job).or(self.set_id.map(Work::Set))
    }

    /// The tick keeps waiting, for this reason.
    #[must_use]
    pub fn waiting(self, why: impl Into<String>) -> Self {
        Self {
            why: Some(why.into()),
            ..self
        }
    }

    /// The tick makes nothing, for this reason.
    #[must_use]
    pub fn skipped(self, why: impl Into<String>) -> Self {
        self.without_work(Outcome::Skipped, why.into())
    }

    /// What the tick makes could not be made, for this reason.
    #[must_use]
    pub fn failed(self, why: impl Into<String>) -> Self {
        self.without_work(Outcome::Failed, why.into())
    }

    fn without_work(self, outcome: Outcome, why: String) -> Self {
        Self {
            outcome,
            job_id: None,
            set_id: None,
            why: Some(why),
            ..self
        }
    }

    /// The tick moves to another state, without a reason.
    #[must_use]
    pub fn now(self, outcome: Outcome) -> Self {
        Self {
            outcome,
            why: None,
            ..self
        }
    }
}

/// The outcome of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It waits for earlier runs to end.
    Waiting,
    /// Its job or image set is being made.
    Making,
    /// Its job or image set is there.
    Made,
    /// Its job, or each of its set's, has ended.
    Ended,
    /// It made nothing, as it was told.
    Skipped,
    /// Its job or image set could not be made.
    Failed,
}

impl Outcome {
    /// The outcomes with work left to do.
    pub const OPEN: [Self; 3] = [Self::Waiting, Self::Making, Self::Made];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Making => "making",
            Self::Made => "made",
            Self::Ended => "ended",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }

    /// The outcomes that may precede this one.
    pub const fn comes_from(self) -> &'static [Self] {
        match self {
            Self::Waiting | Self::Skipped => &[Self::Waiting],
            // A tick in `making` may get another reason.
            Self::Making => &[Self::Waiting, Self::Making],
            // One server may succeed after another has failed.
            Self::Made => &[Self::Making, Self::Failed],
            Self::Failed => &[Self::Making],
            Self::Ended => &[Self::Made],
        }
    }
}
