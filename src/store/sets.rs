//! What a store does with image sets and the channels of the catalogue.

use async_trait::async_trait;
use kiln_records::{
    ImageSet, Moment, SetId,
    set::promotion::{Promotion, SetChange},
};

use super::{Query, Result, Stored};

/// Image sets.
#[async_trait]
pub trait Sets: Send + Sync {
    /// Adds a set at the end of the list.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`](super::StoreError::Exists) when the id is taken, or there is such a version of that name.
    async fn insert_set(&self, set: &ImageSet) -> Result<()>;

    /// One set.
    async fn get_set(&self, id: SetId) -> Result<Option<Stored<ImageSet>>>;

    /// The set of a name and version.
    async fn set_of_version(&self, name: &str, version: &str) -> Result<Option<Stored<ImageSet>>>;

    /// Sets, in the order asked for.
    async fn page_sets(&self, query: &Query) -> Result<Vec<Stored<ImageSet>>>;

    /// How many of the sets that the query asks for are no larger than a piece of a list together; one at least.
    async fn fitting_sets(&self, query: &Query) -> Result<u32>;

    /// The sets of a name that were complete at the last look, newest first; only those before a position, if one is given.
    async fn complete_sets(&self, name: &str, before: Option<i64>, limit: u32) -> Result<Vec<Stored<ImageSet>>>;

    /// Sets that are to be looked at by now, the longest overdue first.
    async fn sets_to_look_at(&self, now: Moment, limit: u32) -> Result<Vec<Stored<ImageSet>>>;

    /// Replaces a set atomically, if its revision is still this one. A change of its images becomes part of the history of each
    /// channel that leads to it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Stale`](super::StoreError::Stale) when the set has changed or gone since.
    async fn replace_set(&self, set: &ImageSet, revision: i64, change: Option<SetChange>) -> Result<()>;

    /// Removes a set, unless a channel leads to it.
    async fn delete_set(&self, id: SetId) -> Result<SetDeleted>;
}

/// The outcome of the deletion of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetDeleted {
    /// It is gone.
    Done,
    /// There was none.
    Unknown,
    /// A channel leads to it.
    InChannel(String),
}

/// The channels of the catalogue.
#[async_trait]
pub trait Channels: Send + Sync {
    /// Changes a channel atomically.
    ///
    /// # Errors
    ///
    /// [`StoreError::Stale`](super::StoreError::Stale) when another change has taken the number, or the set is gone.
    async fn promote(&self, promotion: &Promotion) -> Result<()>;

    /// The latest change of a channel.
    async fn channel(&self, name: &str, channel: &str) -> Result<Option<Promotion>>;

    /// One change of a channel.
    async fn promotion(&self, name: &str, channel: &str, number: u32) -> Result<Option<Promotion>>;

    /// The changes of a channel, latest first.
    async fn promotions(&self, name: &str, channel: &str, limit: u32) -> Result<Vec<Promotion>>;

    /// The channels that lead to a set now.
    async fn channels_of(&self, set: SetId) -> Result<Vec<String>>;

    /// The latest change of each channel, of one name or of all, by name and channel.
    async fn channels(&self, name: Option<&str>, limit: u32) -> Result<Vec<Promotion>>;
}
