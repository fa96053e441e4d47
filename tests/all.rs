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
mod check_recipe;
mod cli;
mod config;
mod containerfile;
mod crash;
mod customize;
mod demo;
mod disk;
mod doctor;
mod documents;
mod doors;
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
mod openchami;
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
mod uname;
mod verify;
mod web;
mod webhooks;

/// The tests that only `make test-all` runs, by the beginnings of their paths: those that take long, and of each area what
/// the quick ones do not leave out.
const LONG: [&str; 92] = [
    "agent::foreign",
    "agent::watch",
    "api::openapi::a_client_that_tries",
    "bad_input::a_disk",
    "bad_input::archives",
    "bad_input::descriptions",
    "bad_input::packages",
    "bad_input::repositories",
    "boot::",
    "build::a_packed",
    "build::artifacts",
    "build::foreign",
    "build::kept",
    "build::no_password",
    "build::recipes",
    "build::rpm",
    "check_recipe::what_a_build",
    "crash::",
    "customize::changes::the_first",
    "customize::debug",
    "customize::faults",
    "customize::foreign",
    "customize::places",
    "customize::shell",
    "demo::",
    "disk::",
    "documents::",
    "downloads::",
    "drivers::docker",
    "drivers::escape",
    "drivers::kata",
    "drivers::kubernetes",
    "drivers::microvm",
    "drivers::namespace::a_supervisor_killed",
    "drivers::namespace::whoever",
    "drivers::podman",
    "drivers::reach::machines",
    "drivers::reach::what_is_denied_to_machines",
    "emulator_fault::a_crash_that",
    "emulator_fault::a_native",
    "emulator_fault::a_program",
    "equality::",
    "fallback::a_build_that_always",
    "fallback::a_script",
    "fallback::a_twin",
    "faults::",
    "glance::",
    "import::an_export",
    "jobs::a_failed",
    "jobs::the_level",
    "kiln_exec::",
    "kubernetes::",
    "layers::",
    "local::",
    "lock::a_locked",
    "metrics::prometheus",
    "metrics::the_rules",
    "origin::",
    "outside::adding::a_build",
    "outside::formats",
    "outside::root",
    "outside::scripts",
    "outside::trust",
    "overview::what",
    "package::",
    "places::",
    "proxy::a_",
    "rebase::",
    "reproducible::",
    "s3::durability",
    "s3::real",
    "schedules::",
    "schedules_cli::a_nightly",
    "schedules_cli::the_example",
    "sets_cli::",
    "shell::",
    "store::concurrency",
    "toolbox_file::",
    "traces::",
    "transcript::",
    "transfer::",
    "twin_truth::",
    "twin_world::",
    "twins::a_job",
    "twins::a_native",
    "twins::a_package",
    "twins::a_repository",
    "uname::dkms",
    "verify::",
    "web::issuer",
    "web::pages",
    "webhooks::",
];

fn main() -> std::process::ExitCode {
    kiln_harness::main(&LONG)
}
