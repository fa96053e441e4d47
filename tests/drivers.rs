//! Tests sandboxes as a server uses them: they outlive it, it finds them again, and they leave nothing behind,
//! whichever process is killed at whatever time.
//!
//! `cases` has the tests of every driver. The module of each driver adapts them and adds its own. A small static
//! program stands in for the agent: it runs the test's shell script.

mod bell;
mod cases;
mod docker;
mod docker_only;
mod escape;
mod kata;
mod kubernetes;
mod microvm;
mod namespace;
mod place;
mod podman;
mod reach;
mod stand_in;
