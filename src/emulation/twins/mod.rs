//! Native twins: programs of the host's architecture that run in place of the target's own. Reads the root and
//! packages, and writes the directory of twins.
//!
//! A twin is the same program, of the same package in the same version, built for the host. The sandbox's
//! `binfmt_misc` calls `kiln-exec` for every foreign program; it runs the twin of exactly that file if there is one,
//! and the emulator otherwise.

pub mod counts;
pub mod join;
pub mod key;
pub mod layout;
pub mod table;

#[cfg(feature = "agent")]
mod choice;
#[cfg(feature = "agent")]
mod elf;
#[cfg(feature = "agent")]
pub(crate) mod gather;
#[cfg(feature = "agent")]
mod pairs;
#[cfg(feature = "agent")]
pub(crate) mod root;
#[cfg(feature = "agent")]
mod shelf;
#[cfg(feature = "agent")]
pub mod truth;
#[cfg(feature = "agent")]
pub mod world;
