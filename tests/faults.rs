//! Faults while jobs are carried out: processes that are killed, an S3 that fails, disks that are full, a database that
//! is away. Whatever happens, each job ends, once, with an image that is whole or with a cause, and nothing is left.
//!
//! What is random comes from a seed, which is printed; `KILN_FAULT_SEED` repeats it. `KILN_FAULT_ROUNDS` says how often
//! something is killed (24 by default).
//!
//! Jumps of the clock are not here: Linux virtualises the monotonic clock only, and nobody's time of day is set for a
//! test. Whoever compares times of day takes `now` as an argument, and is tested where it is.

#![cfg(all(feature = "server", feature = "agent"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

#[path = "support/postgres.rs"]
mod postgres;
#[path = "support/s3_proxy.rs"]
mod s3_proxy;
mod support;

#[path = "faults/burst.rs"]
mod burst;
#[path = "faults/database.rs"]
mod database;
#[path = "faults/disk.rs"]
mod disk;
#[path = "faults/invariants.rs"]
mod invariants;
#[path = "faults/kills.rs"]
mod kills;
#[path = "faults/random.rs"]
mod random;
#[path = "faults/s3.rs"]
mod s3;
#[path = "faults/site.rs"]
mod site;
#[path = "faults/stop.rs"]
mod stop;
#[path = "faults/two_servers.rs"]
mod two_servers;
#[path = "faults/victim.rs"]
mod victim;
