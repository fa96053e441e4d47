//! Artifacts in S3: uploads, downloads and manifests. Talks to the S3 service over the network.
//!
//! [`ArtifactStore`] is the only way to S3: it plans multipart uploads whose parts an agent sends through presigned
//! URLs, verifies every object before it counts, and writes the [`manifest`]. [`kiln_s3`] is an S3 server for
//! machines that have no S3 service.

mod accounts;
mod bootable;
mod contents;
mod downloads;
mod installed;
mod job_objects;
mod layers;
mod leftovers;
mod linked;
pub mod manifest;
mod measuring;
mod packages;
mod places;
mod prove;
mod receive;
mod sdk;
mod store;
mod stored_parts;
mod stream;
mod toolboxes;
mod upload;

use std::time::Duration;

pub use self::{
    accounts::KeptAccount,
    bootable::{BootSource, NoBootSource},
    contents::Unlisted,
    downloads::{Download, Downloads},
    installed::KeptInstalled,
    layers::{ImageEntry, LayerEntry, LayerOfImage},
    leftovers::OpenUpload,
    linked::{Listed, Unusable},
    places::Misplaced,
    prove::MANIFEST,
    receive::{Expected, Received, Room, largest_part},
    store::{ArtifactStore, Copied, ObjectInfo, ReadError},
};
pub use crate::config::S3Settings;

/// How long a presigned address is valid whose reader asks for one just before using it.
pub const URL_VALID: Duration = Duration::from_mins(15);

/// The same where a reader has many large objects to read one after the other, or reads them after other work.
pub const LONG_URL_VALID: Duration = Duration::from_hours(6);

/// Settings for a client of the embedded server.
impl From<&kiln_s3::EmbeddedS3> for S3Settings {
    fn from(server: &kiln_s3::EmbeddedS3) -> Self {
        let credentials = server.credentials().clone();
        Self {
            endpoint: Some(server.endpoint()),
            access_key: Some(credentials.access_key),
            secret_key: Some(credentials.secret_key),
            ..Self::default()
        }
    }
}
