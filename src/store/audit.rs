//! What a store does with the audit log.

use async_trait::async_trait;
use kiln_records::{Moment, audit::AuditEntry};
use uuid::Uuid;

use super::Result;

/// Entries to search for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Only those of this caller.
    pub who: Option<String>,
    /// Only those about this record.
    pub record_id: Option<Uuid>,
    /// Only those from this moment on.
    pub since: Option<Moment>,
    /// Only those before this moment.
    pub until: Option<Moment>,
    /// The most entries.
    pub limit: u32,
}

/// The audit log.
#[async_trait]
pub trait Audit: Send + Sync {
    /// Adds an entry; the store chooses its number. Entries beyond their [budgets](kiln_records::budget) go, now and then.
    /// With `from_reserve`, it is written even while the disk is full:
    /// for a request that removes something. Returns the number.
    async fn add_audit_entry(&self, entry: &AuditEntry, from_reserve: bool) -> Result<i64>;

    /// Notes the status of the answer in an entry, and the record that the request made.
    async fn end_audit_entry(&self, number: i64, status: u16, made: Option<Uuid>) -> Result<()>;

    /// Entries, latest first.
    async fn audit_entries(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>>;

    /// The number of entries before a moment.
    async fn count_audit_entries(&self, before: Moment) -> Result<u64>;

    /// Removes at most so many of the entries before a moment. Returns their number.
    async fn remove_audit_entries(&self, before: Moment, most: u32) -> Result<u64>;
}
