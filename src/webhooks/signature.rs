//! Signs deliveries as Standard Webhooks 1.0.0 says (<https://www.standardwebhooks.com>). Pure: no I/O.

use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::STANDARD};
use uuid::Uuid;

/// The least length of a secret, in bytes.
const SHORTEST: usize = 16;

/// A receiver's secret.
pub(super) struct SigningSecret(hmac::Key);

impl SigningSecret {
    /// Reads a secret: `whsec_` and base64, or any other text as it is.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let bytes = match text.strip_prefix("whsec_") {
            Some(encoded) => STANDARD
                .decode(encoded)
                .map_err(|_| "what follows `whsec_` is no base64".to_owned())?,
            None => text.as_bytes().to_vec(),
        };
        if bytes.len() < SHORTEST {
            return Err(format!("it is shorter than {SHORTEST} bytes"));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The value of the header `webhook-signature`.
    pub(super) fn sign(&self, id: Uuid, timestamp: u64, body: &str) -> String {
        let tag = hmac::sign(&self.0, format!("{id}.{timestamp}.{body}").as_bytes());
        format!("v1,{}", STANDARD.encode(tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_broken_secrets_are_refused() {
        for wrong in ["", "whsec_", "whsec_%%%", "whsec_MTIzNA==", "123456789012345"] {
            assert!(SigningSecret::read(wrong).is_err(), "{wrong}");
        }
        assert!(SigningSecret::read("1234567890123456\n").is_ok());
    }
}
