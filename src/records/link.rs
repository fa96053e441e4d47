//! Links: where an object is, as records and manifests say it.

use serde::{Deserialize, Serialize};

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
pub struct Link {
    /// `s3://bucket/key`.
    pub path: String,
    /// Entity tag without quotes; informative.
    #[serde(default)]
    pub etag: String,
    /// The kind of store.
    #[serde(rename = "type")]
    pub store: StoreType,
}

/// Kinds of stores a [`Link`] can point into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum StoreType {
    /// S3.
    S3,
}

impl Link {
    /// A link into S3.
    pub fn s3(bucket: &str, key: &str, etag: &str) -> Self {
        Self {
            path: format!("s3://{bucket}/{key}"),
            etag: etag.to_owned(),
            store: StoreType::S3,
        }
    }

    /// Bucket and key, or none when the path has another form. A `?` is part of the key.
    pub fn bucket_and_key(&self) -> Option<(&str, &str)> {
        let (bucket, key) = self.path.strip_prefix("s3://")?.split_once('/')?;
        (!bucket.is_empty() && !key.is_empty()).then_some((bucket, key))
    }
}
