//! The directory of twins, made of Debian's own packages and used by native programs in a foreign root.

mod support;

#[path = "twin_world/answers.rs"]
mod answers;
#[path = "twin_world/changes.rs"]
mod changes;
#[path = "twin_world/debian.rs"]
mod debian;
