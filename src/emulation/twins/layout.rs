//! Where things are in the directory of twins, which is mounted read-only into the root that is built.
//!
//! ```text
//! /.kiln/             no package owns it, and it is gone before the root is packaged
//!   bin/KEY           the twin of the file with that key: a program, or a module that programs load
//!   trial/KEY         twins that are yet to be compared with what they stand for; empty while they are to come
//!   loader            the distribution's own dynamic loader, native
//!   lib/              native shared libraries by the names that programs ask for
//!   answers.so        loaded into every twin: answers for the target where the kernel would for the host
//!   target            what answers.so must know of the target
//!   cpuinfo           what /proc/cpuinfo says under the emulator
//!   counts            two 64-bit counters, native byte order: execs of twins, execs under the emulator; mounted writable
//! ```
//!
//! `kiln-exec` shares this file, so it needs `core` only.

/// Where the directory is mounted, seen from inside the root.
pub const MOUNT: &str = "/.kiln";
/// Twins by key.
pub const BIN: &str = "/.kiln/bin/";
/// Programs by key whose answers are yet to be compared with those of the emulated ones; `kiln-exec` waits while they are
/// here.
pub const TRIAL: &str = "/.kiln/trial/";
/// The native dynamic loader.
pub const LOADER: &str = "/.kiln/loader";
/// Native shared libraries.
pub const LIB: &str = "/.kiln/lib";
/// The library that answers for the target.
pub const ANSWERS: &str = "/.kiln/answers.so";
/// What [`ANSWERS`] must know of the target.
pub const TARGET: &str = "/.kiln/target";
/// `/proc/cpuinfo` as the emulator shows it.
pub const CPUINFO: &str = "/.kiln/cpuinfo";
/// The counters.
pub const COUNTS: &str = "/.kiln/counts";
/// Set to `off`, this makes a program and all that it starts run under the emulator; set to `now`, a program whose twin is
/// on trial.
pub const SWITCH: &str = "KILN_TWINS";
