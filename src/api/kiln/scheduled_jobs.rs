//! How schedules make jobs: as a request would, by the id that the schedule has chosen.

use async_trait::async_trait;

use crate::{
    api::{
        Api,
        problem::Problem,
        v3::new_job::{self, Planned},
    },
    orchestrate::schedule::JobMaker,
    records::{Code, Failure, JobId, JobStatus, schedule::ScheduledJob},
    store::StoreError,
};

#[async_trait]
impl JobMaker for Api {
    async fn make(&self, id: JobId, request: &ScheduledJob) -> Result<(), Failure> {
        if self.store.get_job(id).await?.is_some() {
            return Ok(());
        }
        let Planned { job, mut run } = new_job::plan(self, id, request.into()).await.map_err(refused)?;
        let made = match &self.orchestrator {
            Some(orchestrator) => {
                run.who = Some(format!("schedule {}", request.schedule));
                orchestrator.accept(job, run).await.map(|_| ())
            }
            None => self.store.insert_job(&job).await.map_err(Failure::from),
        };
        match made {
            // Another server was faster.
            Err(_) if self.store.get_job(id).await?.is_some() => Ok(()),
            made => made,
        }
    }

    async fn has_ended(&self, id: JobId) -> Result<bool, Failure> {
        let job = self.store.get_job(id).await?;
        Ok(job.is_none_or(|stored| stored.record.status.is_final()))
    }

    async fn cancel(&self, id: JobId) -> Result<(), Failure> {
        if let Some(orchestrator) = &self.orchestrator {
            // One that has ended, or that nobody knows, need not be cancelled.
            let _ = orchestrator
                .cancel(id, "a later run of its schedule takes its place")
                .await;
            return Ok(());
        }
        // Somebody else carries it out, and sees what its record says.
        while let Some(stored) = self.store.get_job(id).await? {
            let mut job = stored.record;
            if job.status.is_final() {
                break;
            }
            job.status = JobStatus::Error;
            match self.store.replace_job(&job, stored.revision).await {
                Err(StoreError::Stale) => {}
                done => return Ok(done?),
            }
        }
        Ok(())
    }
}

/// Why a job cannot be as it was asked for, or what does not answer.
fn refused(problem: Problem) -> Failure {
    Failure {
        hint: problem.hint,
        ..Failure::new(
            problem.code.unwrap_or(Code::JobRefused),
            problem.detail.unwrap_or(problem.title),
        )
    }
}
