//! Logs of jobs, from the store through the API to the terminal: a real `kiln serve`, written to as another server on the
//! same database would.

#![cfg(all(feature = "server", feature = "agent"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

#[path = "logs/api.rs"]
mod api;
#[path = "logs/cli.rs"]
mod cli;
#[path = "support/fake_server.rs"]
mod fake_server;
#[path = "logs/job.rs"]
mod job;
#[path = "support/server.rs"]
mod server;
