//! Sandboxes as a server has them: they outlive it, are found again by it, and leave nothing, whoever is killed when.
//!
//! `cases` is what every driver is put through; a module for each driver says how that is done to it, and what only it
//! has to stand. A small static program stands for the agent: it runs the shell script that the test put into it.

mod bell;
mod cases;
mod docker;
mod docker_only;
mod escape;
mod kata;
mod microvm;
mod namespace;
mod place;
mod reach;
mod stand_in;
