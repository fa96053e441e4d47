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

/// The tests that only `make test-all` runs.
const LONG: [&str; 6] = [
    "hostile::",
    "interrupt::a_",
    "interrupt::ctrl_c_during_an_upload",
    "interrupt::whoever_dies",
    "sandbox::a_build_that_needs_more_memory",
    "sandbox::two_installations",
];

fn main() -> std::process::ExitCode {
    kiln_harness::main(&LONG)
}
