//! The records of built images. Pure: no I/O.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ImageId, Link, Moment};
use crate::arch::Arch;

/// An image: a set of artifacts, named by a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Image {
    /// Its identity, and the first part of its objects' keys.
    #[schema(value_type = uuid::Uuid)]
    pub id: ImageId,
    /// When it was made.
    #[schema(value_type = String)]
    pub created: Moment,
    /// The image's `manifest.json`; none until its artifacts were uploaded.
    pub link: Option<Link>,
    /// What people call it. Need not be unique.
    pub name: String,
    /// Its architecture.
    pub arch: Arch,
    /// Tags.
    pub metadata: BTreeMap<String, String>,
    /// When it was deleted; only in the collection of deleted images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub deleted: Option<Moment>,
}
