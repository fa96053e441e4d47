//! The packages that repositories have for the host's architecture. Pure: no I/O.

use std::collections::HashMap;

/// Name and full version of a package, which together identify a build.
pub(super) type Id = (String, String);

/// A package of a repository, as its index describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) address: String,
    /// SHA-256 of the package's file, in lower-case hexadecimal.
    pub(super) sha256: String,
    /// Size in bytes.
    pub(super) size: u64,
    /// Whether the package must have its own signature, in addition to that of the index.
    pub(super) is_signed: bool,
}

/// All available packages.
#[derive(Debug, Default)]
pub(super) struct Index(HashMap<Id, Offer>);

impl Index {
    /// Adds a package. For a name and version that is known already, the earlier one counts.
    pub(super) fn add(&mut self, id: Id, offer: Offer) {
        self.0.entry(id).or_insert(offer);
    }

    /// The package of exactly this version.
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
