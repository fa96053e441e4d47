//! What Kiln keeps and says: types and rules, no I/O.

pub mod artifact;
pub mod failure;
pub mod ids;
pub mod protocol;
pub mod step;

pub use artifact::{ArtifactKind, Digests, UploadedArtifact};
pub use failure::Failure;
pub use ids::{ImageId, JobId};
pub use step::Step;
