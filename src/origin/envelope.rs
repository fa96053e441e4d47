//! A signed payload: DSSE v1 (<https://github.com/secure-systems-lab/dsse/blob/master/protocol.md>). Pure: no I/O.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

use super::key::PublicKey;

/// The media type of an envelope.
pub const MEDIA_TYPE: &str = "application/vnd.dsse.envelope.v1+json";

/// The most signatures of an envelope that are tried.
const MOST_SIGNATURES: usize = 16;

/// A payload with its signatures. Texts are base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<Signature>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Signature {
    #[serde(default)]
    keyid: String,
    sig: String,
}

/// Why an envelope's payload is not believed.
#[derive(Debug, thiserror::Error)]
pub enum NotSigned {
    /// It is no envelope.
    #[error("it is no DSSE envelope: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Something in it is not base64.
    #[error("its {0} is not base64")]
    NotBase64(&'static str),
    /// The payload is of another type.
    #[error("its payload is `{0}`")]
    OtherPayload(String),
    /// No signature is by the key.
    #[error("none of its signatures is by the key {0}")]
    OtherKey(String),
}

/// The bytes that are signed: "pre-authentication encoding".
pub(super) fn signed_bytes(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

impl Envelope {
    pub(super) fn new(payload_type: &str, payload: &[u8], key: &PublicKey, signature: &[u8]) -> Self {
        Self {
            payload: STANDARD.encode(payload),
            payload_type: payload_type.to_owned(),
            signatures: vec![Signature {
                keyid: key.id().to_owned(),
                sig: STANDARD.encode(signature),
            }],
        }
    }

    /// Reads an envelope.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn read(text: &[u8]) -> Result<Self, NotSigned> {
        Ok(serde_json::from_slice(text)?)
    }

    /// The payload, if the key has signed it. The ids of keys in an envelope are hints only, so each signature is tried.
    ///
    /// # Errors
    ///
    /// When no signature is by the key, or the payload is of another type.
    pub fn open(&self, payload_type: &str, key: &PublicKey) -> Result<Vec<u8>, NotSigned> {
        if self.payload_type != payload_type {
            return Err(NotSigned::OtherPayload(self.payload_type.clone()));
        }
        let payload = self.payload()?;
        let signed = signed_bytes(payload_type, &payload);
        for signature in self.signatures.iter().take(MOST_SIGNATURES) {
            let bytes = STANDARD.decode(&signature.sig);
            let bytes = bytes.map_err(|_| NotSigned::NotBase64("signature"))?;
            if key.has_signed(&signed, &bytes) {
                return Ok(payload);
            }
        }
        Err(NotSigned::OtherKey(key.id().to_owned()))
    }

    fn payload(&self) -> Result<Vec<u8>, NotSigned> {
        let decoded = STANDARD.decode(&self.payload);
        decoded.map_err(|_| NotSigned::NotBase64("payload"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signed_bytes_are_those_of_the_protocol() {
        // The example of the protocol's text.
        let bytes = signed_bytes("http://example.com/HelloWorld", b"hello world");
        assert_eq!(bytes, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }
}
