//! The agent: what runs inside a sandbox and turns a recipe into artifacts.
//!
//! It asks its server for the job, does the steps in their order, reports every line, and finishes. It holds no key
//! and makes no decision that its server could make; a sandbox that is killed takes all of it along.

pub mod boot_files;
pub mod build;
pub mod cause;
pub mod channel;
pub mod container;
mod create;
mod customize;
mod deaths;
mod debug;
pub mod digest;
pub mod doors;
pub mod events;
mod evidence;
pub mod fetch;
pub mod guest;
pub mod job;
pub mod kernel;
pub mod kiwi_config;
pub mod outputs;
mod package;
pub mod packages;
pub mod process;
pub mod programs;
pub mod repos;
mod root;
mod shell;
pub mod squashfs;
mod stop;
pub mod template;
pub mod twins;
pub mod unpack;
pub mod upload;
pub mod watch;
