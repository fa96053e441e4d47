//! What a pass removes, and what it leaves. Pure: no I/O.

use kiln_records::{Moment, arch::Arch};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::choose::Kept;
use crate::metrics;

/// What a pass removed, or would remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Pruned {
    /// Whether it only looked.
    dry_run: bool,
    /// Whether it got through everything. If not, another pass goes on.
    complete: bool,
    /// What went, or would go.
    removed: Vec<Removed>,
    /// The images that a rule names, and that stay.
    kept: Vec<KeptImage>,
    /// The bytes that this frees in S3. Deleted images free theirs when they are removed for good.
    freed_bytes: u64,
    /// What could not be removed, or not be looked at, and why. It stays until the next pass.
    problems: Vec<String>,
}

/// Something that a pass removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Removed {
    /// Its kind.
    kind: Kind,
    /// Its id or, for objects without a record, its key in S3.
    id: String,
    /// Its name, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    name: Option<String>,
    /// Its architecture, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    arch: Option<Arch>,
    /// The moment from which its age counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    since: Option<Moment>,
    /// Why it goes.
    why: Why,
    /// The bytes that this frees in S3.
    bytes: u64,
}

/// An image that stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct KeptImage {
    /// Its id.
    pub(super) id: Uuid,
    /// Its name.
    pub(super) name: String,
    /// Its architecture.
    #[schema(value_type = String)]
    pub(super) arch: Arch,
    /// Why it stays.
    pub(super) why: Kept,
}

/// The kinds of what a pass removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Image,
    DeletedImage,
    DeletedRecipe,
    DeletedPublicKey,
    Job,
    Upload,
    Package,
    /// A layer of a recipe.
    Layer,
    Toolbox,
    AuditEntries,
}

impl Kind {
    /// Its name, as in a report.
    const fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::DeletedImage => "deleted_image",
            Self::DeletedRecipe => "deleted_recipe",
            Self::DeletedPublicKey => "deleted_public_key",
            Self::Job => "job",
            Self::Upload => "upload",
            Self::Package => "package",
            Self::Layer => "layer",
            Self::Toolbox => "toolbox",
            Self::AuditEntries => "audit_entries",
        }
    }
}

/// Why something goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Why {
    /// Its rule gives it up. It can be restored for a while.
    Rule,
    /// It is older than such things become.
    Age,
    /// All of its kind together have too many bytes.
    Size,
}

impl Removed {
    pub(super) fn new(kind: Kind, id: impl Into<String>, why: Why) -> Self {
        Self {
            kind,
            id: id.into(),
            name: None,
            arch: None,
            since: None,
            why,
            bytes: 0,
        }
    }

    pub(super) fn named(self, name: &str, arch: Option<Arch>) -> Self {
        Self {
            name: Some(name.to_owned()),
            arch,
            ..self
        }
    }

    pub(super) fn since(self, since: Moment) -> Self {
        Self {
            since: Some(since),
            ..self
        }
    }

    pub(super) fn bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }
}

impl Pruned {
    pub(super) fn new(dry_run: bool) -> Self {
        Self {
            dry_run,
            complete: true,
            removed: Vec::new(),
            kept: Vec::new(),
            freed_bytes: 0,
            problems: Vec::new(),
        }
    }

    pub(super) fn remove(&mut self, removed: Removed) {
        if !self.dry_run {
            metrics::retention_removed(removed.kind.name(), removed.bytes);
        }
        self.freed_bytes += removed.bytes;
        self.removed.push(removed);
    }

    pub(super) fn keep(&mut self, kept: KeptImage) {
        self.kept.push(kept);
    }

    pub(super) fn break_off(&mut self) {
        self.complete = false;
    }

    pub(super) fn fail(&mut self, what: impl std::fmt::Display) {
        tracing::warn!("{what}");
        metrics::retention_problem();
        self.problems.push(what.to_string());
    }

    /// The number of things that went, or would go.
    pub fn count(&self) -> usize {
        self.removed.len()
    }

    /// The bytes that this frees in S3.
    pub fn freed_bytes(&self) -> u64 {
        self.freed_bytes
    }
}
