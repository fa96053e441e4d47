//! Sandboxes: the disposable places in which jobs run, and the drivers that make them. Touches the host's kernel,
//! processes and disk, a container engine, or a cluster.
//!
//! Every driver starts the same agent in the same toolbox and tells it the server's address. A driver can make, watch,
//! kill and sweep sandboxes, and knows nothing of kiwi or S3.

pub mod agents;
pub mod docker;
pub mod doors;
pub mod driver;
pub mod kubernetes;
pub mod lease;
pub(crate) mod microvm;
pub mod namespace;
mod orders;
mod packed;
pub mod toolbox;
pub mod toolboxes;

pub use driver::{
    Capacity, DiskLimit, Driver, Evidence, Limits, Machine, Network, Reach, SandboxSpec, SandboxState, Scratch,
    ShellWay, Usage,
};

pub use kiln_records::run::{DriverKind, Kernel};
