//! How far a build may start from what an earlier one made: its tree after all packages, a *layer*, or its whole image. Pure: no
//! I/O.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::ImageId;

/// What a create job may reuse of earlier ones.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum CacheDepth {
    /// Nothing: the root is made from the beginning.
    None,
    /// The root as it is once all packages of the recipe are installed, if it would be the same.
    #[default]
    Packages,
    /// As `packages`; and where no root has the packages, that of a similar recipe, in which those that it lacks are installed.
    Similar,
    /// The whole image, if all that it is made from is the same; else as `packages`.
    Image,
}

impl CacheDepth {
    /// All depths, in order.
    pub const ALL: [Self; 4] = [Self::None, Self::Packages, Self::Similar, Self::Image];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Packages => "packages",
            Self::Similar => "similar",
            Self::Image => "image",
        }
    }
}

impl fmt::Display for CacheDepth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no depth.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no depth of reuse called `{0}`: it is one of none, packages, similar, image")]
pub struct UnknownCacheDepth(String);

impl FromStr for CacheDepth {
    type Err = UnknownCacheDepth;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let depth = Self::ALL.into_iter().find(|depth| depth.name() == name);
        depth.ok_or_else(|| UnknownCacheDepth(name.to_owned()))
    }
}

/// What a create job reused of an earlier one, or keeps for later ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayerUse {
    /// What was done.
    pub outcome: LayerOutcome,
    /// The reason, where nothing was reused; where a root was extended, what was added to it.
    pub why: Option<String>,
    /// SHA-256 of the layer, hexadecimal, where there is one.
    pub sha256: Option<String>,
    /// Its size in bytes, where there is one.
    pub size: Option<u64>,
    /// The earlier image, where the whole of it was taken.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub image: Option<ImageId>,
    /// The repositories whose packages are in the root, in the recipe's order.
    pub repositories: Vec<RepositoryState>,
}

/// What was done about a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LayerOutcome {
    /// The root was made from it.
    Reused,
    /// The root was made from that of a similar recipe, and the packages that it lacked were installed.
    Extended,
    /// The packages were installed, and the layer is kept for later jobs.
    Kept,
    /// The packages were installed, and no layer is kept.
    Passed,
    /// Nothing was made: the image is a copy of an earlier one.
    Image,
}

impl LayerOutcome {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reused => "reused",
            Self::Extended => "extended",
            Self::Kept => "kept",
            Self::Passed => "passed",
            Self::Image => "image",
        }
    }
}

/// A repository as it was when a job used it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RepositoryState {
    /// The address of its metadata, without passwords and query.
    pub metadata: String,
    /// SHA-256 of that file, hexadecimal. It has the digests of all lists of packages.
    pub sha256: String,
}

impl RepositoryState {
    /// Whether its texts are of a usual length.
    pub fn is_sound(&self) -> bool {
        [&self.metadata, &self.sha256]
            .iter()
            .all(|text| text.len() <= LayerUse::LONGEST)
    }
}

impl LayerUse {
    /// The most repositories of one recipe that are told.
    pub const MOST_REPOSITORIES: usize = 100;

    /// The longest text in it, in bytes.
    const LONGEST: usize = 4096;

    /// Nothing was reused or kept, for this reason.
    pub fn passed(why: impl fmt::Display) -> Self {
        Self {
            outcome: LayerOutcome::Passed,
            why: Some(why.to_string()),
            sha256: None,
            size: None,
            image: None,
            repositories: Vec::new(),
        }
    }

    /// Whether it is what an agent may say: a recipe's sandbox must not decide the size of a record, and only the server takes
    /// a whole image.
    pub fn is_sound(&self) -> bool {
        let short = |text: &str| text.len() <= Self::LONGEST;
        self.image.is_none()
            && self.outcome != LayerOutcome::Image
            && self.repositories.len() <= Self::MOST_REPOSITORIES
            && self.why.as_deref().is_none_or(short)
            && self.sha256.as_deref().is_none_or(short)
            && self.repositories.iter().all(RepositoryState::is_sound)
    }
}
