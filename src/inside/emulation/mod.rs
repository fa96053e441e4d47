//! Runs programs of another architecture: the binfmt_misc table, and a proof that emulation works. Native twins are the
//! agent's.
//!
//! Registration happens inside the sandbox's own kernel or user namespace, never on the host.

pub mod binfmt;
pub mod probe;
