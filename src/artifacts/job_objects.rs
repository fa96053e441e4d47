//! Objects that a job needs or leaves beside its artifacts: its recipe while it runs, its log for good.

use std::time::Duration;

use bytes::Bytes;

use super::ArtifactStore;
use crate::records::{ArtifactKind, Failure, ImageId, JobId};

impl ArtifactStore {
    /// Puts a job's recipe where its agent can get it; returns the address, good for `valid`.
    pub async fn put_recipe(&self, job: JobId, recipe: Bytes, valid: Duration) -> Result<String, Failure> {
        let key = recipe_key(job);
        self.put_bytes(self.recipes_bucket(), &key, "application/x-compressed-tar", recipe)
            .await?;
        self.presign_get(self.recipes_bucket(), &key, valid).await
    }

    /// Removes a job's recipe. May be repeated.
    pub async fn discard_recipe(&self, job: JobId) -> Result<(), Failure> {
        self.delete(self.recipes_bucket(), &recipe_key(job)).await
    }

    /// Adds the packed log to an image.
    pub async fn put_log(&self, image: ImageId, log: Vec<u8>) -> Result<(), Failure> {
        let key = format!("{image}/{}", ArtifactKind::Log.key_name());
        self.put_bytes(self.images_bucket(), &key, ArtifactKind::Log.media_type(), log)
            .await
            .map(drop)
    }

    /// Keeps the packed log of a job, whatever became of it. Returns where: `s3://bucket/key`.
    pub async fn put_job_log(&self, job: JobId, log: Vec<u8>) -> Result<String, Failure> {
        let (bucket, key) = (self.recipes_bucket(), log_key(job));
        self.put_bytes(bucket, &key, ArtifactKind::Log.media_type(), log)
            .await?;
        Ok(format!("s3://{bucket}/{key}"))
    }

    /// Removes the log of a job. May be repeated.
    pub async fn discard_job_log(&self, job: JobId) -> Result<(), Failure> {
        self.delete(self.recipes_bucket(), &log_key(job)).await
    }

    /// Whether an image is finished.
    pub async fn has_manifest(&self, image: ImageId) -> Result<bool, Failure> {
        let key = format!("{image}/manifest.json");
        Ok(self
            .list(self.images_bucket(), &key)
            .await?
            .iter()
            .any(|object| object.key == key))
    }
}

fn log_key(job: JobId) -> String {
    format!("logs/{job}/{}", ArtifactKind::Log.key_name())
}

fn recipe_key(job: JobId) -> String {
    format!("recipes/{job}/recipe.tar.gz")
}
