//! The REST API, held to IMS's contract: one `kiln serve`, spoken to as IMS's clients speak to it.
//!
//! Modules follow the contract's subjects. `defects` holds what IMS gets wrong and Kiln must not, each test named after
//! the weakness (docs/api.md lists them).

mod addressing;
mod bodies;
pub(crate) mod catalogue;
mod coercion;
mod defects;
mod deleted;
mod images;
mod job_life;
mod jobs;
mod lists;
mod manifests;
mod moments;
mod moved;
mod openapi;
mod ownership;
mod packages;
mod public_keys;
mod recipes;
mod remote_build_nodes;
mod schedules;
mod sets;
use crate::support::server;
use crate::support::sshd;
mod uploads;
mod v2;
mod wire;
