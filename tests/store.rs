//! Records in SQLite and in PostgreSQL: one suite, run on both.

#![cfg(feature = "server")]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

#[path = "store/place.rs"]
#[macro_use]
mod place;
#[path = "support/postgres.rs"]
mod postgres;

#[path = "store/collections.rs"]
mod collections;
#[path = "store/concurrency.rs"]
mod concurrency;
#[path = "store/jobs.rs"]
mod jobs;
#[path = "store/lists.rs"]
mod lists;
#[path = "store/logs.rs"]
mod logs;
#[path = "store/objects.rs"]
mod objects;
#[path = "store/opening.rs"]
mod opening;
#[path = "store/others.rs"]
mod others;
#[path = "store/runs.rs"]
mod runs;
#[path = "store/schedules.rs"]
mod schedules;
#[path = "store/speed.rs"]
mod speed;
