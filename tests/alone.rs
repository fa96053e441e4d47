//! Tests that compare the whole host before and after, or measure how long something takes. They run when no other
//! test does.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::format_push_string,
    reason = "a test fails by panicking, and says what it did"
)]

#[macro_use]
extern crate kiln_harness;
#[macro_use]
mod support;

mod hostile;
mod interrupt;
mod sandbox;

fn main() -> std::process::ExitCode {
    kiln_harness::main()
}
