//! Defines the reasons why a set is not made or changed. Pure: no I/O.

use kiln_records::{Code, Failure, ImageSet, arch::Arch};
use uuid::Uuid;

use crate::{
    orchestrate::ask::{Referred, Refusal},
    store::StoreError,
};

/// Why a set is not made or changed.
#[derive(Debug, thiserror::Error)]
pub enum SetRefusal {
    /// There is no such set.
    #[error("There is no such set.")]
    Unknown,
    /// There is a set of that name and version.
    #[error("There is a set {name}@{version} already; `add-arch` adds architectures to it.")]
    Exists {
        /// Its name.
        name: String,
        /// Its version.
        version: String,
    },
    /// The set would have no architecture.
    #[error("A set has at least one architecture.")]
    NoArch,
    /// No architecture of the set would be required.
    #[error("A set has at least one required architecture: it would be complete without any image.")]
    NoneRequired,
    /// An architecture is named twice.
    #[error("The architecture {0} is named twice.")]
    Twice(Arch),
    /// The recipe or image is one for another architecture.
    #[error("The {referred} {id} is one for {is}, not for {asked}.")]
    OtherArch {
        /// Which of the two.
        referred: Referred,
        /// Its id.
        id: Uuid,
        /// Its architecture.
        is: Arch,
        /// The one it was named for.
        asked: Arch,
    },
    /// No job can be made for these.
    #[error("There is no recipe to build {} from: give one, or an image.", names(.0))]
    NoRecipe(Vec<Arch>),
    /// The job of an architecture would be refused.
    #[error("{0}: {1}")]
    Job(Arch, Refusal),
    /// The database did not store the set.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SetRefusal {
    pub(super) fn exists(set: &ImageSet) -> Self {
        Self::Exists {
            name: set.name.clone(),
            version: set.version.clone(),
        }
    }
}

impl From<SetRefusal> for Failure {
    fn from(refusal: SetRefusal) -> Self {
        match refusal {
            SetRefusal::Job(_, refusal) => refusal.into(),
            SetRefusal::Store(error) => error.into(),
            SetRefusal::Exists { .. } => Self::new(Code::StoreConflict, refusal).hint("give another version"),
            refused => Self::new(Code::JobRefused, refused),
        }
    }
}

fn names(archs: &[Arch]) -> String {
    let names: Vec<&str> = archs.iter().map(|arch| arch.name()).collect();
    names.join(", ")
}
