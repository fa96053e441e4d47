//! Objects that belong to a job rather than to its image: its recipe and changes while it needs them, and its log.
//! Talks to S3 only.

use bytes::Bytes;
use futures::Stream;
use kiln_records::{ArtifactKind, Change, Code, Failure, ImageId, JobId, link::bucket_and_key};

use super::ArtifactStore;

impl ArtifactStore {
    /// Uploads a job's recipe for its agent. Returns an address that is valid for `valid`.
    pub async fn put_recipe(&self, job: JobId, recipe: Bytes) -> Result<(), Failure> {
        self.put_bytes(
            self.recipes_bucket(),
            &recipe_key(job),
            "application/x-compressed-tar",
            recipe,
        )
        .await
        .map(drop)
    }

    /// The place of a job's own recipe, whether it is there yet or not: `s3://bucket/key`.
    pub fn recipe_path(&self, job: JobId) -> String {
        format!("s3://{}/{}", self.recipes_bucket(), recipe_key(job))
    }

    /// Gives a job its own copy of the recipe of another job. Returns its place.
    pub async fn copy_recipe(&self, from: JobId, to: JobId) -> Result<String, Failure> {
        self.copy(self.recipes_bucket(), &recipe_key(from), &recipe_key(to))
            .await?;
        Ok(self.recipe_path(to))
    }

    /// Removes a job's recipe. May be repeated.
    pub async fn discard_recipe(&self, job: JobId) -> Result<(), Failure> {
        self.delete(self.recipes_bucket(), &recipe_key(job)).await
    }

    /// Stores a script or playbook that a job runs in its image, for as long as the job has a record. Returns its
    /// place: `s3://bucket/key`.
    pub async fn put_change(&self, job: JobId, number: usize, content: Bytes) -> Result<String, Failure> {
        let (bucket, key) = (self.recipes_bucket(), change_key(job, number));
        self.put_bytes(bucket, &key, "application/octet-stream", content)
            .await?;
        Ok(format!("s3://{bucket}/{key}"))
    }

    /// Gives a job its own copies of the changes of another job.
    pub async fn copy_changes(&self, job: JobId, changes: &mut [Change]) -> Result<(), Failure> {
        for (number, change) in changes.iter_mut().enumerate() {
            let missing = || Failure::new(Code::S3Missing, format!("{} is not in S3", change.object));
            let (bucket, from) = bucket_and_key(&change.object).ok_or_else(missing)?;
            let to = change_key(job, number);
            self.copy(bucket, from, &to).await?;
            change.object = format!("s3://{bucket}/{to}");
        }
        Ok(())
    }

    /// Removes everything stored by [`Self::put_change`] for a job. May be repeated.
    pub async fn discard_changes(&self, job: JobId) -> Result<(), Failure> {
        for object in self.list(self.recipes_bucket(), &format!("changes/{job}/")).await? {
            self.delete(self.recipes_bucket(), &object.key).await?;
        }
        Ok(())
    }

    /// Adds the compressed log to an image. Returns its place: `s3://bucket/key`.
    pub async fn put_log(
        &self,
        image: ImageId,
        log: impl Stream<Item = Result<Bytes, Failure>> + Send,
    ) -> Result<String, Failure> {
        let (bucket, key) = (
            self.images_bucket(),
            format!("{image}/{}", ArtifactKind::Log.key_name()),
        );
        Box::pin(self.put_stream((bucket, &key), ArtifactKind::Log.media_type(), log)).await?;
        Ok(format!("s3://{bucket}/{key}"))
    }

    /// Stores the compressed log of a job, however the job ended. Returns its place: `s3://bucket/key`.
    pub async fn put_job_log(
        &self,
        job: JobId,
        log: impl Stream<Item = Result<Bytes, Failure>> + Send,
    ) -> Result<String, Failure> {
        let (bucket, key) = (self.recipes_bucket(), log_key(job));
        Box::pin(self.put_stream((bucket, &key), ArtifactKind::Log.media_type(), log)).await?;
        Ok(format!("s3://{bucket}/{key}"))
    }

    /// Removes the log of a job, and what is kept beside it. May be repeated.
    pub async fn discard_job_log(&self, job: JobId) -> Result<(), Failure> {
        self.delete(self.recipes_bucket(), &log_key(job)).await?;
        self.delete(self.recipes_bucket(), &installed_key(job)).await?;
        self.delete(self.recipes_bucket(), &account_key(job)).await
    }

    /// Whether an image is complete.
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

pub(super) fn account_key(job: JobId) -> String {
    format!("logs/{job}/programs.json.zst")
}

pub(super) fn installed_key(job: JobId) -> String {
    format!("logs/{job}/installed.json.zst")
}

fn change_key(job: JobId, number: usize) -> String {
    format!("changes/{job}/{number}")
}

fn recipe_key(job: JobId) -> String {
    format!("recipes/{job}/recipe.tar.gz")
}
