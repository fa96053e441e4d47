//! agent.

pub mod boot_files;
pub mod compression;
pub mod digest;
pub mod kernel;
pub mod kiwi_config;
pub mod repos;
pub mod squashfs;
pub mod template;
pub mod unpack;
