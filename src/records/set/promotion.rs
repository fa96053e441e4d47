//! Promotions: which set each channel of a name leads to, and has led to. Types. Pure: no I/O.

use serde::{Deserialize, Serialize};

use crate::{Moment, SetId};

/// A change of a channel.
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
}
