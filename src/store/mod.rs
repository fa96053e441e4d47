//! Where records are kept: one trait per subject, implemented by SQLite (in the data directory) and PostgreSQL.
//!
//! A write that was answered is durable. Changes are optimistic: who changes a record says which revision it read, and is
//! told [`StoreError::Stale`] when somebody was faster. Deleting keeps the row and only notes the time.
//!
//! The store also knows which S3 objects each record refers to. An object that the last record forgets is written down
//! as *doomed* in the same transaction, and stays so until somebody has removed it from S3: nothing that is still named
//! is ever removed, and nothing that is not is ever forgotten.

mod fault;
mod feed;
mod logs;
mod postgres;
mod sqlite;
mod table;
mod tables;

use std::{fmt, path::Path, sync::Arc};

use async_trait::async_trait;
use uuid::Uuid;

pub use self::{
    feed::LogFeed,
    logs::{Appended, JobLogs, Pulse},
    postgres::PostgresStore,
    sqlite::SqliteStore,
};
use crate::{
    arch::Arch,
    records::{
        Code, Failure, Image, ImageId, Job, JobId, JobStatus, JobType, Moment, PublicKey, PublicKeyId, Recipe,
        RecipeId, RemoteBuildNode, Run, Schedule, ScheduleId, ServerId, Token, TokenId, schedule::Tick,
    },
};

/// All of it, as the rest of Kiln holds it.
pub type SharedStore = Arc<dyn Store>;

/// Opens the store at a place: a PostgreSQL database by its URL (`postgres://…`), SQLite by the path of its file.
///
/// # Errors
///
/// [`StoreError::Unavailable`], as [`PostgresStore::connect`] and [`SqliteStore::open`] say.
pub async fn open(place: &str) -> Result<SharedStore> {
    Ok(
        if ["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| place.starts_with(scheme))
        {
            Arc::new(PostgresStore::connect(place).await?)
        } else {
            Arc::new(SqliteStore::open(Path::new(place)).await?)
        },
    )
}

/// Everything that a store does.
#[async_trait]
pub trait Store:
    Collection<Recipe>
    + Collection<Image>
    + Collection<PublicKey>
    + Jobs
    + Runs
    + Schedules
    + JobLogs
    + RemoteBuildNodes
    + Tokens
    + fmt::Debug
{
    /// Sees whether the store answers.
    async fn ping(&self) -> Result<()>;

    /// Objects that no record names any more, oldest first.
    async fn doomed(&self, limit: u32) -> Result<Vec<String>>;

    /// Says that these objects are gone from S3.
    async fn forget_doomed(&self, paths: &[String]) -> Result<()>;

    /// Finishes what is under way and closes.
    async fn close(&self);
}

/// A kind of record that can be deleted softly.
pub trait Record: Clone + Send + Sync + 'static {
    /// What identifies one.
    type Id: Copy + fmt::Display + Into<Uuid> + Send + Sync;

    /// Its identity.
    fn id(&self) -> Self::Id;
}

/// Records of one kind, live and deleted.
#[async_trait]
pub trait Collection<R: Record>: Send + Sync {
    /// Adds a record at the end of the list; to the deleted ones if it says that it was deleted. `objects` are the S3
    /// paths that it refers to (`s3://bucket/key`).
    ///
    /// # Errors
    ///
    /// [`StoreError::LinkInUse`], [`StoreError::Doomed`], [`StoreError::Exists`] when the id is taken.
    async fn insert(&self, record: &R, objects: &[String]) -> Result<()>;

    /// One record.
    async fn get(&self, side: Side, id: R::Id) -> Result<Option<Stored<R>>>;

    /// Records of one side, in the order asked for.
    async fn page(&self, side: Side, query: &Query) -> Result<Vec<Stored<R>>>;

    /// Live records, in the order asked for, as JSON.
    async fn page_text(&self, query: &Query) -> Result<PageText<R>>;

    /// Replaces a record whose revision is still this one and which is still on the side that `record` says,
    /// atomically. `objects` are those that it refers to beside those that it did before.
    ///
    /// # Errors
    ///
    /// [`StoreError::Stale`] when the record changed or went meanwhile, and as [`Collection::insert`].
    async fn replace(&self, record: &R, revision: i64, objects: &[String]) -> Result<()>;

    /// Says that a record does not refer to these objects any more. Those that nobody else names are doomed.
    async fn forget_objects(&self, id: R::Id, objects: &[String]) -> Result<()>;

    /// Moves a live record to the end of the deleted ones; none: all of them, in their order. Answers how many.
    async fn delete(&self, id: Option<R::Id>, now: Moment) -> Result<u64>;

    /// Moves a deleted record back, to the end of the list. Answers whether it was there.
    ///
    /// # Errors
    ///
    /// [`StoreError::LinkInUse`] when a live record has taken its link meanwhile.
    async fn undelete(&self, id: R::Id) -> Result<bool>;

    /// Forgets a record for good, or all of one side. Objects that nobody else names are doomed, unless `keep_objects`.
    /// Answers how many.
    async fn purge(&self, side: Side, id: Option<R::Id>, keep_objects: bool) -> Result<u64>;
}

/// Jobs.
#[async_trait]
pub trait Jobs: Send + Sync {
    /// Adds a job at the end of the list.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] when the id is taken.
    async fn insert_job(&self, job: &Job) -> Result<()>;

    /// One job.
    async fn get_job(&self, id: JobId) -> Result<Option<Stored<Job>>>;

    /// Jobs, in the order asked for.
    async fn page_jobs(&self, query: &Query) -> Result<Vec<Stored<Job>>>;

    /// Jobs, in the order asked for, as JSON.
    async fn page_text_of_jobs(&self, query: &Query) -> Result<PageText<Job>>;

    /// Replaces a job whose revision is still this one, atomically.
    ///
    /// # Errors
    ///
    /// [`StoreError::Stale`] when the job changed or went meanwhile.
    async fn replace_job(&self, job: &Job, revision: i64) -> Result<()>;

    /// Forgets a job. Answers whether it was there. What is left of it elsewhere is found among
    /// [`Runs::deleted_runs`].
    async fn delete_job(&self, id: JobId) -> Result<bool>;

    /// Forgets every job that the filter takes, atomically. Answers which.
    async fn delete_jobs(&self, filter: &JobFilter) -> Result<Vec<JobId>>;
}

/// How Kiln carries jobs out.
#[async_trait]
pub trait Runs: Send + Sync {
    /// Adds a job that Kiln carries out, at the end of the list.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] when the id is taken.
    async fn insert_run(&self, job: &Job, run: &Run) -> Result<()>;

    /// One job; none if it is not there or somebody else carries it out.
    async fn get_run(&self, id: JobId) -> Result<Option<StoredRun>>;

    /// Jobs of which something is left to do or to clear away, in the order in which they were asked for.
    async fn open_runs(&self) -> Result<Vec<StoredRun>>;

    /// The last jobs that started from a recipe or image, the newest first.
    async fn past_runs(&self, artifact: Uuid, limit: u32) -> Result<Vec<StoredRun>>;

    /// Replaces both halves of a job whose revision is still this one, atomically.
    ///
    /// # Errors
    ///
    /// [`StoreError::Stale`] when the job changed or went meanwhile.
    async fn replace_run(&self, job: &Job, run: &Run, revision: i64) -> Result<()>;

    /// Deleted jobs of which something may be left to clear away.
    async fn deleted_runs(&self) -> Result<Vec<StoredRun>>;

    /// Says that nothing of a deleted job is left.
    async fn forget_deleted_run(&self, id: JobId) -> Result<()>;

    /// Says that a server is alive.
    async fn note_server(&self, id: ServerId, now: Moment) -> Result<()>;

    /// Servers that were alive at that moment or later.
    async fn servers_since(&self, moment: Moment) -> Result<Vec<ServerId>>;
}

/// Schedules, and the times at which they were due.
#[async_trait]
pub trait Schedules: Send + Sync {
    /// Adds a schedule at the end of the list.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] when the id is taken.
    async fn insert_schedule(&self, schedule: &Schedule) -> Result<()>;

    /// One schedule.
    async fn get_schedule(&self, id: ScheduleId) -> Result<Option<Stored<Schedule>>>;

    /// Schedules, in the order asked for, as JSON.
    async fn page_text_of_schedules(&self, query: &Query) -> Result<PageText<Schedule>>;

    /// Replaces a schedule whose revision is still this one, and adds these ticks of it, atomically. A tick of the same
    /// time that is there already stays as it is. Old ticks that are settled are forgotten.
    ///
    /// # Errors
    ///
    /// [`StoreError::Stale`] when the schedule changed or went meanwhile.
    async fn replace_schedule(&self, schedule: &Schedule, revision: i64, ticks: &[Tick]) -> Result<()>;

    /// Forgets a schedule and its ticks. Answers whether it was there.
    async fn delete_schedule(&self, id: ScheduleId) -> Result<bool>;

    /// Schedules that run next at this moment or before it, the soonest first.
    async fn due_schedules(&self, now: Moment, limit: u32) -> Result<Vec<Stored<Schedule>>>;

    /// Schedules that run next after this moment, the soonest first.
    async fn schedules_running_after(&self, moment: Moment, limit: u32) -> Result<Vec<Stored<Schedule>>>;

    /// The ticks of a schedule, the last first.
    async fn ticks(&self, schedule: ScheduleId, limit: u32) -> Result<Vec<Tick>>;

    /// Ticks of all schedules that are not settled, by schedule and time.
    async fn open_ticks(&self) -> Result<Vec<Tick>>;

    /// Replaces a tick if it is where its new outcome can be [come to from](crate::records::schedule::Outcome::comes_from).
    /// Answers whether it was.
    async fn settle_tick(&self, tick: &Tick) -> Result<bool>;
}

/// Remote build nodes.
#[async_trait]
pub trait RemoteBuildNodes: Send + Sync {
    /// Adds a host; one that is there already stays where it is in the list.
    async fn put_node(&self, node: &RemoteBuildNode) -> Result<()>;

    /// Every host, in the order in which they were added.
    async fn nodes(&self) -> Result<Vec<RemoteBuildNode>>;

    /// One host.
    async fn node(&self, xname: &str) -> Result<Option<RemoteBuildNode>>;

    /// Forgets a host, or all. Answers how many.
    async fn delete_nodes(&self, xname: Option<&str>) -> Result<u64>;
}

/// API tokens.
#[async_trait]
pub trait Tokens: Send + Sync {
    /// Adds a token, by the SHA-256 of its text (lower-case hexadecimal).
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] when the id or the digest is taken.
    async fn insert_token(&self, token: &Token, sha256: &str) -> Result<()>;

    /// The token with that SHA-256.
    async fn token(&self, sha256: &str) -> Result<Option<Token>>;

    /// Every token, in the order in which they were made.
    async fn tokens(&self) -> Result<Vec<Token>>;

    /// Forgets a token. Answers whether it was there.
    async fn delete_token(&self, id: TokenId) -> Result<bool>;
}

/// Which half of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// In use.
    Live,
    /// Deleted, and still there to be restored.
    Deleted,
}

/// A record as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored<R> {
    /// The record.
    pub record: R,
    /// Grows with each change.
    pub revision: i64,
    /// Where it stands in the order of the list: microseconds since 1970 at which it came to its side, be it by being
    /// added, deleted or restored. No two are equal, unless several servers added them at the same time.
    pub position: i64,
}

/// A job that Kiln carries out, as the store has it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRun {
    /// IMS's half.
    pub job: Job,
    /// Kiln's half.
    pub run: Run,
    /// Grows with each change of either.
    pub revision: i64,
    /// Where it stands in the order of the list; see [`Stored::position`].
    pub position: i64,
}

/// Records as JSON, joined by commas: what is only passed on need not be taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageText<R> {
    /// The records.
    pub text: String,
    /// How many they are.
    pub count: usize,
    /// The last of them and its position; none if there are no records.
    pub last: Option<(R, i64)>,
    /// Whether the list goes on after it.
    pub more: bool,
}

impl<R> Default for PageText<R> {
    fn default() -> Self {
        Self {
            text: String::new(),
            count: 0,
            last: None,
            more: false,
        }
    }
}

/// Which records, and in what order. Filters that a kind of record does not know are ignored: the API lets none in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// How they are sorted.
    pub sort: Sort,
    /// The last first.
    pub descending: bool,
    /// Only those after this one.
    pub after: Option<After>,
    /// At most so many.
    pub limit: u32,
    /// Exactly this name. Of a job: `image_root_archive_name`.
    pub name: Option<String>,
    /// An id that begins so, lower case.
    pub id_prefix: Option<String>,
    /// This architecture.
    pub arch: Option<Arch>,
    /// Jobs only.
    pub jobs: JobFilter,
}

/// What a list is sorted by. Records that are equal there are sorted by id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Sort {
    /// The order in which they were added or restored.
    #[default]
    Position,
    /// Name.
    Name,
}

/// A place in a sorted list: that of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    /// The record's position, as text, or its name, as the list is sorted. Nothing comes after a text that is no
    /// position.
    pub key: String,
    /// The record.
    pub id: String,
}

/// Some of the jobs; everything that is given has to be true.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Any of these; empty means any at all.
    pub statuses: Vec<JobStatus>,
    /// This type.
    pub job_type: Option<JobType>,
    /// Asked for before that.
    pub created_before: Option<Moment>,
}

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another live record of the kind has this link.
    #[error("another record has the link {0}")]
    LinkInUse(String),
    /// The object is being removed from S3, since the last record that named it is gone.
    #[error("{0} is being deleted")]
    Doomed(String),
    /// The record is not the one that was read.
    #[error("somebody else changed the record at the same time")]
    Stale,
    /// There is one with this identity.
    #[error("there is one with this identity already")]
    Exists,
    /// The store cannot be reached, or is full, or broken.
    #[error("the database does not answer: {0}")]
    Unavailable(String),
    /// A row cannot be read.
    #[error("a row in the database is damaged: {0}")]
    Damaged(String),
}

/// Whether a transaction lets others like it work beside it.
#[derive(Debug, Clone, Copy)]
enum Lock {
    /// Beside all that share.
    Shared,
    /// While no other works.
    Alone,
}

/// What a store answers.
pub type Result<T> = std::result::Result<T, StoreError>;

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => {
                Failure::new(Code::StoreUnavailable, error).hint("see whether the database runs and its disk has space")
            }
            StoreError::Damaged(_) => Failure::new(Code::StoreDamaged, error),
            _ => Failure::new(Code::StoreConflict, error),
        }
    }
}

macro_rules! record {
    ($record:ty, $id:ty) => {
        impl Record for $record {
            type Id = $id;
            fn id(&self) -> $id {
                self.id
            }
        }
    };
}

record!(Recipe, RecipeId);
record!(Image, ImageId);
record!(PublicKey, PublicKeyId);
