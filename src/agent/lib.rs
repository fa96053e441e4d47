//! The agent, which runs inside a sandbox and turns a recipe into artifacts. Talks to its server and to S3, runs
//! tools, and touches the sandbox only.
//!
//! It asks its server for the job, does the steps in order, reports every line, and reports the outcome. It holds no
//! key and makes no decision that its server could make; it leaves nothing behind when its sandbox is killed.

mod archives;
pub mod boot_files;
pub mod build;
mod building;
pub mod cause;
pub mod channel;
mod checks;
pub mod container;
pub mod containerfile;
mod create;
mod customize;
mod deaths;
mod debug;
pub mod digest;
pub mod doors;
pub mod events;
mod evidence;
mod failed_scripts;
pub mod fetch;
mod found;
pub mod guest;
mod identity;
mod ids;
mod inventory;
pub mod job;
pub mod kernel;
pub mod kiwi_config;
mod layers;
mod line_ends;
mod lock;
mod log_budget;
mod mask;
pub mod mksquashfs;
pub mod normalize;
pub mod outputs;
mod package;
mod package_digest;
pub mod packages;
mod pauses;
pub mod process;
mod processes;
pub mod programs;
mod proxy;
mod reading;
mod recipe_settings;
pub mod release;
mod remnants;
pub mod repos;
mod resolved;
mod root;
mod shell;
pub mod squashfs;
mod stop;
pub mod template;
pub mod twins;
pub mod unpack;
pub mod upload;
pub mod verify;
mod wanted;
pub mod watch;

#[cfg(test)]
use kiln_records::compression::Compression;
#[cfg(test)]
#[path = "../records/compression/packing.rs"]
mod packing;
