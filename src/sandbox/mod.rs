//! Sandboxes: the disposable places that jobs run in, and the drivers that make them.
//!
//! Every driver starts the same agent in the same toolbox and gives it one channel to its server. A driver knows how
//! to make, watch, kill and sweep, and nothing of kiwi or S3.

pub mod namespace;
pub mod toolbox;
