//! Why there is no job.

use std::fmt;

use uuid::Uuid;

use crate::{
    artifacts::Unusable,
    records::{Code, Failure, Step},
    store::StoreError,
};

/// Why what was asked for does not become a job.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A create job has no shell but that of `enable_debug`.
    #[error("`ssh_containers` cannot be given for a create job.")]
    ShellOfCreate,
    /// One shell is all that a job can have.
    #[error("A job has one SSH container at most.")]
    TooManyShells,
    /// What it refers to is not there, or was deleted.
    #[error("There is no {0} with the id {1}.")]
    Unknown(Referred, Uuid),
    /// Recipe or image have no object.
    #[error("The {0} has no link: nothing was uploaded for it yet.")]
    NoLink(Referred),
    /// The recipe is of a kind that only IMS's records know.
    #[error("Recipes of type packer cannot be built.")]
    Packer,
    /// The object of recipe or image is of no use, or S3 does not say.
    #[error(transparent)]
    Object(#[from] Unusable),
    /// This server carries no jobs out.
    #[error("This server only keeps the records of jobs (`run = false` in [jobs]).")]
    RecordsOnly,
    /// The job that is to be done again goes on.
    #[error("The job has not ended; cancel it first.")]
    NotEnded,
    /// The sandbox of the job that is to be gone on from is still there.
    #[error("The job is still being cleared away; try again in a moment.")]
    NotSettled,
    /// The files of the job that is to be gone on from are not there.
    #[error("Nothing is left of the job's files to go on from; retry it without `from`.")]
    FilesGone,
    /// The job that is to be gone on from did not get that far.
    #[error(
        "The job cannot go on from {from}: the last step that ended well is {}.",
        .reached.map_or("none", Step::name)
    )]
    NotReached {
        /// The step that is asked for.
        from: Step,
        /// The last step that ended well.
        reached: Option<Step>,
    },
    /// What is needed to take the job in has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The database does not keep the job.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a job refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Referred {
    /// A recipe.
    Recipe,
    /// An image.
    Image,
    /// A key.
    PublicKey,
}

impl fmt::Display for Referred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Recipe => "recipe",
            Self::Image => "image",
            Self::PublicKey => "public key",
        })
    }
}

/// As the scheduler has it: what is of the place passes, and a job that is refused stays so.
impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Failed(failure) | Refusal::Object(Unusable::S3(failure)) => failure,
            Refusal::Store(error) => error.into(),
            refused => Self::new(Code::JobRefused, refused),
        }
    }
}
