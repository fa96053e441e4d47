//! Proof that a foreign program runs.
