//! Tests of the registry client: against a real registry, read by a real `skopeo`, and against hostile ones.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::format_push_string,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it did"
)]

#[macro_use]
extern crate kiln_harness;

mod hostile;
mod many;
mod real;
mod rig;
mod scripted;

fn main() -> std::process::ExitCode {
    kiln_harness::main(&["many::", "real::"])
}
