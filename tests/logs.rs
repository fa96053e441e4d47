//! Logs of jobs, from the store through the API to the terminal: a real `kiln serve`, written to as another server on the
//! same database would.

mod api;
mod cli;
use crate::support::fake_server;
mod job;
use crate::support::server;
