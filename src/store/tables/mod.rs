//! Which columns each kind of record has.

mod image;
mod job;
mod public_key;
mod recipe;
mod token;
