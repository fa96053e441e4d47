//! Faults while jobs run: killed processes, a failing S3, full disks, an absent database. In every case each job ends,
//! once, with a complete image or with a cause, and leaves nothing behind.
//!
//! Random choices follow from a seed, which is printed; `KILN_FAULT_SEED` repeats it. `KILN_FAULT_ROUNDS` sets the
//! number of kills (12 by default).
//!
//! Jumps of the clock are not covered: Linux virtualises only the monotonic clock, and a test must not set the host's
//! time of day. Code that compares times of day takes `now` as an argument, and has its own tests.

use crate::support::postgres;
use crate::support::s3_proxy;
mod burst;
mod database;
mod descriptors;
mod disk;
mod invariants;
mod kills;
mod memory;
mod random;
mod s3;
mod site;
mod stop;
mod two_servers;
mod victim;
