//! Promotions: which set each channel of a name leads to, and has led to. Types. Pure: no I/O.

use serde::{Deserialize, Serialize};

use crate::{Moment, SetId};

/// A change of a channel, or of the set that it leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Promotion {
    /// The name of the sets.
    pub name: String,
    /// The channel.
    pub channel: String,
    /// Its number among the changes of the channel, from 1.
    pub number: u32,
    /// What was done.
    pub kind: PromotionKind,
    /// The set that the channel leads to from now on; null if it was emptied.
    #[schema(value_type = Option<uuid::Uuid>)]
    pub set_id: Option<SetId>,
    /// The set's version; null if the channel was emptied.
    pub version: Option<String>,
    /// When that was.
    #[schema(value_type = String)]
    pub at: Moment,
    /// The user, if known.
    pub by: Option<String>,
    /// The number of the change that a rollback returns to; null if there is none.
    pub before: Option<u32>,
    /// The images that are others now, if the set itself was changed.
    #[serde(default)]
    pub images: Option<String>,
}

/// What a change of a set means to the channels that lead to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetChange {
    /// The images that are others now, as [`ImageSet::other_images`](super::ImageSet::other_images) has them.
    pub images: Vec<String>,
    /// When that was.
    pub at: Moment,
    /// The user, if known.
    pub by: Option<String>,
}

impl Promotion {
    /// The next change of this channel: the set that it leads to was changed so.
    #[must_use]
    pub fn of_set(&self, change: &SetChange) -> Self {
        Self {
            number: self.number + 1,
            kind: PromotionKind::Change,
            at: change.at,
            by: change.by.clone(),
            images: Some(change.images.join("; ")),
            ..self.clone()
        }
    }
}

/// The kind of a change of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PromotionKind {
    /// A set was promoted.
    Promote,
    /// An earlier set was returned to.
    Rollback,
    /// The channel was emptied.
    Withdraw,
    /// The set that it leads to was changed: it has another image for an architecture.
    Change,
}
