//! Sandboxes: the disposable places that jobs run in, and the drivers that make them.
//!
//! Every driver starts the same agent in the same toolbox and tells it where its server is. A driver knows how to
//! make, watch, kill and sweep, and nothing of kiwi or S3.

#[cfg(feature = "server")]
pub mod agents;
#[cfg(feature = "server")]
pub mod docker;
#[cfg(feature = "server")]
pub mod doors;
#[cfg(feature = "server")]
pub mod driver;
#[cfg(feature = "server")]
pub(crate) mod microvm;
#[cfg(feature = "server")]
pub mod namespace;
pub mod room;
#[cfg(feature = "server")]
pub mod toolbox;
#[cfg(feature = "server")]
pub mod toolboxes;

#[cfg(feature = "server")]
pub use driver::{
    Capacity, DiskLimit, Driver, Evidence, Limits, Machine, Network, Reach, SandboxSpec, SandboxState, Scratch, Usage,
};

pub use crate::records::run::{DriverKind, Kernel};
