//! From a request to an ended job: where it runs, what it is given, how it is watched, what is left of it.

pub mod agents;
pub mod job_dir;
pub mod place;
pub mod reap;
pub mod recipe;
pub mod run;
mod serve;
