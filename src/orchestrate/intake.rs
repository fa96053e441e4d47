//! Accepts a new job: decides where it runs and what it gets, or why it cannot be carried out at all. It reads and
//! writes rows of the store, and asks this host's driver for the capacity.

use std::sync::Arc;

use kiln_records::{
    CacheDepth, Epoch, ImageId, Job, Moment, Run, Shell, ShellWish, TwinLevel,
    additions::Additions,
    containerfile::ContainerfileOptions,
    protocol::{BootFiles, RecipeType, SquashfsOptions, TemplateMode},
    run::{BaseImage, DriverKind, How, Plan, REPOS_TIMEOUT_S, Used},
};

use super::{
    admit::{Asked, HISTORY, Limits, needs},
    bells::Bells,
    claim::Claim,
    life::Life,
    places::Decision,
    placing::Placing,
    refusal::Refusal,
    row::Jobs,
    secrets::Secrets,
    shell_ports::show_shell,
    shells::ShellDoors,
};
use crate::{config::CapacitySettings, metrics, store::SharedStore};

/// The parts of a new job beside its record.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct NewRun {
    /// The archive of the recipe that the job starts from, `s3://bucket/key`; empty for a customize job.
    pub recipe: String,
    /// The recipe's format.
    pub recipe_type: RecipeType,
    /// Names and values for the recipe's templates.
    pub values: Vec<(String, String)>,
    /// The treatment of template names without a value.
    pub template_mode: TemplateMode,
    /// How the root is packed.
    pub squashfs: SquashfsOptions,
    /// How long to wait for the recipe's repositories, in seconds; `None` means as long as IMS does.
    pub repos_timeout_s: Option<u64>,
    /// Whether the files of the sandbox stay on disk.
    pub keep: bool,
    /// The image that the job starts from; a create job has none.
    pub image: Option<BaseImage>,
    /// The shell that the job will have.
    pub shell: Option<ShellWish>,
    /// Whether the job gets a kernel of its own, because it was requested or because the recipe implies it.
    pub own_kernel: bool,
    /// Which tools may run as native twins, as the request or else the recipe says; `None` means this server's setting.
    pub twins: Option<TwinLevel>,
    /// Whether its twins are verified.
    pub verify_twins: bool,
    /// How much of earlier jobs it may reuse; `None` means this server's setting.
    pub cache: Option<CacheDepth>,
    /// The image whose packages it starts from.
    pub cache_from: Option<ImageId>,
    /// Whether it may have the packages of its recipe's lock file only.
    pub locked: bool,
    /// The profiles of its recipe that it builds.
    pub profiles: Vec<String>,
    /// What it adds to the description of its recipe.
    pub additions: Additions,
    /// What it builds of a Containerfile.
    pub containerfile: Box<ContainerfileOptions>,
    /// The date of the image, if it is to be reproducible.
    pub epoch: Option<Epoch>,
    /// Whether the user named the kernel's file, whatever the name is: an image without that file then counts as a
    /// failure.
    pub kernel_required: bool,
    /// The resources it asks for.
    pub asked: Asked,
    /// The user who asks.
    pub who: Option<String>,
}

impl NewRun {
    /// Refuses what recipes of its type do not have.
    fn check(&self) -> Result<(), Refusal> {
        if self.recipe_type != RecipeType::Containerfile && !self.containerfile.is_empty() {
            return Err(Refusal::OnlyContainerfile);
        }
        let asks = [
            (self.verify_twins, "verification of twins"),
            (self.locked, "lock files"),
            (!self.profiles.is_empty(), "profiles"),
            (
                !self.additions.is_empty(),
                "description that something could be added to",
            ),
            (self.cache_from.is_some(), "layers"),
        ];
        let refused = asks
            .into_iter()
            .find(|(is_asked, _)| *is_asked && self.recipe_type == RecipeType::Containerfile);
        refused.map_or(Ok(()), |(_, what)| Err(Refusal::OfContainerfile(what)))
    }
}

/// Accepts jobs.
#[derive(Debug)]
pub struct Intake {
    pub(super) store: SharedStore,
    pub(super) jobs: Arc<Jobs>,
    pub(super) claim: Arc<Claim>,
    pub(super) bells: Arc<Bells>,
    pub(super) placing: Arc<Placing>,
    pub(super) shells: Arc<ShellDoors>,
    pub(super) life: Arc<Life>,
    pub(super) capacity: CapacitySettings,
    /// Which tools may run as native twins when neither the request nor the recipe says.
    pub(super) twins: TwinLevel,
    /// How much of earlier jobs a job may reuse that does not say.
    pub(super) cache: CacheDepth,
    pub(super) secrets: Arc<Secrets>,
}

impl Intake {
    /// Decides where a new job runs and adds it. A job that cannot be carried out here is added too, already ended,
    /// with the reason.
    ///
    /// # Errors
    ///
    /// When the id is taken, or the store or the place does not answer. In both cases the job is not added.
    pub(super) async fn accept(&self, mut job: Job, new: NewRun) -> Result<Job, Refusal> {
        new.check()?;
        self.secrets.check(&new.containerfile.secrets, new.who.as_deref())?;
        let capacity = self.placing.places.local().capacity().await?;
        let limits = Limits::of(&capacity, &self.capacity);
        let history: Vec<Used> = self
            .store
            .past_runs(job.artifact_id, HISTORY)
            .await?
            .iter()
            // A build that was cut short has not used all that it needs.
            .filter(|past| past.run.failure().is_none() && past.job.arch == job.arch)
            // To verify takes the space of two roots.
            .filter(|past| past.run.plan.verify_twins == new.verify_twins)
            .filter_map(|past| past.run.used)
            .collect();
        let mut run = Run::new(Plan {
            place: None,
            host: None,
            driver: DriverKind::default(),
            own_kernel: new.own_kernel,
            how: How::Native,
            why: String::new(),
            passed_over: Vec::new(),
            needs: needs(new.asked, &history, &self.capacity, limits),
            recipe: new.recipe,
            recipe_type: new.recipe_type,
            values: new.values,
            template_mode: new.template_mode,
            squashfs: new.squashfs,
            twins: new.twins.unwrap_or(self.twins),
            verify_twins: new.verify_twins,
            epoch: new.epoch,
            cache: match new.recipe_type {
                // Nothing of Kiln's tells whether its bases and downloads are those of before.
                RecipeType::Containerfile => CacheDepth::None,
                RecipeType::KiwiNg => new.cache.unwrap_or(match new.cache_from {
                    // To name an image is to ask for it.
                    Some(_) => self.cache.max(CacheDepth::Packages),
                    None => self.cache,
                }),
            },
            cache_from: new.cache_from,
            cache_asked: new.cache.is_some() || new.cache_from.is_some(),
            locked: new.locked,
            profiles: new.profiles,
            additions: new.additions,
            containerfile: new.containerfile,
            verifies: None,
            boot: BootFiles {
                kernel: job.kernel_file_name.clone(),
                initrd: job.initrd_file_name.clone(),
                parameters: job.kernel_parameters_file_name.clone(),
                required: new.kernel_required,
            },
            resume: None,
            who: new.who,
            image: new.image,
            runner: self.claim.runner(),
            keep: new.keep,
            repos_timeout_s: new.repos_timeout_s.unwrap_or(REPOS_TIMEOUT_S),
        });
        // A job of a command stays where the command is.
        run.owner = self.claim.is_command().then(|| self.claim.id());
        // Until this job's row exists, the next job must not count the same room.
        let _placing = self.placing.turn.lock().await;
        let decision = self.placing.decide(&job, &run.plan).await?;
        if let Some(wish) = new.shell {
            let mut shell = Shell::new(wish);
            let open = self.store.open_runs().await?;
            shell.at = self.shells.free_address(open.iter().map(|stored| &stored.run));
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
        if self.claim.is_command() {
            // The job has an owner from now on, and other hosts must see that it lives.
            self.life.show().await?;
        }
        self.store.insert_run(&job, &run).await?;
        metrics::job_asked(&job);
        if run.state.is_final() {
            metrics::job_ended(&job, &run);
        }
        match decision {
            Decision::Refused(failure) => {
                self.jobs.say(job.id, format!("error: {failure}")).await;
                self.bells.settle.notify_one();
            }
            Decision::Placed(_) | Decision::Later(_) => self.bells.launch.notify_one(),
        }
        Ok(job)
    }
}
