//! Remembers for a short time which images have met which requirements. Pure memory: no I/O.

use std::{fmt, time::Duration};

use kiln_records::{ImageId, set::Requirement};
use moka::sync::Cache;

/// How long it is remembered: a thousand nodes that boot at once ask S3 once, and a result that another server has replaced by a
/// worse one counts for no longer.
const REMEMBERED: Duration = Duration::from_mins(1);

/// The most results.
const MOST: u64 = 10_000;

/// Requirements that images have met, by the SHA-256 of their manifests. What an image lacks is not remembered.
pub struct Met(Cache<(ImageId, String, Requirement), ()>);

impl Default for Met {
    fn default() -> Self {
        let cache = Cache::builder().max_capacity(MOST).time_to_live(REMEMBERED);
        Self(cache.build())
    }
}

impl Met {
    pub(super) fn has(&self, id: ImageId, manifest_sha256: &str, requirement: Requirement) -> bool {
        self.0.contains_key(&(id, manifest_sha256.to_owned(), requirement))
    }

    pub(super) fn note(&self, id: ImageId, manifest_sha256: &str, requirement: Requirement) {
        self.0.insert((id, manifest_sha256.to_owned(), requirement), ());
    }

    /// There is a new result.
    pub(super) fn forget(&self, id: ImageId, manifest_sha256: &str, requirement: Requirement) {
        self.0.invalidate(&(id, manifest_sha256.to_owned(), requirement));
    }
}

impl fmt::Debug for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Met")
    }
}
