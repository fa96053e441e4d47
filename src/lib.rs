//! Kiln builds operating-system images for any CPU architecture on the hosts a site already has.
//!
//! # The life of a build
//!
//! ```text
//!  kiln build (parent process)                       sandbox (one per job)
//!  ────────────────────────────────────────────      ───────────────────────────────────────────────
//!  read the recipe; arch := --arch | recipe | host
//!  place(): native or emulated, which driver
//!  create the sandbox                        ────▶   kiln-agent starts
//!  job description                           ◀────   "what do I do"
//!  numbered events: log file, progress bars  ◀────   fetch → template → repos → build → package
//!  presigned multipart URLs only             ◀────   upload, in parallel, while digests are computed
//!                         S3 ◀══════════════════════ parts
//!  HEAD every object, then manifest.json     ◀────   finish
//!  destroy the sandbox
//! ```
//!
//! # Modules, and which way they depend
//!
//! [`arch`] and [`records`] know nobody. [`emulation`], [`artifacts`] and [`sandbox`] know only those.
//! [`orchestrate`] joins them into a job, [`cli`] sits on top, on [`client`] where it speaks to a server. [`agent`] is the other side of the sandbox wall:
//! it uses [`records`] and [`emulation`] and never the server's half.

pub mod arch;
pub mod compression;
pub mod emulation;
pub mod records;
#[cfg(any(feature = "server", feature = "agent"))]
pub mod routes;
pub mod sandbox;

#[cfg(feature = "agent")]
pub mod agent;
#[cfg(feature = "agent")]
pub mod squashfs;

#[cfg(feature = "server")]
pub mod api;
#[cfg(feature = "server")]
pub mod artifacts;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod client;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod doctor;
#[cfg(feature = "server")]
pub mod host;
#[cfg(feature = "server")]
pub mod import;
#[cfg(feature = "server")]
mod near;
#[cfg(feature = "server")]
pub mod orchestrate;
#[cfg(feature = "server")]
pub mod remote_nodes;
#[cfg(feature = "server")]
pub mod settings;
#[cfg(feature = "server")]
pub mod site;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod tls;
