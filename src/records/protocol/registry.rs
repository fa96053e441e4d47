//! How a sandbox reads images by way of its server: names and the password. Pure: no I/O.

use sha2::{Digest, Sha256};

/// The user of the way.
pub const USER: &str = "kiln";

/// The name of a registry as part of the name of an image, which may have no port.
pub fn encoded(registry: &str) -> String {
    hex::encode(registry)
}

/// The password of the way, for the agent that has this token.
pub fn password(token: &str) -> String {
    hex::encode(Sha256::digest(format!("registry of {token}")))
}
