//! Kiln builds operating-system images for any CPU architecture on the hosts a site already has.
//!
//! # The life of a job
//!
//! ```text
//!  a server, or a command without one                sandbox (one per job)
//!  ────────────────────────────────────────────      ───────────────────────────────────────────────
//!  ask: the job is a row of the records
//!  place: native or emulated, and where
//!  launch: make the sandbox                  ────▶   kiln-agent starts
//!  job description                           ◀────   "what do I do"
//!  numbered events: log, progress bars       ◀────   fetch → template → repos → build → package
//!  presigned multipart URLs only             ◀────   upload, in parallel, while digests are computed
//!                         S3 ◀══════════════════════ parts
//!  commit: HEAD every object, then manifest  ◀────   finish
//!  settle: destroy the sandbox
//! ```
//!
//! # Modules and their dependencies
//!
//! Cargo keeps the crates apart. [`kiln_records`] and [`kiln_inside`] are the ground of both sides of the sandbox's wall.
//! `kiln-agent` is the inner side, which never knows the outer one: this crate. [`kiln_s3`] is the embedded S3 service.
//!
//! Here [`config`] describes the settings and makes nothing, and [`store`], [`artifacts`] and [`sandbox`] do the work.
//! [`orchestrate`] joins them into jobs, [`api`] offers those, and [`site`] makes all of it from the configuration: it
//! is the only place that puts the parts together. [`cli`] sits on top, on [`client`] where it talks to a server.
//!
//! `layers.rs` has the whole order, and tests that enforce it.

pub mod sandbox;

pub mod api;
pub mod artifacts;
pub mod boot;
pub mod cli;
pub mod client;
pub mod config;
pub mod disk;
pub mod doctor;
pub mod glance;
pub mod host;
pub mod import;
pub mod metrics;
pub mod orchestrate;
pub mod origin;
pub mod proxy;
pub mod remote_nodes;
pub mod retention;
pub mod settings;
pub mod site;
pub mod squashfs;
pub mod store;
pub mod tls;
pub mod traces;
pub mod web;
pub mod webhooks;

#[cfg(test)]
mod layers;
