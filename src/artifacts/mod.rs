//! artifacts.
