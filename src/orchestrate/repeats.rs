//! Repeats a job that has ended, as a new job. It reads and writes rows of the store, and copies changes in S3.

use std::sync::Arc;

use kiln_records::{
    Job, JobId, Run, Shell, Step,
    run::{Plan, Refused, ResumeFrom},
};

use super::{
    bells::Bells, claim::Claim, life::Life, refusal::Refusal, row::Jobs, sample::record_like, shell_ports::show_shell,
    shells::ShellDoors,
};
use crate::{
    artifacts::ArtifactStore,
    metrics,
    store::{SharedStore, StoredRun},
};

/// Repeats jobs.
#[derive(Debug)]
pub struct Repeats {
    pub(super) store: SharedStore,
    pub(super) jobs: Arc<Jobs>,
    pub(super) claim: Arc<Claim>,
    pub(super) bells: Arc<Bells>,
    pub(super) artifacts: ArtifactStore,
    pub(super) shells: Arc<ShellDoors>,
    pub(super) life: Arc<Life>,
}

impl Repeats {
    /// Repeats a job that has ended, as a new job; starts from a given step if the files of the old sandbox still
    /// exist.
    ///
    /// # Errors
    ///
    /// When the old job has not ended, when nothing remains to resume from, or when the store or S3 does not answer. In
    /// each case no job is added.
    pub(super) async fn again(
        &self,
        id: JobId,
        old: &StoredRun,
        from: Option<Step>,
        who: Option<String>,
    ) -> Result<Job, Refusal> {
        let StoredRun { job, run, .. } = old;
        if !run.state.is_final() {
            return Err(Refusal::NotEnded);
        }
        if let Some(step) = from {
            self.must_have_kept(run, step)?;
        }
        let mut new = Run::new(Plan {
            resume: from.map(|step| ResumeFrom {
                job: job.id,
                step,
                server: self.claim.id(),
            }),
            who,
            runner: self.claim.runner(),
            ..run.plan.clone()
        });
        new.shell = run.shell.as_ref().map(|shell| Shell::new(shell.wish.clone()));
        // The old job may be deleted, along with its recipe and its changes.
        if run.plan.recipe == self.artifacts.recipe_path(job.id) {
            new.plan.recipe = self.artifacts.copy_recipe(job.id, id).await?;
        }
        if let Some(image) = &mut new.plan.image {
            self.artifacts.copy_changes(id, &mut image.changes).await?;
        }
        new.owner = self.claim.is_command().then(|| self.claim.id());
        let mut record = record_like(job, id);
        if from.is_some() {
            // The files go to one job only.
            let taken = self
                .jobs
                .change(job.id, |run, _| {
                    if !run.kept {
                        return Err(Refused {
                            from: "without files",
                            arrow: "be gone on from",
                        });
                    }
                    run.kept = false;
                    Ok(())
                })
                .await?;
            if !matches!(taken, Some(Ok(_))) {
                return Err(Refusal::FilesGone);
            }
        }
        let open = self.store.open_runs().await?;
        if let Some(shell) = &mut new.shell {
            shell.at = self.shells.free_address(open.iter().map(|stored| &stored.run));
        }
        show_shell(&mut record, &new);
        if self.claim.is_command() {
            // The job has an owner from now on, and other hosts must see that it lives.
            self.life.show().await?;
        }
        self.store.insert_run(&record, &new).await?;
        metrics::job_asked(&record);
        self.bells.launch.notify_one();
        Ok(record)
    }

    /// Checks that a job left behind, on this host, what the given step starts from.
    fn must_have_kept(&self, run: &Run, from: Step) -> Result<(), Refusal> {
        if !run.settled {
            return Err(Refusal::NotSettled);
        }
        if !run.kept || run.owner != Some(self.claim.id()) {
            return Err(Refusal::FilesGone);
        }
        let steps = run.plan.steps();
        // However the sandbox of an open shell ended, the root is as its user left it.
        let by_hand =
            steps.contains(&Step::Customize) && run.shell.as_ref().is_some_and(|shell| shell.opened.is_some());
        let left = by_hand.then_some(Step::Customize);
        let reached = run.steps.last().map(|last| last.step).max(left);
        let skips = |last: Step| steps.iter().any(|between| *between > last && *between < from);
        if !steps.contains(&from) || reached.is_none_or(skips) {
            return Err(Refusal::NotReached { from, reached });
        }
        Ok(())
    }
}
