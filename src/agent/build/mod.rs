//! Builds a root file system from a recipe: one file per kind of recipe. Runs the build tool, and touches the root.

pub(crate) mod ended;
pub mod kiwi;
