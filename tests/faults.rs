//! Faults while jobs are carried out: processes that are killed, an S3 that fails, disks that are full, a database that
//! is away. Whatever happens, each job ends, once, with an image that is whole or with a cause, and nothing is left.
//!
//! What is random comes from a seed, which is printed; `KILN_FAULT_SEED` repeats it. `KILN_FAULT_ROUNDS` says how often
//! something is killed (24 by default).
//!
//! Jumps of the clock are not here: Linux virtualises the monotonic clock only, and nobody's time of day is set for a
//! test. Whoever compares times of day takes `now` as an argument, and is tested where it is.

use crate::support::postgres;
use crate::support::s3_proxy;
mod burst;
mod database;
mod disk;
mod invariants;
mod kills;
mod random;
mod s3;
mod site;
mod stop;
mod two_servers;
mod victim;
