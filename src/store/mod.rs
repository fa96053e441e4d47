//! The records of the service: one trait per subject, implemented by SQLite (in the data directory) and PostgreSQL.
//! The implementations touch their database and nothing else.
//!
//! A write is durable once the call returns. Changes are optimistic: a caller names the revision it read, and gets
//! [`StoreError::Stale`] if the record has changed since. Deleting keeps the row and only records the time.
//!
//! The store also records which S3 objects each record refers to. An object that the last record forgets is marked as
//! *doomed* in the same transaction, and stays so until it has been removed from S3. So no object that is still named
//! is ever removed, and no other is ever forgotten.
//!
//! A record can name objects that are not its own. Its own are those whose keys are laid out as Kiln and IMS lay out
//! the objects of that record; only these may be removed with it. Whoever still names the object of a record that is
//! gone inherits it.

mod allowance;
mod audit;
mod budgets;
mod fault;
mod feed;
mod logs;
mod measured;
mod overview;
mod packages;
mod postgres;
mod sets;
mod sqlite;
mod table;
mod tables;
mod usage;
mod webhooks;

use std::{fmt, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::stream::BoxStream;
use kiln_records::{
    Code, FailedTwin, Failure, Image, ImageId, Job, JobId, JobStatus, JobType, Moment, PublicKey, PublicKeyId, Recipe,
    RecipeId, RemoteBuildNode, Run, Schedule, ScheduleId, ServerId, Token, TokenId, arch::Arch, budget::RECORD_BYTES,
    link::RECIPES, schedule::Tick,
};
use uuid::Uuid;

pub use self::{
    allowance::{Allowance, Maker, Most},
    audit::{Audit, AuditQuery},
    budgets::{Budgets, Count, Dropped, DroppedKind},
    feed::LogFeed,
    logs::{Appended, JobLogs, LogRows, Pulse},
    overview::Overview,
    packages::{IndexedImage, IndexedPackage, Known, PackageIndex},
    postgres::PostgresStore,
    sets::{Channels, SetDeleted, Sets},
    sqlite::{BackupOrigin, SqliteStore, backup, restore},
    usage::Usages,
    webhooks::{Deliveries, DeliveryQuery},
};

/// The store as the rest of Kiln holds it.
pub type SharedStore = Arc<dyn Store>;

/// Opens a store: a PostgreSQL database by its URL (`postgres://…`), or SQLite by the path of its file.
///
/// # Errors
///
/// [`StoreError::Unavailable`], as for [`PostgresStore::connect`] and [`SqliteStore::open`].
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

/// All the operations of a store.
#[async_trait]
pub trait Store:
    Collection<Recipe>
    + Collection<Image>
    + Collection<PublicKey>
    + Jobs
    + Runs
    + Servers
    + Schedules
    + Sets
    + Channels
    + JobLogs
    + Overview
    + FailedTwins
    + RemoteBuildNodes
    + Tokens
    + Audit
    + Budgets
    + Deliveries
    + Usages
    + PackageIndex
    + fmt::Debug
{
    /// Checks that the store answers.
    async fn ping(&self) -> Result<()>;

    /// Objects that no record names any more, oldest first.
    async fn doomed(&self, limit: u32) -> Result<Vec<Doomed>>;

    /// Records that nothing is left to do about these objects.
    async fn forget_doomed(&self, paths: &[String]) -> Result<()>;

    /// Finishes running operations and closes the store.
    async fn close(&self);
}

/// A kind of record that can be deleted softly.
pub trait Record: Clone + Send + Sync + 'static {
    /// The type of the record's id.
    type Id: Copy + fmt::Display + Into<Uuid> + Send + Sync;

    /// The record's id.
    fn id(&self) -> Self::Id;

    /// The beginning of the keys of the record's own objects, if it has any.
    fn own_keys(id: Self::Id) -> Option<String>;
}

/// An object that no record names any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doomed {
    /// `s3://bucket/key`.
    pub path: String,
    /// Whether its key is that of an object of the records that named it.
    pub own: bool,
}

/// Records of one kind, live and deleted.
#[async_trait]
pub trait Collection<R: Record>: Send + Sync {
    /// Adds a record at the end of the list, or of the deleted ones if it has a time of deletion. `objects` are the S3
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

    /// How many of the records that the query asks for are no larger than a [piece of a list](kiln_records::budget::LIST_BYTES)
    /// together; one at least.
    async fn fitting(&self, side: Side, query: &Query) -> Result<u32>;

    /// Live records, in the order asked for, as JSON text: as many as are [fitting](Self::fitting).
    async fn page_text(&self, query: &Query) -> Result<PageText<R>>;

    /// Replaces a record atomically, if its revision is still this one and it is still on the side that `record` says.
    /// `objects` are references in addition to earlier ones.
    ///
    /// # Errors
    ///
    /// [`StoreError::Stale`] when the record has changed or gone since, and the errors of [`Collection::insert`].
    async fn replace(&self, record: &R, revision: i64, objects: &[String]) -> Result<()>;

    /// Removes references of a record to these objects. Objects without another reference are doomed.
    async fn forget_objects(&self, id: R::Id, objects: &[String]) -> Result<()>;

    /// Moves a live record to the end of the deleted ones, or all of them in order. Returns the number moved.
    async fn delete(&self, id: Option<R::Id>, now: Moment) -> Result<u64>;

    /// Moves a live record to the end of the deleted ones, if its revision is still this one. Returns whether it was.
    async fn delete_unchanged(&self, id: R::Id, revision: i64, now: Moment) -> Result<bool>;

    /// Moves a deleted record back, to the end of the list. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// [`StoreError::LinkInUse`] when a live record has taken its link since.
    async fn undelete(&self, id: R::Id) -> Result<bool>;

    /// Removes a record for good, or all of one side. Objects without another reference are doomed, unless
    /// `keep_objects` is set. Returns the number removed.
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

    /// Jobs, in the order asked for, as JSON text: as many as are no larger than a piece of a list.
    async fn page_text_of_jobs(&self, query: &Query) -> Result<PageText<Job>>;

    /// Replaces a job atomically, if its revision is still this one.
    ///
    /// # Errors
    ///
    /// [`StoreError::Stale`] when the job has changed or gone since.
    async fn replace_job(&self, job: &Job, revision: i64) -> Result<()>;

    /// Removes a job. Returns whether it was there. Its remains elsewhere are listed by [`Runs::deleted_runs`].
    async fn delete_job(&self, id: JobId) -> Result<bool>;

    /// Removes every job that matches the filter, atomically. Returns their ids.
    async fn delete_jobs(&self, filter: &JobFilter) -> Result<Vec<JobId>>;
}

/// The state of the jobs that Kiln itself runs.
#[async_trait]
pub trait Runs: Send + Sync {
    /// Adds a job that Kiln runs, at the end of the list.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] when the id is taken.
    async fn insert_run(&self, job: &Job, run: &Run) -> Result<()>;

    /// One job; `None` if it does not exist or Kiln does not run it.
    async fn get_run(&self, id: JobId) -> Result<Option<StoredRun>>;

    /// Those of these jobs that Kiln runs, in no order; one whose record is damaged is left out.
    async fn get_runs(&self, ids: &[JobId]) -> Result<Vec<StoredRun>>;

    /// Jobs with something left to do or to clean up, in the order in which they were created.
    async fn open_runs(&self) -> Result<OpenRuns>;

    /// The latest jobs that started from a recipe or image, newest first.
    async fn past_runs(&self, artifact: Uuid, limit: u32) -> Result<Vec<StoredRun>>;

    /// Replaces both halves of a job atomically, if its revision is still this one.
    ///
    /// # Errors
    ///
    /// [`StoreError::Stale`] when the job has changed or gone since.
    async fn replace_run(&self, job: &Job, run: &Run, revision: i64) -> Result<()>;

    /// Deleted jobs that may have left something to clean up.
    async fn deleted_runs(&self) -> Result<Vec<StoredRun>>;

    /// Records that nothing of a deleted job is left.
    async fn forget_deleted_run(&self, id: JobId) -> Result<()>;
}

/// Jobs with something left to do or to clean up.
#[derive(Debug, Default)]
pub struct OpenRuns {
    runs: Vec<StoredRun>,
    /// Jobs that cannot be read: a server of a later version has written them, and carries them out.
    pub unread: Vec<JobId>,
}

impl std::ops::Deref for OpenRuns {
    type Target = [StoredRun];

    fn deref(&self) -> &[StoredRun] {
        &self.runs
    }
}

impl IntoIterator for OpenRuns {
    type Item = StoredRun;
    type IntoIter = std::vec::IntoIter<StoredRun>;

    fn into_iter(self) -> Self::IntoIter {
        self.runs.into_iter()
    }
}

/// The processes that share the records: servers, and commands that carry out jobs of their own.
#[async_trait]
pub trait Servers: Send + Sync {
    /// Whether servers on other hosts may use the store, too.
    fn is_shared(&self) -> bool;

    /// The id of all servers of this store together, made by the first call.
    async fn site_id(&self) -> Result<ServerId>;

    /// Records that a server is alive, and the places on its own host, as JSON, once it knows them. Where the store is shared,
    /// the site's clock follows that of the database ([`Moment::follow`](kiln_records::Moment::follow)).
    async fn show_life(&self, id: ServerId, offers: Option<&str>) -> Result<()>;

    /// All processes that have shown life and were not forgotten.
    async fn servers(&self) -> Result<Vec<ServerRow>>;

    /// Keeps the other servers from giving jobs room at a place that they share, or from making something else of this name,
    /// until the lock is dropped, and no `longer`. `None` when one of them does not let go in time.
    async fn lock_place(&self, place: &str, longest: Duration) -> Result<Option<PlaceLock>>;

    /// The changes of jobs from now on, by whichever server. Only a hint: changes may be missing while the database is away.
    ///
    /// Never ends; where no other server can use the store, it has no items.
    async fn news(&self) -> Result<BoxStream<'static, Result<News>>>;

    /// Records that a server, or a command, has left nothing behind.
    async fn forget_server(&self, id: ServerId) -> Result<()>;

    /// Forgets the processes that have shown no life for a day.
    async fn forget_old_servers(&self) -> Result<()>;
}

/// A change of a job that Kiln carries out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct News {
    /// The job.
    pub job: JobId,
    /// Whether it has ended, or was deleted: something is to be cleared away.
    pub is_over: bool,
}

/// Held by the server that gives jobs room at a place.
pub struct PlaceLock {
    /// The transaction that has the lock; none where no other server can use the store.
    _transaction: Option<Box<dyn std::any::Any + Send + Sync>>,
}

impl PlaceLock {
    /// A lock that is let go when `transaction` is dropped.
    fn held_by(transaction: impl std::any::Any + Send + Sync) -> Self {
        Self {
            _transaction: Some(Box::new(transaction)),
        }
    }
}

impl fmt::Debug for PlaceLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PlaceLock")
    }
}

/// A process that shares the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRow {
    /// The id of a server's data directory, or of a command.
    pub id: ServerId,
    /// Differs after each sign of life. To be compared with an earlier one of the same process only.
    pub mark: i64,
    /// The places on its host, as JSON, once it knows them.
    pub offers: Option<String>,
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

    /// Schedules, in the order asked for, as JSON text: as many as are no larger than a piece of a list.
    async fn page_text_of_schedules(&self, query: &Query) -> Result<PageText<Schedule>>;

    /// Replaces a schedule atomically, if its revision is still this one, and adds these ticks. An existing tick of
    /// the same time stays unchanged. Old settled ticks are removed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Stale`] when the schedule has changed or gone since.
    async fn replace_schedule(&self, schedule: &Schedule, revision: i64, ticks: &[Tick]) -> Result<()>;

    /// Removes a schedule and its ticks. Returns whether it was there.
    async fn delete_schedule(&self, id: ScheduleId) -> Result<bool>;

    /// Schedules whose next run is at or before this moment, soonest first.
    async fn due_schedules(&self, now: Moment, limit: u32) -> Result<Vec<Stored<Schedule>>>;

    /// Schedules whose next run is after this moment, soonest first.
    async fn schedules_running_after(&self, moment: Moment, limit: u32) -> Result<Vec<Stored<Schedule>>>;

    /// The ticks of a schedule, latest first.
    async fn ticks(&self, schedule: ScheduleId, limit: u32) -> Result<Vec<Tick>>;

    /// Open ticks of all schedules, by schedule and time.
    async fn open_ticks(&self) -> Result<Vec<Tick>>;

    /// Replaces a tick, if its new outcome can [follow](kiln_records::schedule::Outcome::comes_from) the stored one.
    /// Returns whether it was replaced.
    async fn settle_tick(&self, tick: &Tick) -> Result<bool>;
}

/// Remote build nodes.
#[async_trait]
pub trait RemoteBuildNodes: Send + Sync {
    /// Adds a host; a known host keeps its place in the list.
    async fn put_node(&self, node: &RemoteBuildNode) -> Result<()>;

    /// Every host, in the order in which they were added.
    async fn nodes(&self) -> Result<Vec<RemoteBuildNode>>;

    /// One host.
    async fn node(&self, xname: &str) -> Result<Option<RemoteBuildNode>>;

    /// Removes a host, or all of them. Returns the number removed.
    async fn delete_nodes(&self, xname: Option<&str>) -> Result<u64>;
}

/// Pairs of programs whose native twins have failed.
#[async_trait]
pub trait FailedTwins: Send + Sync {
    /// Adds a pair, unless it is known. The oldest ones beyond [`FailedTwin::MOST`] are forgotten.
    async fn add_failed_twin(&self, failed: &FailedTwin) -> Result<()>;

    /// The pairs, newest first: all of them, or those for images of one architecture.
    async fn failed_twins(&self, target: Option<Arch>) -> Result<Vec<FailedTwin>>;

    /// Forgets the pair that failed in a job, so that it is used again. Returns whether it was known.
    async fn forget_failed_twin(&self, job: JobId) -> Result<bool>;
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

    /// Removes a token. Returns whether it was there.
    async fn delete_token(&self, id: TokenId) -> Result<bool>;
}

/// The two halves of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Records in use.
    Live,
    /// Deleted records, which can still be restored.
    Deleted,
}

/// A record with the store's own columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored<R> {
    /// The record.
    pub record: R,
    /// Grows with each change.
    pub revision: i64,
    /// Place in the list: the microseconds since 1970 at which the record came to its side by being added, deleted or
    /// restored. Positions are unique unless several servers added records at the same time.
    pub position: i64,
}

/// A job that Kiln runs, with the store's own columns.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRun {
    /// IMS's half.
    pub job: Job,
    /// Kiln's half.
    pub run: Run,
    /// Grows with each change of either half.
    pub revision: i64,
    /// Place in the list; see [`Stored::position`].
    pub position: i64,
}

/// Records as JSON, joined by commas: records that are only passed on need not be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageText<R> {
    /// The records.
    pub text: String,
    /// Number of records.
    pub count: usize,
    /// The last record and its position; `None` if there are no records.
    pub last: Option<(R, i64)>,
    /// Whether the list continues.
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

/// The records of a list, and their order. Filters that do not apply to a kind of record are ignored: the API rejects
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// The sort key.
    pub sort: Sort,
    /// Whether the order is reversed.
    pub descending: bool,
    /// Only records after this one.
    pub after: Option<After>,
    /// The most records to return.
    pub limit: u32,
    /// Exactly this name; for jobs, `image_root_archive_name`.
    pub name: Option<String>,
    /// The beginning of the id, in lower case.
    pub id_prefix: Option<String>,
    /// Only this architecture.
    pub arch: Option<Arch>,
    /// Filters that apply to jobs only.
    pub jobs: JobFilter,
}

/// The sort key of a list. Equal records are sorted by id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Sort {
    /// The order in which they were added or restored.
    #[default]
    Position,
    /// The record's name.
    Name,
}

/// A place in a sorted list: right after a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    /// The record's position as text, or its name, whichever is the sort key. After a text that is not a position, the
    /// list is empty.
    pub key: String,
    /// The record's id.
    pub id: String,
}

/// A filter of jobs; every given condition must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Any of these; empty for all.
    pub statuses: Vec<JobStatus>,
    /// Only this type.
    pub job_type: Option<JobType>,
    /// Only jobs created before this moment.
    pub created_before: Option<Moment>,
}

/// Why the store refused an operation.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another live record of the kind has this link.
    #[error("another record has the link {0}")]
    LinkInUse(String),
    /// The object is being removed from S3, because the last record that named it is gone.
    #[error("{0} is being deleted")]
    Doomed(String),
    /// The record has changed since it was read.
    #[error("the record was changed at the same time by another request")]
    Stale,
    /// A record with this identity exists already.
    #[error("a record with this id already exists")]
    Exists,
    /// There are as many records of this kind as one caller may have made, or as there may be.
    #[error(
        "there are as many {} as {}: {most} ([limits] {}); delete some, or have the site allow more",
        .kind.replace('_', " "),
        if *.is_own { "one caller may have made" } else { "there may be" },
        if *.is_own { "records_of_caller" } else { "records" },
    )]
    TooMany {
        /// The kind.
        kind: &'static str,
        /// Their number.
        most: u32,
        /// Whether they are the caller's own.
        is_own: bool,
    },
    /// The record is larger than one may be.
    #[error("the record would have {bytes} bytes of JSON, and may have {RECORD_BYTES} at most")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The store cannot be reached, is full, or is broken.
    #[error("the database does not answer: {0}")]
    Unavailable(String),
    /// A row cannot be read.
    #[error("a row in the database is damaged: {0}")]
    Damaged(String),
}

/// Whether a transaction may run beside others of its kind.
#[derive(Debug, Clone, Copy)]
enum Lock {
    /// Runs beside other shared transactions.
    Shared,
    /// Runs while no other transaction does.
    Alone,
}

/// The result of a store operation.
pub type Result<T> = std::result::Result<T, StoreError>;

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => Failure::new(Code::StoreUnavailable, error)
                .hint("check that the database runs, and that its disk has space; jobs and images can be deleted on a full one"),
            StoreError::Damaged(_) => Failure::new(Code::StoreDamaged, error),
            _ => Failure::new(Code::StoreConflict, error),
        }
    }
}

macro_rules! record {
    ($record:ty, $id:ty, $own_keys:expr) => {
        impl Record for $record {
            type Id = $id;
            fn id(&self) -> $id {
                self.id
            }
            fn own_keys(id: $id) -> Option<String> {
                let own_keys: fn($id) -> Option<String> = $own_keys;
                own_keys(id)
            }
        }
    };
}

record!(Recipe, RecipeId, |id| Some(format!("{RECIPES}{id}/")));
record!(Image, ImageId, |id| Some(format!("{id}/")));
record!(PublicKey, PublicKeyId, |_| None);
