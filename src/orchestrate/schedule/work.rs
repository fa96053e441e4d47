//! Makes what a run makes, a job or an image set, and finds out whether that has ended. It reads and writes rows of the
//! store; the `Asker` and the sets that make jobs also touch S3.

use std::sync::Arc;

use kiln_records::{
    Code, Failure, ImageSet, JobId, JobStatus, JobType, Recipe, RecipeId, Schedule,
    schedule::{ScheduledSet, Tick, Timing, Work, image_name},
    set::{Attempt, AttemptState},
};

use super::unless_stale;
use crate::{
    orchestrate::{
        ask::{Ask, Asker, NewJob},
        sets::{NewSet, SetRefusal, Sets, Source, Wanted},
    },
    store::{Collection, Side, StoreError},
};

/// What the runs of schedules make.
#[derive(Debug, Clone)]
pub(super) struct Works {
    pub(super) asker: Arc<Asker>,
}

impl Works {
    /// Makes what a tick makes, unless that already exists.
    pub(super) async fn make(&self, schedule: &Schedule, tick: &Tick, work: Work) -> Result<(), Failure> {
        let who = Some(format!("schedule {}", schedule.name));
        match work {
            Work::Job(id) => {
                if self.asker.store.get_job(id).await?.is_some() {
                    return Ok(());
                }
                let new = self.new_job(schedule, tick).await?;
                let asked = self.asker.ask(id, Ask::New(Box::new(new)), who);
                match Box::pin(asked).await {
                    Ok(_) => Ok(()),
                    // Another server was faster.
                    Err(_) if self.asker.store.get_job(id).await?.is_some() => Ok(()),
                    Err(refusal) => Err(refusal.into()),
                }
            }
            Work::Set(id) => {
                if self.asker.store.get_set(id).await?.is_some() {
                    return Ok(());
                }
                let new = self.new_set(schedule, tick).await?;
                let sets = Sets::new(Arc::clone(&self.asker));
                match Box::pin(sets.create_as(id, new, who, tick.fired)).await {
                    Ok(_) => Ok(()),
                    Err(_) if self.asker.store.get_set(id).await?.is_some() => Ok(()),
                    Err(refusal @ SetRefusal::Exists { .. }) => Err(unusable(refusal.to_string())),
                    Err(refusal) => Err(refusal.into()),
                }
            }
        }
    }

    /// The request for a job that the schedule's user would make by hand.
    async fn new_job(&self, schedule: &Schedule, tick: &Tick) -> Result<NewJob, Failure> {
        let timing = Timing::parse(&schedule.cron, &schedule.timezone).map_err(unusable)?;
        let (Some(id), Some(names)) = (schedule.recipe_id, &schedule.image_root_archive_name) else {
            return Err(unusable("The schedule names no recipe.".to_owned()));
        };
        let recipe = self.recipe(id).await?;
        let facts = image_name::Facts {
            due: &timing.local(tick.due),
            recipe: &recipe.name,
            arch: recipe.arch,
            number: tick.number,
        };
        Ok(NewJob {
            job_type: JobType::Create,
            artifact_id: id.into(),
            public_key_id: schedule.public_key_id,
            image_root_archive_name: image_name::expand(names, &facts).map_err(unusable)?,
            enable_debug: false,
            shells: Vec::new(),
            changes: Vec::new(),
            options: schedule.options.clone(),
        })
    }

    /// The request for an image set that the schedule's user would make by hand.
    async fn new_set(&self, schedule: &Schedule, tick: &Tick) -> Result<NewSet, Failure> {
        let timing = Timing::parse(&schedule.cron, &schedule.timezone).map_err(unusable)?;
        let Some(ScheduledSet {
            name,
            version,
            recipes,
            requires,
        }) = &schedule.image_set
        else {
            return Err(unusable("The schedule names no image set.".to_owned()));
        };
        let mut members = Vec::with_capacity(recipes.len());
        for scheduled in recipes {
            members.push(Wanted {
                arch: self.recipe(scheduled.recipe_id).await?.arch,
                required: scheduled.required,
                from: Source::Recipe(scheduled.recipe_id),
                time_limit_s: scheduled.time_limit_s,
            });
        }
        Ok(NewSet {
            name: name.clone(),
            version: image_name::expand_version(version, &timing.local(tick.due), tick.number).map_err(unusable)?,
            public_key_id: schedule.public_key_id,
            options: schedule.options.clone(),
            members,
            requires: requires.clone(),
        })
    }

    async fn recipe(&self, id: RecipeId) -> Result<Recipe, Failure> {
        let recipe = Collection::<Recipe>::get(&*self.asker.store, Side::Live, id).await?;
        let recipe = recipe.ok_or_else(|| unusable(format!("There is no recipe with the id {id}.")))?;
        Ok(recipe.record)
    }

    /// Cancels the job, or each job of the set, if there is one. It need not have ended when this returns.
    pub(super) async fn cancel(&self, work: Work) -> Result<(), Failure> {
        match work {
            Work::Job(job) => self.cancel_job(job).await,
            Work::Set(set) => {
                if let Some(stored) = self.asker.store.get_set(set).await? {
                    for attempt in last_attempts(&stored.record) {
                        self.cancel_job(attempt.job_id).await?;
                    }
                }
                Ok(())
            }
        }
    }

    async fn cancel_job(&self, id: JobId) -> Result<(), Failure> {
        if let Some(orchestrator) = &self.asker.orchestrator {
            // A job that has ended or does not exist need not be cancelled.
            let _ = orchestrator
                .jobs
                .cancel(
                    id,
                    Failure::new(Code::Cancelled, "a later run of its schedule takes its place"),
                )
                .await;
            return Ok(());
        }
        // Another program carries the job out, and sees the change in its record.
        while let Some(stored) = self.asker.store.get_job(id).await? {
            let mut job = stored.record;
            if job.status.is_final() {
                break;
            }
            job.status = JobStatus::Error;
            if unless_stale(self.asker.store.replace_job(&job, stored.revision).await)? {
                break;
            }
        }
        Ok(())
    }

    /// Whether what was made has ended. What was deleted has.
    pub(super) async fn has_ended(&self, work: Work) -> Result<bool, StoreError> {
        match work {
            Work::Job(job) => self.has_job_ended(job).await,
            Work::Set(set) => {
                let Some(stored) = self.asker.store.get_set(set).await? else {
                    return Ok(true);
                };
                for attempt in last_attempts(&stored.record) {
                    // A job that is yet to be made has no row, as one that was deleted.
                    let is_yet_to_be_made = matches!(attempt.state, AttemptState::Making { .. });
                    if is_yet_to_be_made || !self.has_job_ended(attempt.job_id).await? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    async fn has_job_ended(&self, job: JobId) -> Result<bool, StoreError> {
        let stored = self.asker.store.get_job(job).await?;
        Ok(stored.is_none_or(|stored| stored.record.status.is_final()))
    }
}

/// The latest job of each architecture of a set.
fn last_attempts(set: &ImageSet) -> impl Iterator<Item = &Attempt> {
    set.members.iter().filter_map(|member| member.last())
}

fn unusable(why: String) -> Failure {
    Failure::new(Code::ScheduleUnusable, why)
}
