//! Runs programs of another architecture: the binfmt_misc table, a proof that emulation works, and native twins.
//!
//! Registration happens inside the sandbox's own kernel or user namespace, never on the host.

pub mod binfmt;
pub mod probe;
pub mod twins;
