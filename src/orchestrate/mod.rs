//! orchestrate.
