//! Makes and checks the tokens of agents: one for each try of a job, of which only a digest is kept. Pure, apart from
//! the random numbers.

use rand::Rng;
use sha2::{Digest, Sha256};

/// A new token: its text, and the digest to keep.
pub(super) fn fresh() -> (String, String) {
    let mut bytes = [0_u8; 32];
    rand::rng().fill_bytes(&mut bytes);
    let text = hex::encode(bytes);
    let digest = digest(&text);
    (text, digest)
}

/// Whether a text is the token with this digest. A token has 256 random bits and only its digest is compared, so the
/// time that the comparison takes reveals nothing useful.
pub(super) fn fits(text: &str, kept: &str) -> bool {
    digest(text) == kept
}

fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}
