//! The agent's half of the protocol against a server that fails in every way it can.

mod events;
mod foreign;
mod lines;
mod routes;
mod server;
mod uploads;
mod watch;
