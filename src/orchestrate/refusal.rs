//! Defines the reasons why a request does not become a job. Pure: no I/O.

use std::fmt;

use kiln_records::{Code, Failure, Step};
use uuid::Uuid;

use crate::{artifacts::Unusable, store::StoreError};

/// Why a request does not become a job.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A create job has no shell except that of `enable_debug`.
    #[error("`ssh_containers` cannot be given for a create job.")]
    ShellOfCreate,
    /// Only a recipe has a description.
    #[error(
        "Profiles, what is added to a description (`add_repos`, `add_packages` …), and choices of a Containerfile are for create jobs."
    )]
    OfRecipes,
    /// A job can have one shell at most.
    #[error("A job has one SSH container at most.")]
    TooManyShells,
    /// The record it refers to does not exist, or was deleted.
    #[error("There is no {0} with the id {1}.")]
    Unknown(Referred, Uuid),
    /// The recipe or image has no object.
    #[error("The {0} has no link: nothing was uploaded for it yet.")]
    NoLink(Referred),
    /// The recipe is of a kind that only IMS's records know.
    #[error("Recipes of type packer cannot be built.")]
    Packer,
    /// What recipes of this kind do not have.
    #[error("Recipes of type containerfile have no {0}.")]
    OfContainerfile(&'static str),
    /// What only recipes of that kind have.
    #[error("`containerfile`, `target` and `secrets` are for recipes of type containerfile.")]
    OnlyContainerfile,
    /// The site has no such secret, or not for this user.
    #[error("There is no secret `{0}` for this user; `secrets` in [containers] has those of the site.")]
    NoSecret(String),
    /// The object of the recipe or image is unusable, or S3 gives no answer.
    #[error(transparent)]
    Object(#[from] Unusable),
    /// This server does not carry jobs out.
    #[error("This server only keeps the records of jobs (`run = false` in [jobs]).")]
    RecordsOnly,
    /// The job to repeat has not ended.
    #[error("The job has not ended; cancel it first.")]
    NotEnded,
    /// The sandbox of the job to resume from still exists.
    #[error("The job is still being cleared away; try again in a moment.")]
    NotSettled,
    /// The files of the job to resume from no longer exist.
    #[error("Nothing is left of the job's files to go on from; retry it without `from`.")]
    FilesGone,
    /// The job to resume from did not get that far.
    #[error(
        "The job cannot go on from {from}: the last step that ended well is {}.",
        .reached.map_or("none", Step::name)
    )]
    NotReached {
        /// The requested step.
        from: Step,
        /// The last step that ended well.
        reached: Option<Step>,
    },
    /// Something needed to take the job in has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The database did not store the job.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The kind of record that a job refers to.
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

/// The scheduler's view of a refusal: a failure of the place may pass, while a refused job stays refused.
impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Failed(failure) | Refusal::Object(Unusable::S3(failure)) => failure,
            Refusal::Store(error) => error.into(),
            Refusal::Unknown(of, _) => Self::new(Code::JobRefused, refusal).hint(match of {
                Referred::Recipe => "`kiln recipes list` has the ids",
                Referred::Image => "`kiln images list` has the ids",
                Referred::PublicKey => "`kiln public-keys list` has the ids",
            }),
            refused => Self::new(Code::JobRefused, refused),
        }
    }
}
