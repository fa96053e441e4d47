//! The date of images that are made reproducibly. Pure: no I/O.

use serde::{Deserialize, Serialize};

/// The date that stands in a reproducible image wherever its build would leave the time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Epoch {
    /// That of the newest file of the recipe's archive.
    Recipe,
    /// In seconds since 1970. Squashfs has 32 bits for a time.
    At(u32),
}

impl Epoch {
    /// Its seconds since 1970, if they are known without the recipe.
    pub const fn seconds(self) -> Option<u32> {
        match self {
            Epoch::Recipe => None,
            Epoch::At(seconds) => Some(seconds),
        }
    }
}

/// What a job or a recipe says of the date. A date alone asks for a reproducible image, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dating {
    /// Whether the image is to be reproducible.
    pub reproducible: Option<bool>,
    /// The date, in seconds since 1970.
    pub source_date_epoch: Option<u32>,
}

impl Dating {
    /// The date of the image, if it is to be reproducible by what the job says, or else its `recipe`.
    pub fn epoch(self, recipe: Dating) -> Option<Epoch> {
        if !self.wanted().or(recipe.wanted()).unwrap_or_default() {
            return None;
        }
        let at = self.source_date_epoch.or(recipe.source_date_epoch);
        Some(at.map_or(Epoch::Recipe, Epoch::At))
    }

    fn wanted(self) -> Option<bool> {
        self.reproducible.or(self.source_date_epoch.map(|_| true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_decides_before_its_recipe() {
        let dating = |reproducible, source_date_epoch| Dating {
            reproducible,
            source_date_epoch,
        };
        let (nothing, yes, no, dated) = (
            dating(None, None),
            dating(Some(true), None),
            dating(Some(false), None),
            dating(None, Some(7)),
        );
        for (job, recipe, epoch) in [
            (nothing, nothing, None),
            (yes, nothing, Some(Epoch::Recipe)),
            (nothing, yes, Some(Epoch::Recipe)),
            (no, yes, None),
            (no, dated, None),
            (dated, nothing, Some(Epoch::At(7))),
            (dated, no, Some(Epoch::At(7))),
            (yes, dated, Some(Epoch::At(7))),
            (dating(None, Some(8)), dated, Some(Epoch::At(8))),
        ] {
            assert_eq!(job.epoch(recipe), epoch, "{job:?} {recipe:?}");
        }
    }
}
