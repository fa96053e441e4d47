//! The agent's half of the protocol against a server that fails in every way it can.

#![cfg(all(feature = "server", feature = "agent"))]
#![allow(missing_docs, clippy::unwrap_used, reason = "this is a test")]

mod support;

#[path = "agent/events.rs"]
mod events;
#[path = "agent/foreign.rs"]
mod foreign;
#[path = "agent/routes.rs"]
mod routes;
#[path = "agent/server.rs"]
mod server;
#[path = "agent/uploads.rs"]
mod uploads;
