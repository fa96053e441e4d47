//! The one door for jobs of the service: what is asked for becomes a job, or is refused.
//!
//! An [`Ask`] says what its user said and nothing more. What follows from that, from the recipe or image, and from the
//! settings is decided here, once: the architecture is that of the recipe or image. A server that carries jobs out gives
//! the job a plan, and what the plan says is not guessed again later.

mod accept;
mod again;
mod plan;
mod refusal;

use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use uuid::Uuid;

pub(super) use self::accept::NewRun;
pub use self::refusal::{Referred, Refusal};
use super::orchestrator::Orchestrator;
use crate::{
    artifacts::ArtifactStore,
    config::JobSettings,
    records::{Change, ChangeKind, Failure, Job, JobId, JobType, PublicKeyId, Step, job::JobOptions},
    store::{SharedStore, StoredRun},
};

/// What is asked for.
#[derive(Debug, Clone)]
pub enum Ask {
    /// A new job.
    New(Box<NewJob>),
    /// A job that has ended, once more.
    Again {
        /// The job.
        old: Box<StoredRun>,
        /// The first step that is done again; none means all of them.
        from: Option<Step>,
    },
}

/// A new job as its user says it. An option that is absent was not said.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// What it does.
    pub job_type: JobType,
    /// The recipe (create) or image (customize) that it starts from.
    pub artifact_id: Uuid,
    /// The key that may log in to its shell. Without one it has no shell.
    pub public_key_id: Option<PublicKeyId>,
    /// The name of the image that comes out.
    pub image_root_archive_name: String,
    /// Whether a failed build opens a shell.
    pub enable_debug: bool,
    /// The shells that it is to have.
    pub shells: Vec<AskedShell>,
    /// What is run in the image. With nothing, its user changes it by hand.
    pub changes: Vec<GivenChange>,
    /// What it gets besides.
    pub options: JobOptions,
}

/// A shell that a job is to have.
#[derive(Debug, Clone)]
pub struct AskedShell {
    /// Its name.
    pub name: Option<String>,
    /// Whether it is confined to the image's root.
    pub jail: bool,
}

/// A change of an image, and its content.
#[derive(Debug, Clone)]
pub struct GivenChange {
    /// What it is.
    pub kind: ChangeKind,
    /// What it is called.
    pub name: String,
    /// What is run.
    pub content: Bytes,
}

/// Takes jobs in.
#[derive(Debug)]
pub struct Asker {
    /// Records.
    pub store: SharedStore,
    /// Objects.
    pub artifacts: ArtifactStore,
    /// What jobs get that do not say otherwise.
    pub jobs: JobSettings,
    /// What carries jobs out; none on a server that keeps records only.
    pub orchestrator: Option<Arc<Orchestrator>>,
}

impl Asker {
    /// Makes the job of this id, on behalf of `who`. A job that no place can carry out is made too: it has ended, and says
    /// why.
    ///
    /// # Errors
    ///
    /// Why there is no job.
    pub async fn ask(&self, id: JobId, ask: Ask, who: Option<String>) -> Result<Job, Refusal> {
        match ask {
            Ask::New(new) => self.make(id, *new, who).await,
            Ask::Again { old, from } => self.orchestrator()?.again(id, &old, from, who).await,
        }
    }

    async fn make(&self, id: JobId, new: NewJob, who: Option<String>) -> Result<Job, Refusal> {
        if !new.changes.is_empty() {
            // Only Kiln itself knows about changes.
            self.orchestrator()?;
        }
        let (job, mut run) = self.plan(id, &new).await?;
        let Some(orchestrator) = &self.orchestrator else {
            self.store.insert_job(&job).await?;
            return Ok(job);
        };
        run.who = who;
        let has_changes = !new.changes.is_empty();
        let made = async {
            if let Some(base) = &mut run.image {
                base.changes = self.keep(id, new.changes).await?;
            }
            orchestrator.accept(job, run).await
        };
        let made = made.await;
        if made.is_err() && has_changes {
            // No job will ever need them.
            if let Err(failure) = self.artifacts.discard_changes(id).await {
                tracing::warn!(
                    job.id = %id, code = failure.code.name(), hint = failure.hint,
                    "what a job was to run is left in S3: {failure}"
                );
            }
        }
        made
    }

    /// Puts what is to be run where the job finds it.
    async fn keep(&self, job: JobId, changes: Vec<GivenChange>) -> Result<Vec<Change>, Failure> {
        let mut kept = Vec::with_capacity(changes.len());
        for (number, GivenChange { kind, name, content }) in changes.into_iter().enumerate() {
            kept.push(Change {
                kind,
                name,
                sha256: hex::encode(Sha256::digest(&content)),
                size: content.len() as u64,
                object: self.artifacts.put_change(job, number, content).await?,
            });
        }
        Ok(kept)
    }

    fn orchestrator(&self) -> Result<&Orchestrator, Refusal> {
        self.orchestrator.as_deref().ok_or(Refusal::RecordsOnly)
    }
}
