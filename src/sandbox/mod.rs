//! Sandboxes: the disposable places in which jobs run, and the drivers that make them. Touches the host's kernel,
//! processes and disk, or a container engine.
//!
//! Every driver starts the same agent in the same toolbox and tells it the server's address. A driver can make, watch,
//! kill and sweep sandboxes, and knows nothing of kiwi or S3.

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
#[cfg(feature = "server")]
pub mod toolbox;
#[cfg(feature = "server")]
pub mod toolboxes;

#[cfg(feature = "server")]
pub use driver::{
    Capacity, DiskLimit, Driver, Evidence, Limits, Machine, Network, Reach, SandboxSpec, SandboxState, Scratch, Usage,
};

pub use kiln_inside::room;

pub use crate::records::run::{DriverKind, Kernel};
