//! What a store says of things that were dropped before their promised age, because there were too many.

use async_trait::async_trait;
use kiln_records::Moment;

use super::{Maker, Result};

/// The budgets of what the store keeps.
#[async_trait]
pub trait Budgets: Send + Sync {
    /// The caller for whom counts what comes of this record; none where Kiln made it by itself.
    async fn caller_of(&self, maker: Maker) -> Result<Option<String>>;

    /// What was dropped so far, by any server.
    async fn dropped(&self) -> Result<Vec<Dropped>>;

    /// Notes things that were dropped: here, in the log and in the metrics.
    async fn note_dropped(&self, kind: DroppedKind, number: u64) -> Result<()>;

    /// How many records of each kind there are.
    async fn counts(&self) -> Result<Vec<Count>>;
}

/// The number of records of a kind, deleted ones among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// The kind.
    pub kind: &'static str,
    /// Their number.
    pub all: u64,
    /// The caller that has made the most of them, and how many; none if Kiln made all by itself.
    pub most: Option<(String, u64)>,
}

/// Things of a kind that were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// Their kind.
    pub kind: DroppedKind,
    /// Their number.
    pub number: u64,
    /// When the last of them was dropped.
    pub last: Moment,
}

/// A kind of things that can be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DroppedKind {
    /// An entry of the audit log about a request that was not refused.
    AuditEntry,
    /// An entry about a request that was refused.
    RefusedEntry,
    /// A session of the dashboard.
    Session,
    /// A webhook that waited for its receiver.
    Webhook,
}

impl DroppedKind {
    /// Each kind.
    pub const ALL: [Self; 4] = [Self::AuditEntry, Self::RefusedEntry, Self::Session, Self::Webhook];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AuditEntry => "audit_entry",
            Self::RefusedEntry => "refused_audit_entry",
            Self::Session => "session",
            Self::Webhook => "webhook",
        }
    }

    /// The one with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
