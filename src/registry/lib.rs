//! Images in OCI registries and layouts: publishing, copying, inspecting and checking them. Talks to registries, runs
//! `sqfs2tar`, and reads and writes files that callers name.
//!
//! A registry is a stranger: what it answers is limited in size and time, checked against digests, and interpreted only
//! as far as it is understood. docs/registries.md has the rules, and docs/adr/0017 the reasons for a client of our own.
//!
//! ```text
//!  publish  mirror  inspect  check      what users ask for
//!        place (remote | layout)        documents and blobs, wherever they are
//!   upload  download                    blobs in pieces, resumed
//!           transport                   requests: login, redirects, time, refusals
//! ```

pub mod affinity;
mod challenge;
pub mod check;
pub mod credentials;
pub mod digest;
mod download;
mod elf;
pub mod inspect;
mod layer;
mod layout;
pub mod mirror;
pub mod model;
pub mod object;
mod pipe;
mod place;
pub mod publish;
pub mod pull;
pub mod reference;
mod referrers;
mod refusal;
mod remote;
mod root;
pub mod source;
mod transport;
mod upload;
mod walk;

pub use place::{Place, open};
pub use reference::{Location, Reference, Which};
pub use remote::Remote;
pub use transport::{Access, Patience};

use std::sync::Arc;

/// Is told, in one line each time, what is being done.
pub type Notes = Arc<dyn Fn(&str) + Send + Sync>;
