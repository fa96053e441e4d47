//! Sandboxes: the disposable places that jobs run in, and the drivers that make them.
//!
//! Every driver starts the same agent in the same toolbox and tells it where its server is. A driver knows how to
//! make, watch, kill and sweep, and nothing of kiwi or S3.

pub mod doors;
pub mod driver;
pub mod namespace;
pub mod toolbox;

pub use driver::{
    Capacity, DiskLimit, Driver, Evidence, Limits, Machine, Network, Reach, SandboxSpec, SandboxState, Scratch, Usage,
};

pub use crate::records::run::{DriverKind, Kernel};
