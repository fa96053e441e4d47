//! The paths in the directory of twins, which is mounted read-only into the root. Pure: constants only.
//!
//! ```text
//! /.kiln/             belongs to no package, and is gone before the root is packaged
//!   bin/KEY           the twin of the file with that key: a program, or a module that programs load
//!   trial/KEY         twins whose trial is due; empty until the twin has arrived
//!   loaders/KEY       what the image's own dynamic loader, with that key, says to `--version`
//!   loader            the distribution's own dynamic loader, native
//!   lib/              native shared libraries by the names that programs ask for
//!   answers.so        loaded into every twin: answers for the target where the kernel would answer for the host
//!   target            the facts about the target that answers.so needs
//!   cpuinfo           the content of /proc/cpuinfo under the emulator
//!   looks             how often the agent has compared the root with its packages: a 64-bit counter, native byte order
//!   counts            two 64-bit counters, native byte order: execs of twins, execs under the emulator; mounted writable
//!   given-up          the commands whose twins gave up, eight bytes each; mounted writable
//!   emulated          the commands whose twins gave up before, and that start over at once; may be missing
//!   writers           a line for each start and each changed file of a twin, if that is wanted; mounted writable
//! ```
//!
//! `kiln-exec` shares this file, so it needs only `core`.

/// The mount point, seen from inside the root.
pub const MOUNT: &str = "/.kiln";
/// Twins by key.
pub const BIN: &str = "/.kiln/bin/";
/// Programs by key whose answers have yet to be compared with the emulated ones; `kiln-exec` waits while they are
/// here.
pub const TRIAL: &str = "/.kiln/trial/";
/// What loaders of the image, by key, say of their version. `kiln-exec` answers for a loader that is here.
pub const LOADERS: &str = "/.kiln/loaders/";
/// The native dynamic loader.
pub const LOADER: &str = "/.kiln/loader";
/// Native shared libraries.
pub const LIB: &str = "/.kiln/lib";
/// The library that answers for the target.
pub const ANSWERS: &str = "/.kiln/answers.so";
/// The facts about the target that [`ANSWERS`] needs.
pub const TARGET: &str = "/.kiln/target";
/// `/proc/cpuinfo` as the emulator shows it.
pub const CPUINFO: &str = "/.kiln/cpuinfo";
/// The counters.
pub const COUNTS: &str = "/.kiln/counts";
/// How often the agent has compared the root with its packages, as an unsigned 64-bit number in native byte order. A file
/// that has no twin after the second look from now on will have none.
pub const LOOKS: &str = "/.kiln/looks";
/// The content of [`LOOKS`] while nothing looks.
pub const NO_LOOKS: u64 = u64::MAX;
/// The commands whose twins could neither go on nor start over, as numbers of eight bytes that only `answers.so` makes.
pub const COMMANDS_GIVEN_UP: &str = "/.kiln/given-up";
/// The commands that start over under the emulator at once: such numbers from an earlier root.
pub const COMMANDS_EMULATED: &str = "/.kiln/emulated";
/// The record of who changed which file. A line has the words `start`, process and program, or `change`, process,
/// program and path, with tabs between them.
pub const WRITERS: &str = "/.kiln/writers";
/// Set to `off`, this makes a program and its children run under the emulator; set to `now`, a program whose twin is
/// still on trial, instead of waiting for the trial.
pub const SWITCH: &str = "KILN_TWINS";
/// The number of the signal (`SIGTRAP`) by which a twin ends that can neither go on nor start over, so that it is not taken
/// for one that failed.
pub const GIVEN_UP: i32 = 5;
