//! The statement about an image: an in-toto statement v1 with SLSA provenance v1. Pure: no I/O.
//!
//! <https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md>, <https://slsa.dev/spec/v1.0/provenance>

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The media type of a statement, which is also the payload type of its envelope.
pub const MEDIA_TYPE: &str = "application/vnd.in-toto+json";

/// What the predicate is.
pub const PREDICATE_TYPE: &str = "https://slsa.dev/provenance/v1";

const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";

/// A statement: what it is about, and what it says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    /// The objects that it is about.
    pub subject: Vec<Subject>,
    /// The type of the predicate.
    #[serde(rename = "predicateType")]
    pub predicate_type: String,
    /// What is said of them.
    pub predicate: Value,
}

/// An object, by its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The last part of its key: `manifest.json`, `rootfs`.
    pub name: String,
    /// Digests in lower-case hexadecimal, by their algorithms.
    pub digest: BTreeMap<String, String>,
}

impl Subject {
    /// The object of this name and SHA-256.
    pub fn new(name: impl Into<String>, sha256: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            digest: BTreeMap::from([("sha256".to_owned(), sha256.into())]),
        }
    }

    /// Its SHA-256.
    pub fn sha256(&self) -> Option<&str> {
        self.digest.get("sha256").map(String::as_str)
    }
}

impl Statement {
    /// A statement of provenance.
    pub fn provenance(subject: Vec<Subject>, predicate: Value) -> Self {
        Self {
            kind: STATEMENT_TYPE.to_owned(),
            subject,
            predicate_type: PREDICATE_TYPE.to_owned(),
            predicate,
        }
    }

    /// Reads a statement. None if it is no in-toto statement v1.
    pub fn read(text: &[u8]) -> Option<Self> {
        let statement: Self = serde_json::from_slice(text).ok()?;
        (statement.kind == STATEMENT_TYPE).then_some(statement)
    }
}
