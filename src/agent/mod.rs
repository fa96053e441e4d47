//! agent.

pub mod compression;
pub mod digest;
pub mod squashfs;
pub mod template;
pub mod unpack;
