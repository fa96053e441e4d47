//! What repositories have for the host's architecture.

use std::collections::HashMap;

/// Name and version of a package: all of the version that tells one build from another.
pub(super) type Id = (String, String);

/// A package that a repository has, as its index names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) address: String,
    /// Of the package's file, lower-case hexadecimal.
    pub(super) sha256: String,
    /// Bytes.
    pub(super) size: u64,
    /// Whether the repository's users ask for the package's own signature, besides that of the index.
    pub(super) is_signed: bool,
}

/// All packages that could be had.
#[derive(Debug, Default)]
pub(super) struct Index(HashMap<Id, Offer>);

impl Index {
    /// Adds a package. Of several with one name and version the first counts.
    pub(super) fn add(&mut self, id: Id, offer: Offer) {
        self.0.entry(id).or_insert(offer);
    }

    /// Exactly this version.
    pub(super) fn get(&self, id: &Id) -> Option<&Offer> {
        self.0.get(id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
