//! Every test but those of `alone`, in one program: one queue of tests keeps all CPUs busy, and the database, the
//! container engine and the repositories are started once.

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

mod agent;
mod api;
mod auth;
mod backup;
mod bad_input;
mod boot;
mod build;
mod cli;
mod config;
mod crash;
mod customize;
mod demo;
mod disk;
mod doctor;
mod documents;
mod downloads;
mod drivers;
mod emulator_fault;
mod equality;
mod fallback;
mod faults;
mod glance;
mod image_files;
mod import;
mod ims_cli;
mod jobs;
mod kiln_exec;
mod kubernetes;
mod layers;
mod local;
mod lock;
mod logs;
mod metrics;
mod origin;
mod outside;
mod overview;
mod package;
mod places;
mod proxy;
mod rebase;
mod reproducible;
mod retention;
mod s3;
mod schedules;
mod schedules_cli;
mod serve;
mod sets_cli;
mod shell;
mod store;
mod toolbox_file;
mod traces;
mod transcript;
mod transfer;
mod twin_truth;
mod twin_world;
mod twins;
mod verify;
mod web;
mod webhooks;

fn main() -> std::process::ExitCode {
    kiln_harness::main()
}
