//! Artifacts in S3: uploads, downloads and manifests. Talks to the S3 service over the network.
//!
//! [`ArtifactStore`] is the only way to S3: it plans multipart uploads whose parts an agent sends through presigned
//! URLs, verifies every object before it counts, and writes the [`manifest`]. [`embedded`] is an S3 server for
//! machines that have no S3 service.

pub mod embedded;
mod job_objects;
mod linked;
pub mod manifest;
mod packages;
pub(crate) mod percent;
mod receive;
mod sdk;
mod store;
mod stored_parts;
mod upload;

pub use self::{
    linked::{Listed, Unusable},
    receive::{Expected, Received},
    store::{ArtifactStore, Copied, ObjectInfo, ReadError},
};
pub use crate::config::S3Settings;
