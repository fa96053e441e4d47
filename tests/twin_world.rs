//! The directory of twins, made of Debian's own packages and used by native programs in a foreign root.

#![cfg(all(feature = "server", feature = "agent"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

#[path = "twin_world/answers.rs"]
mod answers;
#[path = "twin_world/changes.rs"]
mod changes;
#[path = "twin_world/debian.rs"]
mod debian;
#[path = "twin_world/hostile.rs"]
mod hostile;
#[path = "twin_world/joined.rs"]
mod joined;
