//! The commit loop makes an image of the artifacts that an agent uploaded. It reads and writes rows of the store, and
//! writes the log and the manifest to S3.
//!
//! The manifest is the commit point: before it there is no image, after it there is one, whichever process dies. So the
//! record follows the manifest and the job's end follows the record, and each of the three may be repeated.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kiln_records::{
    Code, FailedTwin, Failure, Image, JobId, Link, Moment, Run, UploadedArtifact,
    run::{Kernel, State},
};
use sha2::{Digest, Sha256};
use tracing::Instrument;

use super::{
    claim::Claim, earlier_image::EarlierImages, job_span, log_artifact::packed_log, package_index, provenance,
    row::Jobs,
};
use crate::{
    artifacts::{ArtifactStore, manifest::Manifest},
    origin::{self, Signer},
    store::{Allowance, Maker, SharedStore, StoreError, StoredRun},
};

/// How long S3 or the database may be away before the job fails because of it.
const PATIENCE: Duration = Duration::from_mins(15);

/// Makes images.
#[derive(Debug)]
pub struct Commit {
    pub(super) store: SharedStore,
    pub(super) jobs: Arc<Jobs>,
    pub(super) claim: Arc<Claim>,
    pub(super) artifacts: ArtifactStore,
    pub(super) earlier_images: Arc<EarlierImages>,
    /// Signs the provenance of images, if the site has a key for it.
    pub(super) signer: Option<Arc<Signer>>,
    /// The name of this builder in the provenance of its images: a URI.
    pub(super) builder: String,
    pub(super) held_up: Mutex<HeldUp>,
}

/// The jobs whose images could not be made yet.
#[derive(Debug, Default)]
pub(super) struct HeldUp {
    /// With the time since which they cannot.
    pub(super) since: HashMap<JobId, Instant>,
    /// Those whose objects were compared with their digests.
    verified: HashSet<JobId>,
}

impl Commit {
    pub(super) fn held_up(&self) -> MutexGuard<'_, HeldUp> {
        // Each change is complete before anything can panic.
        self.held_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one pass over everything that waits to become an image.
    ///
    /// # Errors
    ///
    /// When the store cannot be read; the next pass starts afresh.
    pub async fn pass(&self) -> Result<(), Failure> {
        if !self.claim.holds_lease() {
            return Ok(());
        }
        for stored in self.store.open_runs().await? {
            if stored.run.state != State::Committing || !self.claim.is_mine(&stored.run) {
                continue;
            }
            self.commit_or_fail(&stored).instrument(job_span(stored.job.id)).await?;
        }
        Ok(())
    }

    async fn commit_or_fail(&self, stored: &StoredRun) -> Result<(), Failure> {
        let job = stored.job.id;
        if let Err(failure) = self.commit(stored).await {
            let waited = self.held_up().since.entry(job).or_insert_with(Instant::now).elapsed();
            if is_worth_waiting(failure.code, waited) {
                tracing::warn!(
                    code = failure.code.name(),
                    hint = failure.hint,
                    "the image is not made yet: {failure}"
                );
                return Ok(());
            }
            self.jobs.fail(job, stored.run.attempt, failure).await?;
        }
        let mut held_up = self.held_up();
        held_up.since.remove(&job);
        held_up.verified.remove(&job);
        Ok(())
    }

    async fn commit(&self, stored: &StoredRun) -> Result<(), Failure> {
        let (job, run) = (&stored.job, &stored.run);
        if run.plan.verifies.is_some() {
            self.jobs.change(job.id, Run::commit).await?;
            return Ok(());
        }
        let artifacts = run.artifacts().map_err(|open| {
            Failure::new(
                Code::Protocol,
                format!("the agent finished before its upload of {}", open.key),
            )
        })?;
        // In a virtual machine the recipe is root beside the agent, and may have spoken for it. Copies are this server's own.
        let is_copy = run.layer.as_ref().is_some_and(|layer| layer.image.is_some());
        let verified = is_copy || self.held_up().verified.contains(&job.id);
        if run.plan.driver.kernel() == Kernel::Own && !verified {
            self.artifacts.verify(&artifacts).await?;
            self.held_up().verified.insert(job.id);
        }
        let packed = packed_log(self.store.clone(), job.id);
        let log = self.artifacts.put_log(run.image, packed).await?;
        let manifest = Manifest::new(&artifacts, job.arch, Timestamp::now())?.to_json()?;
        // Before the manifest: an image that exists has its provenance.
        let provenance = self.write_provenance(stored, &manifest, &artifacts).await?;
        let manifest = self.artifacts.write_manifest(run.image, manifest, &artifacts).await?;
        let objects: Vec<String> = artifacts
            .iter()
            .map(UploadedArtifact::path)
            .chain(provenance)
            .chain([manifest.path.clone(), log])
            .collect();
        let link = manifest.clone();
        let is_own_recipe = run.plan.recipe == self.artifacts.recipe_path(job.id);
        let image = image(stored, manifest, is_own_recipe);
        let adding = self.store.insert(&image, &objects);
        // There was room for it when the job was asked for.
        let added = match self.store.caller_of(Maker::Job(job.id)).await? {
            Some(caller) => Allowance { caller, most: None }.scope(adding).await,
            None => adding.await,
        };
        match added {
            // An earlier pass got this far.
            Ok(()) | Err(StoreError::Exists) => {}
            Err(error) => return Err(error.into()),
        }
        self.note_failed_twin(stored).await?;
        // A job that was deleted meanwhile leaves its image behind, as in IMS.
        self.jobs.change(job.id, Run::commit).await?;
        tracing::info!(image.id = %run.image, "the job has made its image");
        // A later job makes what is missing.
        if let Err(failure) = self.earlier_images.note(stored).await {
            tracing::warn!(code = failure.code.name(), image.id = %run.image, "later jobs will not reuse the image: {failure}");
        }
        // Last: what is missing from the index is entered by the first who asks for it.
        if let Err(failure) = package_index::enter(&*self.store, &self.artifacts, run.image, &link).await {
            tracing::warn!(code = failure.code.name(), image.id = %run.image, "its packages are not in the index yet: {failure}");
        }
        Ok(())
    }

    /// Writes the statement about an image beside it, and signs it if the site has a key. Returns the places of both.
    async fn write_provenance(
        &self,
        stored: &StoredRun,
        manifest: &[u8],
        artifacts: &[UploadedArtifact],
    ) -> Result<Vec<String>, Failure> {
        let image = stored.run.image;
        let digest = hex::encode(Sha256::digest(manifest));
        let installed = self.artifacts.installed(stored.job.id, stored.run.attempt).await?;
        let statement = provenance::statement(stored, &self.builder, &digest, artifacts, installed.as_ref());
        let unwritable = |error: serde_json::Error| Failure::new(Code::SigningFailed, error);
        let text = serde_json::to_vec(&statement).map_err(unwritable)?;
        let mut places = Vec::new();
        if let Some(signer) = &self.signer {
            let envelope = signer.sign(origin::STATEMENT_TYPE, &text).await.map_err(|error| {
                Failure::new(Code::SigningFailed, format!("the image cannot be signed: {error}"))
                    .hint("see [signing] in the configuration, and the standard error of the server for its command")
            })?;
            let envelope = serde_json::to_vec(&envelope).map_err(unwritable)?;
            let put = self
                .artifacts
                .put_beside(image, origin::ENVELOPE, origin::ENVELOPE_TYPE, envelope);
            places.push(put.await?);
        }
        let put = self
            .artifacts
            .put_beside(image, origin::STATEMENT, origin::STATEMENT_TYPE, text);
        places.push(put.await?);
        Ok(places)
    }

    /// Keeps the twin that died in an earlier try of this job from later jobs: without twins the job succeeds.
    async fn note_failed_twin(&self, stored: &StoredRun) -> Result<(), StoreError> {
        let first = stored.run.twins_fallback.as_ref().map(|fallback| &fallback.failure);
        let Some((failure, pair)) = first.and_then(|failure| Some((failure, failure.twin.as_deref()?))) else {
            return Ok(());
        };
        if pair.target != stored.job.arch {
            return Ok(());
        }
        let failed = FailedTwin {
            pair: pair.clone(),
            job: stored.job.id,
            since: Moment::now(),
            code: failure.code,
        };
        self.store.add_failed_twin(&failed).await
    }
}

/// Whether to try again with a finished job whose image could not be made for this long. Waiting on a failure that
/// cannot pass would only delay the answer.
fn is_worth_waiting(code: Code, waited: Duration) -> bool {
    code.is_passing() && waited < PATIENCE
}

fn image(stored: &StoredRun, manifest: Link, is_own_recipe: bool) -> Image {
    let (job, run) = (&stored.job, &stored.run);
    let mut metadata = BTreeMap::from([
        ("kiln.job".to_owned(), job.id.to_string()),
        ("kiln.how".to_owned(), run.plan.how.name().to_owned()),
    ]);
    let origin = match &run.plan.image {
        Some(base) => {
            for (number, change) in base.changes.iter().enumerate() {
                metadata.insert(format!("kiln.change.{}", number + 1), change.provenance());
            }
            "kiln.image"
        }
        None => "kiln.recipe",
    };
    // An archive without a record is known by its digest only.
    if run.plan.image.is_some() || !is_own_recipe {
        metadata.insert(origin.to_owned(), job.artifact_id.to_string());
    }
    if let Some(digest) = &run.recipe_sha256 {
        metadata.insert("kiln.recipe_sha256".to_owned(), digest.clone());
    }
    if let Some(who) = &run.plan.who {
        metadata.insert("kiln.by".to_owned(), who.clone());
    }
    Image {
        id: run.image,
        created: Moment::now(),
        link: Some(manifest),
        name: job.image_root_archive_name.clone(),
        arch: job.arch,
        metadata,
        deleted: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_job_waits_for_whatever_may_pass() {
        for code in Code::ALL {
            for minutes in [0, 1, 10, 14] {
                let waited = Duration::from_mins(minutes);
                assert_eq!(is_worth_waiting(*code, waited), code.is_passing(), "{code}");
            }
            assert!(!is_worth_waiting(*code, PATIENCE), "{code}");
        }
    }

    #[test]
    fn an_s3_that_is_overloaded_or_away_is_waited_for() {
        let longest = PATIENCE.saturating_sub(Duration::from_secs(1));
        for code in [
            Code::S3Unreachable,
            Code::S3Timeout,
            Code::S3Unavailable,
            Code::StoreUnavailable,
        ] {
            assert!(is_worth_waiting(code, longest), "{code}");
        }
        for code in [Code::S3Error, Code::S3Denied, Code::S3Missing, Code::ArtifactMismatch] {
            assert!(!is_worth_waiting(code, Duration::ZERO), "{code}");
        }
    }
}
