//! The REST API, held to IMS's contract: one `kiln serve`, spoken to as IMS's clients speak to it.
//!
//! Modules follow the contract's subjects. `defects` holds what IMS gets wrong and Kiln must not, each test named after
//! the weakness (docs/api.md lists them).

#![cfg(all(feature = "server", feature = "agent"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "this is a test")]

mod addressing;
mod bodies;
mod coercion;
mod deleted;
mod images;
mod job_life;
mod jobs;
mod manifests;
mod moments;
mod public_keys;
mod recipes;
#[path = "../support/server.rs"]
mod server;
