//! Customize jobs as their users see them: real OpenSSH, sftp, rsync and Ansible against shells of real sandboxes, and what
//! becomes of the image, compared to the last byte.

#![cfg(all(feature = "server", feature = "agent"))]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

#[path = "customize/changes.rs"]
mod changes;
#[path = "customize/debug.rs"]
mod debug;
#[path = "customize/faults.rs"]
mod faults;
#[path = "customize/foreign.rs"]
mod foreign;
#[path = "customize/places.rs"]
mod places;
#[path = "customize/shell.rs"]
mod shell;
#[path = "customize/site.rs"]
mod site;
mod support;
