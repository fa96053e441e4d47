//! Tokens of agents: one for each try of a job, kept as a digest only.

use rand::Rng;
use sha2::{Digest, Sha256};

/// A new token: its text, and what is kept of it.
pub(super) fn fresh() -> (String, String) {
    let mut bytes = [0_u8; 32];
    rand::rng().fill_bytes(&mut bytes);
    let text = hex::encode(bytes);
    let digest = digest(&text);
    (text, digest)
}

/// Whether a text is the token of which that is kept. A token has 256 random bits and only its digest is compared, so
/// that the time which the comparison takes says nothing of use.
pub(super) fn fits(text: &str, kept: &str) -> bool {
    digest(text) == kept
}

fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}
