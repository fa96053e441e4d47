//! The commit loop: makes an image of what an agent brought.
//!
//! The manifest is the commit point: before it there is no image, after it there is one, whoever dies. So the record
//! follows the manifest and the job's end follows the record, and each of the three may be done again.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{log_artifact::packed_log, orchestrator::Orchestrator};
use crate::{
    records::{
        Failure, Image, Link, Moment, Run, UploadedArtifact,
        run::{State, is_infrastructure},
    },
    store::{Collection, Side, StoreError, StoredRun},
};

/// How long S3 may refuse before the job fails of it.
const PATIENCE: Duration = Duration::from_mins(15);

impl Orchestrator {
    /// One look at everything that waits to be made an image.
    ///
    /// # Errors
    ///
    /// When the store cannot be asked; the next look begins anew.
    pub async fn commit_once(&self) -> Result<(), Failure> {
        for stored in self.store.open_runs().await? {
            let ours = self.is_mine(&stored.run).await?;
            if stored.run.state != State::Committing || !ours {
                continue;
            }
            let job = stored.job.id;
            if let Err(failure) = self.commit(&stored).await {
                let waited = self
                    .state()
                    .committing
                    .entry(job)
                    .or_insert_with(Instant::now)
                    .elapsed();
                if is_infrastructure(&failure) && waited < PATIENCE {
                    tracing::warn!(job.id = %job, "the image is not made yet: {failure}");
                    continue;
                }
                self.fail(job, stored.run.attempt, failure).await?;
            }
            self.state().committing.remove(&job);
        }
        Ok(())
    }

    async fn commit(&self, stored: &StoredRun) -> Result<(), Failure> {
        let (job, run) = (&stored.job, &stored.run);
        let artifacts = run.artifacts().map_err(|open| {
            Failure::new(
                "protocol",
                format!("the agent finished before its upload of {}", open.key),
            )
        })?;
        let packed = packed_log(&self.store, job.id).await?;
        self.artifacts.put_log(run.image, packed).await?;
        let manifest = self.artifacts.write_manifest(run.image, job.arch, &artifacts).await?;
        let objects: Vec<String> = artifacts
            .iter()
            .map(UploadedArtifact::path)
            .chain([manifest.path.clone()])
            .collect();
        match self.store.insert(&image(stored, manifest), &objects).await {
            // An earlier look came as far as here.
            Ok(()) | Err(StoreError::Exists) => {}
            Err(error) => return Err(error.into()),
        }
        // A job that was deleted meanwhile leaves its image, as in IMS.
        self.change(job.id, Run::commit).await?;
        tracing::info!(job.id = %job.id, image.id = %run.image, "the job has made its image");
        Ok(())
    }

    /// Whether an image has a record, be it a deleted one.
    pub(super) async fn has_record(&self, run: &Run) -> Result<bool, StoreError> {
        for side in [Side::Live, Side::Deleted] {
            if Collection::<Image>::get(&*self.store, side, run.image).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn image(stored: &StoredRun, manifest: Link) -> Image {
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
    metadata.insert(origin.to_owned(), job.artifact_id.to_string());
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
