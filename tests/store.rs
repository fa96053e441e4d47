//! Records in SQLite and in PostgreSQL: one suite, run on both.

#[macro_use]
mod place;
use crate::support::postgres;

mod audit;
mod budgets;
mod collections;
mod concurrency;
mod jobs;
mod lists;
mod logs;
mod objects;
mod opening;
mod others;
mod packages;
mod runs;
mod schedules;
mod sets;
mod speed;
