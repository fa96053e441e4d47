//! What a new job will be: where it runs, what it gets, or why it cannot be carried out at all.

use super::{
    admit::{Asked, Limits, needs},
    orchestrator::Orchestrator,
    place::Wish,
    places::Decision,
    shell_ports::show_shell,
};
use crate::{
    records::{
        Failure, Job, JobId, JobStatus, Moment, Recipe, Run, Shell, ShellWish, Step, TwinLevel,
        protocol::{BootFiles, TemplateMode},
        run::{BaseImage, DriverKind, How, Plan, Refused, ResumeFrom, Used},
    },
    store::{StoreError, StoredRun},
};

/// Builds of a recipe that say what the next one will need.
const HISTORY: u32 = 5;

/// What a job is made of beside its record.
#[derive(Debug, Clone, Default)]
pub struct NewRun {
    /// The recipe that it starts from; a customize job has none.
    pub recipe: Option<Recipe>,
    /// The image that it starts from; a create job has none.
    pub image: Option<BaseImage>,
    /// The shell that it is to have.
    pub shell: Option<ShellWish>,
    /// Whether it was asked for, or follows from the recipe, that it gets a kernel of its own.
    pub own_kernel: bool,
    /// Which tools may run as native twins, as the request says or else the recipe; none means as this server does.
    pub twins: Option<TwinLevel>,
    /// What it asks for.
    pub asked: Asked,
    /// Who asks.
    pub who: Option<String>,
}

impl Orchestrator {
    /// Decides what becomes of a new job and adds it. One that cannot be carried out here is added too, ended, with the
    /// reason.
    ///
    /// # Errors
    ///
    /// `store_conflict` when the id is taken; when store or place do not answer. The job is not added then.
    pub async fn accept(&self, mut job: Job, new: NewRun) -> Result<Job, Failure> {
        let capacity = self.places.local().capacity().await?;
        let limits = Limits::of(&capacity, &self.capacity);
        let history: Vec<Used> = self
            .store
            .past_runs(job.artifact_id, HISTORY)
            .await?
            .iter()
            // A build that was cut short has not used what it needs.
            .filter(|past| past.run.failure().is_none() && past.job.arch == job.arch)
            .filter_map(|past| past.run.used)
            .collect();
        let wish = Wish {
            arch: job.arch,
            own_kernel: new.own_kernel,
        };
        // Until its row is there, the next one must not see the same room.
        let _placing = self.placing.lock().await;
        let decision = self.decide(wish).await?;
        let recipe = new.recipe.as_ref();
        let link = recipe.and_then(|recipe| recipe.link.as_ref());
        let values = recipe.and_then(|recipe| recipe.template_dictionary.clone());
        let mut run = Run::new(Plan {
            place: None,
            driver: DriverKind::default(),
            own_kernel: new.own_kernel,
            how: How::Native,
            why: String::new(),
            needs: needs(new.asked, &history, &self.capacity, limits),
            recipe: link.map(|link| link.path.clone()).unwrap_or_default(),
            values: values
                .unwrap_or_default()
                .into_iter()
                .map(|entry| (entry.key, entry.value))
                .collect(),
            template_mode: TemplateMode::Strict,
            twins: new.twins.unwrap_or(self.emulation.twins),
            boot: BootFiles {
                kernel: job.kernel_file_name.clone(),
                initrd: job.initrd_file_name.clone(),
                parameters: job.kernel_parameters_file_name.clone(),
                // Who names another file than usual wants that one.
                required: job.kernel_file_name != job.arch.kernel_file_name(),
            },
            resume: None,
            who: new.who,
            image: new.image,
        });
        if let Some(wish) = new.shell {
            let mut shell = Shell::new(wish);
            let open = self.store.open_runs().await?;
            shell.at = self.shell_address(open.iter().map(|stored| &stored.run));
            run.shell = Some(shell);
        }
        // In its first state a run can be placed and can fail.
        let _ = match &decision {
            Decision::Placed(placement) => placement.note_in(&mut run),
            Decision::Refused(failure) => run.fail(failure.clone(), Moment::now()),
            Decision::Later(_) => Ok(()),
        };
        job.status = run.status(job.status);
        show_shell(&mut job, &run);
        self.store.insert_run(&job, &run).await?;
        match decision {
            Decision::Refused(failure) => {
                self.say(job.id, format!("error: {failure}")).await;
                self.wake.settle.notify_one();
            }
            Decision::Placed(_) | Decision::Later(_) => self.wake.launch.notify_one(),
        }
        Ok(job)
    }

    /// Where a job would run now.
    pub(super) async fn decide(&self, wish: Wish) -> Result<Decision, StoreError> {
        let open = self.store.open_runs().await?;
        let jobs_at = |name: &str| {
            let there = open
                .iter()
                .filter(|stored| stored.run.plan.place.as_deref() == Some(name));
            u32::try_from(there.count()).unwrap_or(u32::MAX)
        };
        let decision = self.places.decide(wish, self.isolation.foreign, jobs_at);
        if matches!(decision, Decision::Later(_)) {
            self.wake.places.notify_one();
        }
        Ok(decision)
    }
}

/// What became of the wish to do a job again.
#[derive(Debug)]
pub enum Resume {
    /// This new job does it.
    New(Box<Job>),
    /// It cannot be, for this reason.
    Not(String),
}

impl Orchestrator {
    /// Does a job that has ended again, as a new one; from a step on, if the files of its sandbox are still there.
    ///
    /// # Errors
    ///
    /// When store or place do not answer; nothing is added then.
    pub async fn again(&self, old: &StoredRun, from: Option<Step>, who: Option<String>) -> Result<Resume, Failure> {
        let StoredRun { job, run, .. } = old;
        if !run.state.is_final() {
            return Ok(Resume::Not("The job has not ended; cancel it first.".to_owned()));
        }
        let not_kept = "Nothing is left of the job's files to go on from; retry it without `from`.";
        if let Some(step) = from {
            if !run.settled {
                return Ok(Resume::Not(
                    "The job is still being cleared away; try again in a moment.".to_owned(),
                ));
            }
            if !run.kept || run.owner != Some(self.id) {
                return Ok(Resume::Not(not_kept.to_owned()));
            }
            let next = run.steps.last().map(|last| last.step);
            let steps = Step::of(run.plan.job_type());
            let skips = |last: Step| steps.iter().any(|between| *between > last && *between < step);
            if !steps.contains(&step) || next.is_none_or(skips) {
                let reached = next.map_or("none", Step::name);
                return Ok(Resume::Not(format!(
                    "The job cannot go on from {step}: the last step that ended well is {reached}."
                )));
            }
        }
        let mut new = Run::new(Plan {
            resume: from.map(|step| ResumeFrom {
                job: job.id,
                step,
                server: self.id,
            }),
            who,
            ..run.plan.clone()
        });
        new.shell = run.shell.as_ref().map(|shell| Shell::new(shell.wish.clone()));
        let id = JobId::new();
        if let Some(image) = &mut new.plan.image {
            // The old job may be deleted, with what it brought.
            self.artifacts.copy_changes(id, &mut image.changes).await?;
        }
        let renamed = |text: &str| text.replace(&job.id.to_string(), &id.to_string());
        let record = Job {
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
        };
        if from.is_some() {
            // The files go to one job only.
            let taken = self
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
                return Ok(Resume::Not(not_kept.to_owned()));
            }
        }
        let open = self.store.open_runs().await?;
        if let Some(shell) = &mut new.shell {
            shell.at = self.shell_address(open.iter().map(|stored| &stored.run));
        }
        let mut record = record;
        show_shell(&mut record, &new);
        self.store.insert_run(&record, &new).await?;
        self.wake.launch.notify_one();
        Ok(Resume::New(Box::new(record)))
    }
}
