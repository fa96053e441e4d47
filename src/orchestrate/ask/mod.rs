//! Takes in every job of the service: a request becomes a job here, or is refused. It reads and writes rows of the
//! store and objects in S3, and hands the job to the orchestrator.
//!
//! An [`Ask`] contains what the user said and nothing more. The consequences of that, of the recipe or image, and of
//! the settings are decided here, once: for example, the architecture is that of the recipe or image. A server that
//! carries jobs out gives the job a plan, and nothing in the plan is guessed again later.

mod archive;
mod plan;

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use kiln_records::{Change, ChangeKind, Failure, Job, JobId, JobType, PublicKeyId, ServerId, Step, job::JobOptions};
use sha2::{Digest, Sha256};
use uuid::Uuid;

pub use self::archive::ArchiveJob;
use self::plan::Plans;
pub use super::refusal::{Referred, Refusal};
use super::{intake::NewRun, met::Met, orchestrator::Orchestrator};
use crate::{
    artifacts::ArtifactStore,
    config::{ChannelRule, JobSettings},
    store::{Allowance, Maker, Most, SharedStore, StoreError, StoredRun},
    webhooks::Webhooks,
};

/// A request for a job.
#[derive(Debug, Clone)]
pub enum Ask {
    /// A new job.
    New(Box<NewJob>),
    /// A job that has ended, to be repeated.
    Again {
        /// The job.
        old: Box<StoredRun>,
        /// The first step to repeat; `None` means all of them.
        from: Option<Step>,
    },
    /// A build of an archive that has no record.
    Archive(Box<ArchiveJob>),
}

/// A new job as its user describes it. An absent option was not given.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// The kind of job.
    pub job_type: JobType,
    /// The recipe (create) or image (customize) that the job starts from.
    pub artifact_id: Uuid,
    /// The key that may log in to the job's shell. Without one the job has no shell.
    pub public_key_id: Option<PublicKeyId>,
    /// The name of the resulting image.
    pub image_root_archive_name: String,
    /// Whether a failed build opens a shell.
    pub enable_debug: bool,
    /// The requested shells.
    pub shells: Vec<AskedShell>,
    /// The changes to run in the image. Without any, the user changes the image by hand.
    pub changes: Vec<GivenChange>,
    /// The job's other options.
    pub options: JobOptions,
}

/// A requested shell of a job.
#[derive(Debug, Clone)]
pub struct AskedShell {
    /// Its name.
    pub name: Option<String>,
    /// Whether it is confined to the image's root.
    pub jail: bool,
}

/// A change to an image, with its content.
#[derive(Debug, Clone)]
pub struct GivenChange {
    /// The kind of change.
    pub kind: ChangeKind,
    /// Its name.
    pub name: String,
    /// The content to run.
    pub content: Bytes,
}

/// Takes jobs in.
#[derive(Debug)]
pub struct Asker {
    /// Records.
    pub store: SharedStore,
    /// Objects.
    pub artifacts: ArtifactStore,
    /// The defaults for jobs that do not say otherwise.
    pub jobs: JobSettings,
    /// How many records callers may have.
    pub most_records: Most,
    /// Who is told what becomes of image sets.
    pub webhooks: Arc<Webhooks>,
    /// The rules for channels.
    pub channels: Vec<ChannelRule>,
    /// What images have met of these rules.
    pub met: Met,
    /// The server, if it boots images whose sets require that.
    pub boots: Option<ServerId>,
    /// The orchestrator that carries jobs out; `None` on a server that keeps records only.
    pub orchestrator: Option<Arc<Orchestrator>>,
}

impl Asker {
    /// Makes the job with this id, on behalf of `who`. A job that no place can carry out is made too: it has already
    /// ended, and says why.
    ///
    /// # Errors
    ///
    /// Why there is no job.
    pub async fn ask(&self, id: JobId, ask: Ask, who: Option<String>) -> Result<Job, Refusal> {
        match ask {
            Ask::New(new) => self.make(id, *new, who).await,
            Ask::Archive(build) => archive::build(self, id, *build, who).await,
            Ask::Again { old, from } => self.orchestrator()?.repeats.again(id, &old, from, who).await,
        }
    }

    /// Does `work` for whoever has made a record, unless it is done for somebody already: what it makes counts for them.
    pub(super) async fn on_behalf_of<F: Future>(&self, maker: Maker, work: F) -> Result<F::Output, StoreError> {
        if Allowance::current().is_some() {
            return Ok(work.await);
        }
        let caller = self.store.caller_of(maker).await?;
        let allowance = Allowance {
            caller: caller.unwrap_or_else(|| maker.to_string()),
            most: Some(self.most_records),
        };
        Ok(allowance.scope(work).await)
    }

    /// Makes the checks of a new job, and derives what follows from them.
    pub(super) async fn plan(&self, id: JobId, new: &NewJob) -> Result<(Job, NewRun), Refusal> {
        Plans(self).of(id, new).await
    }

    async fn make(&self, id: JobId, new: NewJob, who: Option<String>) -> Result<Job, Refusal> {
        if !new.changes.is_empty() {
            // Only Kiln's own orchestrator can run changes.
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
            orchestrator.intake.accept(job, run).await
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

    /// Stores the changes in S3, where the job finds them.
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
