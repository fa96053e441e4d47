//! Makes jobs that verify the native twins of a sample of the server's builds. It writes rows of the store, and copies
//! recipes in S3.
//!
//! Which builds are in the sample follows from their ids, and so does the id of the job that verifies one: whoever
//! settles a build twice verifies it once.

use std::sync::Arc;

use kiln_records::{
    Failure, Job, JobId, JobStatus, Moment, Run, TwinLevel,
    run::{How, Plan, State},
};
use sha2::{Digest, Sha256};

use super::{bells::Bells, claim::Claim, row::Jobs};
use crate::{
    artifacts::ArtifactStore,
    metrics,
    store::{SharedStore, StoreError, StoredRun},
};

/// Takes samples of the server's builds.
#[derive(Debug)]
pub struct Sampling {
    pub(super) store: SharedStore,
    pub(super) claim: Arc<Claim>,
    pub(super) bells: Arc<Bells>,
    pub(super) artifacts: ArtifactStore,
    /// The size of the sample, in percent.
    pub(super) percent: u32,
}

impl Sampling {
    /// Makes a job that verifies the twins of a build that has succeeded, if it is in the sample: of the same
    /// recipe, with the same values and limits.
    ///
    /// # Errors
    ///
    /// When the store or S3 does not answer.
    pub(super) async fn verify(&self, jobs: &Jobs, stored: &StoredRun) -> Result<(), Failure> {
        let StoredRun { job, run, .. } = stored;
        if self.claim.is_command() || !can_be_verified(run) || !is_in_sample(job.id, self.percent) {
            return Ok(());
        }
        let id = verification_of(job.id);
        if self.store.get_job(id).await?.is_some() {
            return Ok(());
        }
        let mut plan = Plan {
            verify_twins: true,
            verifies: Some(job.id),
            resume: None,
            keep: false,
            ..run.plan.clone()
        };
        // There will be two roots.
        plan.needs.disk = (plan.needs.disk * 2).min(plan.needs.disk_limit);
        if plan.recipe == self.artifacts.recipe_path(job.id) {
            plan.recipe = self.artifacts.copy_recipe(job.id, id).await?;
        }
        let mut record = record_like(job, id);
        record.image_root_archive_name.push_str("-verification");
        match self.store.insert_run(&record, &Run::new(plan)).await {
            Ok(()) => metrics::job_asked(&record),
            // Another server was faster.
            Err(StoreError::Exists) => {}
            Err(error) => return Err(error.into()),
        }
        jobs.say(job.id, format!("its native twins are verified by job {id}"))
            .await;
        self.bells.launch.notify_one();
        Ok(())
    }
}

/// The record of a new job like another one.
pub(super) fn record_like(job: &Job, id: JobId) -> Job {
    let renamed = |text: &str| text.replace(&job.id.to_string(), &id.to_string());
    Job {
        id,
        created: Moment::now(),
        status: JobStatus::Creating,
        resultant_image_id: None,
        kubernetes_job: renamed(&job.kubernetes_job),
        kubernetes_service: renamed(&job.kubernetes_service),
        kubernetes_configmap: renamed(&job.kubernetes_configmap),
        kubernetes_pvc: renamed(&job.kubernetes_pvc),
        kubernetes_secret: job.kubernetes_secret.as_deref().map(renamed),
        ..job.clone()
    }
}

/// Whether twins helped to make the image of a job, which nobody has touched or verified.
fn can_be_verified(run: &Run) -> bool {
    let had_twins = run.execs.as_ref().is_some_and(|execs| execs.twins > 0);
    run.state == State::Success
        && run.plan.how == How::Emulated
        && had_twins
        && run.twins_in_force() != TwinLevel::Off
        && run.plan.image.is_none()
        && run.shell.is_none()
        && !run.plan.verify_twins
}

/// Whether a job is in a sample of this size.
fn is_in_sample(job: JobId, percent: u32) -> bool {
    let [first, second, ..] = digest("sample", job);
    u32::from(u16::from_be_bytes([first, second])) * 100 < percent.min(100) * (1 << 16)
}

/// The id of the job that verifies another one.
fn verification_of(job: JobId) -> JobId {
    let digest = digest("verification", job);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    JobId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

fn digest(what: &str, job: JobId) -> [u8; 32] {
    Sha256::digest(format!("{what} {job}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_its_size_and_is_the_same_each_time() {
        let jobs: Vec<_> = (0..10_000).map(|_| JobId::new()).collect();
        let count = |percent| jobs.iter().filter(|job| is_in_sample(**job, percent)).count();
        assert_eq!((count(0), count(100), count(200)), (0, jobs.len(), jobs.len()));
        assert!((350..650).contains(&count(5)), "{}", count(5));
        assert_eq!(count(5), count(5));
        assert_eq!(verification_of(jobs[0]), verification_of(jobs[0]));
        assert_ne!(verification_of(jobs[0]), verification_of(jobs[1]));
    }
}
