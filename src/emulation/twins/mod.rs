//! Native twins: programs of the host's architecture that run in place of the target's own.
//!
//! A twin is the same program, of the same package in the same version, built for the host. `kiln-exec` is what the
//! sandbox's `binfmt_misc` calls for every foreign program; it runs the twin of exactly that file if there is one, and
//! the emulator otherwise.

pub mod counts;
pub mod key;
pub mod layout;
