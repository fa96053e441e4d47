//! Artifacts: where they are kept and how they get there.
//!
//! [`ArtifactStore`] is the one way to S3: it plans multipart uploads whose parts an agent sends through presigned
//! URLs, checks every object before it counts, and writes the [`manifest`]. [`embedded`] is an S3 server for machines
//! that have none.

pub mod embedded;
mod job_objects;
pub mod manifest;
mod packages;
pub(crate) mod percent;
mod receive;
mod sdk;
mod store;
mod stored_parts;
mod upload;

pub use self::{
    receive::{Expected, Received},
    store::{ArtifactStore, Copied, ObjectInfo, ReadError},
};
pub use crate::config::S3Settings;
