//! The records of built images. Pure: no I/O.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ImageId, Link, Moment};
use crate::arch::Arch;

/// An image: a set of artifacts, named by a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Image {
    /// Its id, and the first part of the keys of its objects.
    #[schema(value_type = uuid::Uuid)]
    pub id: ImageId,
    /// The time of its creation.
    #[serde(serialize_with = "Moment::as_ims")]
    #[schema(value_type = String)]
    pub created: Moment,
    /// The image's `manifest.json`; null until its artifacts are uploaded.
    pub link: Option<Link>,
    /// Its name, which need not be unique.
    pub name: String,
    /// Its architecture.
    pub arch: Arch,
    /// Tags.
    pub metadata: BTreeMap<String, String>,
    /// The time of its deletion; only in the collection of deleted images.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "Moment::as_ims_if_any"
    )]
    #[schema(value_type = Option<String>, nullable = false)]
    pub deleted: Option<Moment>,
}
