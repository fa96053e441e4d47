//! How Kiln carries out a job: the states of a run, and the arrows between them. Pure: no I/O.
//!
//! ```text
//!              launch             start             finish               commit
//!   Queued ─────────▶ Launching ─────────▶ Running ─────────▶ Committing ─────────▶ Success
//!     ▲                   │                   │                   │
//!     ├──────retry────────┴───────────────────┤                   │
//!     ├─────fall_back─────────────────────────┘                   │
//!     │                                                           │
//!     └─ fail (also from Launching, Running, Committing) ─────────┴───────────────▶ Failed
//! ```
//!
//! A job that takes the whole image of an earlier one needs no sandbox: `reuse` leads from Launching to Committing.
//!
//! Each arrow is a function of [`Run`]; nothing else changes a state. A function refuses ([`Refused`]) every state that
//! has no such arrow, so `Success` and `Failed` are final. The status that IMS's clients see, [`JobStatus`], follows
//! from the state and the step ([`Run::status`]). It never goes back, even when a job is retried.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Blame, CacheDepth, Change, Code, Epoch, Execs, Failure, ImageId, JobId, JobStatus, JobType, LayerUse, Moment,
    ServerId, Shell, ShellTime, Step, TwinLevel, Upload, UploadedArtifact, Verdict, Warning, Warnings,
    additions::Additions,
    containerfile::ContainerfileOptions,
    protocol::{BootFiles, RecipeType, SandboxFacts, ShellNews, SquashfsOptions, TemplateMode},
};

/// The longest pause between two attempts of a job.
const LONGEST_REST: Duration = Duration::from_mins(10);

/// The pause after this attempt, counted from 1: `first`, doubled each time.
pub fn rest_after(attempt: u32, first: Duration) -> Duration {
    first
        .saturating_mul(1 << attempt.saturating_sub(1).min(16))
        .min(LONGEST_REST)
}

/// Kiln's own half of a job; IMS's half is [`Job`](super::Job).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its place in the diagram.
    pub state: State,
    /// The decisions made when the job was requested.
    pub plan: Plan,
    /// The image to be made; chosen at the start, so that a second attempt writes to the same place.
    pub image: ImageId,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The attempts that failed, by what failed.
    pub failed: FailedAttempts,
    /// The server whose data directory has the sandbox. A job of a command has one from the beginning.
    pub owner: Option<ServerId>,
    /// SHA-256 of the token of this attempt's agent, hexadecimal. Cleared with the attempt.
    pub token: Option<String>,
    /// The current step, or the step at which the job ended.
    pub step: Option<Step>,
    /// Steps of this attempt that succeeded.
    pub steps: Vec<StepTime>,
    /// The uploads of this attempt to S3, open or complete.
    pub uploads: Vec<RunUpload>,
    /// The highest usage measured.
    pub used: Option<Used>,
    /// Facts about this attempt's sandbox, as its agent reported them.
    pub found: Option<SandboxFacts>,
    /// Counts of native and emulated programs, once this attempt's root is built, if it is emulated.
    pub execs: Option<Execs>,
    /// What this attempt warned of.
    pub warnings: Warnings,
    /// What this attempt did about the layer of its packages, once that is settled: before any script of the recipe runs.
    pub layer: Option<LayerUse>,
    /// The try that failed with native twins, if one did: no later try has any.
    pub twins_fallback: Option<TwinsFallback>,
    /// Its shell, if it has one.
    pub shell: Option<Shell>,
    /// When this attempt was launched.
    pub launched: Option<Moment>,
    /// The earliest time of the next attempt, while the job rests after a failed one.
    pub retry_at: Option<Moment>,
    /// When the job ended.
    pub ended: Option<Moment>,
    /// Whether the files of the sandbox are kept, so that another job can resume from them.
    pub kept: bool,
    /// SHA-256 of the recipe's archive, hexadecimal, once the archive was read.
    pub recipe_sha256: Option<String>,
    /// SHA-256 of the toolbox that this attempt's sandbox is made from, hexadecimal.
    pub toolbox_sha256: Option<String>,
    /// The location of the whole log, once the job has ended: `s3://bucket/key`.
    pub log: Option<String>,
    /// Whether its remains are all cleared away.
    pub settled: bool,
}

/// An attempt that failed while native twins ran, so that the next one does without.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwinsFallback {
    /// The number of the attempt.
    pub attempt: u32,
    /// Its failure.
    pub failure: Failure,
}

/// Numbers of attempts that did not fail because of the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedAttempts {
    place: u32,
    storage: u32,
    killed: u32,
}

impl FailedAttempts {
    /// Those that failed because of this.
    pub fn by(mut self, blame: Blame) -> u32 {
        *self.of(blame)
    }

    fn of(&mut self, blame: Blame) -> &mut u32 {
        match blame {
            Blame::Place => &mut self.place,
            Blame::Storage => &mut self.storage,
            Blame::Killed => &mut self.killed,
        }
    }
}

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waiting for its turn.
    Queued,
    /// Placed; its sandbox is being made.
    Launching,
    /// Its agent has called.
    Running,
    /// Its agent has finished; the manifest and the image's record are being written.
    Committing,
    /// Ended with an image.
    Success,
    /// Ended without an image.
    Failed(Failure),
}

/// The decisions made when the job was requested.
#[expect(clippy::struct_excessive_bools, reason = "each is a wish of its own")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The place of the run; none until the offers of the places are known.
    pub place: Option<String>,
    /// The server whose own host the place is on, or none if all servers reach it.
    pub host: Option<ServerId>,
    /// The kind of its sandbox there.
    pub driver: DriverKind,
    /// Whether it needs its own kernel even if its architecture is the place's.
    pub own_kernel: bool,
    /// How programs of the image's architecture run.
    pub how: How,
    /// One sentence that gives the place and the reason for it.
    pub why: String,
    /// The places that it would rather have, or as well, and that could not be had.
    pub passed_over: Vec<PassedOver>,
    /// Its limits, and the resources reserved for it.
    pub needs: Needs,
    /// The image to change; a create job has a recipe instead.
    pub image: Option<BaseImage>,
    /// The recipe's archive: `s3://bucket/key`.
    pub recipe: String,
    /// The recipe's format.
    pub recipe_type: RecipeType,
    /// Names and values for the recipe's templates.
    pub values: Vec<(String, String)>,
    /// The treatment of template names without a value.
    pub template_mode: TemplateMode,
    /// Options of mksquashfs.
    pub squashfs: SquashfsOptions,
    /// Which tools may run as native twins if the job is emulated.
    pub twins: TwinLevel,
    /// Whether a root that twins helped to make is also made without them, and compared.
    pub verify_twins: bool,
    /// The date of the image, if it is to be reproducible.
    pub epoch: Option<Epoch>,
    /// How much of earlier jobs it may reuse.
    pub cache: CacheDepth,
    /// The image whose packages it starts from, whatever the repositories have by now.
    pub cache_from: Option<ImageId>,
    /// Whether the request or the recipe asks for that depth or image, and not the server's default alone.
    pub cache_asked: bool,
    /// Whether it may have the packages of its recipe's lock file only.
    pub locked: bool,
    /// The profiles of its recipe that it builds; if there are none, those that the recipe has in force by itself.
    pub profiles: Vec<String>,
    /// What it adds to the description of its recipe.
    pub additions: Additions,
    /// What it builds of a Containerfile.
    #[serde(default)]
    pub containerfile: Box<ContainerfileOptions>,
    /// The job whose twins this one verifies, without an image of its own.
    pub verifies: Option<JobId>,
    /// Which files of `/boot` are delivered.
    pub boot: BootFiles,
    /// The job and step to resume from, if this is not a fresh start.
    pub resume: Option<ResumeFrom>,
    /// The user, if known.
    pub who: Option<String>,
    /// The process that carries the job out, if only that one may: a command such as `kiln build`. Other jobs are a
    /// server's.
    pub runner: Option<ServerId>,
    /// Whether the files of its sandbox stay on disk until the job is deleted.
    pub keep: bool,
    /// How long to wait for the recipe's repositories, in seconds.
    pub repos_timeout_s: u64,
}

/// A suitable place that a job did not get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PassedOver {
    /// The place.
    pub place: String,
    /// The driver of its sandboxes: `namespace`, `microvm`, `docker`, `kata`, `kubernetes`, `kubernetes-vm`.
    #[schema(value_type = String)]
    pub driver: DriverKind,
    /// The stable code of the reason.
    #[schema(value_type = String)]
    pub code: Code,
    /// The reason.
    pub why: String,
}

/// The time for which IMS waits for repositories, in seconds.
pub const REPOS_TIMEOUT_S: u64 = 500;

/// The place that every server has: its own host.
pub const LOCAL: &str = "local";

impl Plan {
    /// The type of the job.
    pub const fn job_type(&self) -> JobType {
        match self.image {
            Some(_) => JobType::Customize,
            None => JobType::Create,
        }
    }

    /// The steps of the job, in order.
    pub const fn steps(&self) -> &'static [Step] {
        match self.job_type() {
            JobType::Create if self.verifies.is_some() => Step::VERIFICATION,
            JobType::Create if self.verify_twins => Step::VERIFIED,
            job_type => Step::of(job_type),
        }
    }
}

/// An image that a customize job starts from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseImage {
    /// Its id.
    pub id: ImageId,
    /// Its root file system: `s3://bucket/key`.
    pub rootfs: String,
    /// The MD5 of the root file system in its manifest.
    pub md5: Option<String>,
    /// The SHA-256 of the root file system in its manifest.
    pub sha256: Option<String>,
    /// The commands to run in it. If empty, a user changes the image by hand.
    pub changes: Vec<Change>,
}

/// The point from which a job resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeFrom {
    /// The job with the kept files.
    pub job: JobId,
    /// The first step to repeat.
    pub step: Step,
    /// The server whose host has the files.
    pub server: ServerId,
}

/// How the programs of the image's architecture run while it is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// Directly on this CPU.
    Native,
    /// By user-mode emulation.
    Emulated,
}

/// The kinds of sandboxes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriverKind {
    /// Namespaces on the host's kernel.
    #[default]
    Namespace,
    /// QEMU, one virtual machine per job.
    Microvm,
    /// A container engine, one container per job.
    Docker,
    /// A container engine with Kata, one virtual machine per job.
    Kata,
    /// A Kubernetes cluster, one pod per job.
    Kubernetes,
    /// A Kubernetes cluster with Kata, one pod in a virtual machine per job.
    #[serde(rename = "kubernetes-vm")]
    KubernetesVm,
}

/// Which kernel a sandbox runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// The place's kernel, separated by namespaces.
    Shared,
    /// A kernel of its own, in a virtual machine.
    Own,
}

impl DriverKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Namespace,
        Self::Microvm,
        Self::Docker,
        Self::Kata,
        Self::Kubernetes,
        Self::KubernetesVm,
    ];

    /// Its name, as in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Microvm => "microvm",
            Self::Docker => "docker",
            Self::Kata => "kata",
            Self::Kubernetes => "kubernetes",
            Self::KubernetesVm => "kubernetes-vm",
        }
    }

    /// Which kernel its sandboxes run on.
    pub fn kernel(self) -> Kernel {
        match self {
            Self::Namespace | Self::Docker | Self::Kubernetes => Kernel::Shared,
            Self::Microvm | Self::Kata | Self::KubernetesVm => Kernel::Own,
        }
    }

    /// How its sandboxes are isolated, as in the API.
    pub fn isolation(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Docker | Self::Kubernetes => "container",
            Self::Microvm | Self::Kata | Self::KubernetesVm => "vm",
        }
    }
}

/// The resources that a job needs from a place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// Reserved memory, in bytes.
    pub memory: u64,
    /// Memory limit, in bytes; the job is ended there.
    pub memory_limit: u64,
    /// Reserved disk space, in bytes.
    pub disk: u64,
    /// Disk limit, in bytes; the job is ended there.
    pub disk_limit: u64,
}

/// The highest usage of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of disk.
    pub disk: u64,
    /// CPU time, in milliseconds.
    pub cpu_ms: u64,
}

/// The duration of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StepTime {
    /// The step.
    #[schema(value_type = String)]
    pub step: Step,
    /// Wall-clock time, in milliseconds.
    pub wall_ms: u64,
    /// CPU time, in milliseconds.
    pub cpu_ms: u64,
    /// When the server learned of its end.
    #[schema(value_type = Option<String>)]
    pub ended: Option<Moment>,
}

/// An upload of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunUpload {
    /// The object to upload.
    pub upload: Upload,
    /// The object, once S3 has all of it and its checksum was verified.
    pub done: Option<UploadedArtifact>,
}

/// An object that was copied within S3.
impl From<UploadedArtifact> for RunUpload {
    fn from(done: UploadedArtifact) -> Self {
        Self {
            upload: Upload {
                kind: done.kind,
                bucket: done.bucket.clone(),
                key: done.key.clone(),
                id: String::new(),
                size: done.digests.size,
                part_size: done.digests.size.max(1),
            },
            done: Some(done),
        }
    }
}

/// The job's current state has no such arrow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {from} cannot {arrow}")]
pub struct Refused {
    /// The state's name.
    pub from: &'static str,
    /// The arrow.
    pub arrow: &'static str,
}

impl Run {
    /// A run that waits for its turn.
    pub fn new(plan: Plan) -> Self {
        Self {
            state: State::Queued,
            plan,
            image: ImageId::new(),
            attempt: 1,
            failed: FailedAttempts::default(),
            owner: None,
            token: None,
            step: None,
            steps: Vec::new(),
            uploads: Vec::new(),
            used: None,
            found: None,
            execs: None,
            warnings: Warnings::default(),
            layer: None,
            twins_fallback: None,
            shell: None,
            launched: None,
            retry_at: None,
            ended: None,
            kept: false,
            recipe_sha256: None,
            toolbox_sha256: None,
            log: None,
            settled: false,
        }
    }

    /// Queued → Queued: sets the place, and the server that has it for itself, now or again.
    pub fn place(
        &mut self,
        (place, host): (&str, Option<ServerId>),
        driver: DriverKind,
        how: How,
        why: &str,
    ) -> Result<(), Refused> {
        self.only_from("be placed", |state| matches!(state, State::Queued))?;
        (self.plan.place, self.plan.host) = (Some(place.to_owned()), host);
        self.plan.driver = driver;
        (self.plan.how, self.plan.why) = (how, why.to_owned());
        Ok(())
    }

    /// Queued → Launching: this server has reserved the resources for the job.
    pub fn launch(&mut self, owner: ServerId, now: Moment) -> Result<(), Refused> {
        self.only_from("launch", |state| matches!(state, State::Queued))?;
        self.owner = Some(owner);
        self.launched = Some(now);
        self.retry_at = None;
        self.state = State::Launching;
        Ok(())
    }

    /// Launching, Running, Success, Failed: this server takes over a job whose sandbox it reaches too.
    pub fn adopt(&mut self, owner: ServerId) -> Result<(), Refused> {
        self.only_from("be adopted", |state| {
            !matches!(state, State::Queued | State::Committing)
        })?;
        self.owner = Some(owner);
        Ok(())
    }

    /// Launching → Running: the agent fetched its job. A repeated call by the same agent changes nothing.
    pub fn start(&mut self) -> Result<(), Refused> {
        self.only_from("start", |state| matches!(state, State::Launching | State::Running))?;
        self.state = State::Running;
        Ok(())
    }

    /// Running → Committing: the agent completed its work. A repeated call changes nothing.
    pub fn finish(&mut self) -> Result<(), Refused> {
        self.only_from("finish", |state| matches!(state, State::Running | State::Committing))?;
        self.state = State::Committing;
        Ok(())
    }

    /// Launching → Committing: the artifacts are copies of those of an earlier image, so there is no sandbox.
    pub fn reuse(
        &mut self,
        recipe_sha256: String,
        used: LayerUse,
        artifacts: Vec<UploadedArtifact>,
    ) -> Result<(), Refused> {
        let has_no_sandbox = self.token.is_none();
        self.only_from("take an earlier image", |state| {
            matches!(state, State::Launching) && has_no_sandbox
        })?;
        self.recipe_sha256 = Some(recipe_sha256);
        self.layer = Some(used);
        self.uploads = artifacts.into_iter().map(RunUpload::from).collect();
        self.state = State::Committing;
        Ok(())
    }

    /// Committing → Success: the manifest and the record exist.
    pub fn commit(&mut self, now: Moment) -> Result<(), Refused> {
        self.only_from("commit", |state| matches!(state, State::Committing))?;
        self.state = State::Success;
        self.end(now);
        Ok(())
    }

    /// Launching, Running → Queued, for another attempt at the given time, because this failed and not the recipe, in
    /// fewer than `most` attempts so far. Refused once the job's shell was open: its user's work cannot be repeated.
    pub fn retry(&mut self, blame: Blame, most: u32, at: Moment) -> Result<(), Refused> {
        let failed = self.failed.by(blame) + 1;
        if failed >= most {
            return Err(Refused {
                from: "in its last attempt",
                arrow: "be tried again",
            });
        }
        self.again(matches!(self.state, State::Launching | State::Running))?;
        *self.failed.of(blame) = failed;
        self.retry_at = Some(at);
        Ok(())
    }

    /// Running → Queued, for another attempt by plain emulation, because programs of the image failed and some ran as
    /// native twins. Once per job; refused once the job's shell was open, and for a job that only verifies twins.
    pub fn fall_back(&mut self, failure: &Failure) -> Result<(), Refused> {
        let had_twins = self.execs.as_ref().is_some_and(|execs| execs.twins > 0);
        let was_with_them = had_twins && self.step.is_some_and(Step::runs_the_images_programs);
        let may_be_of_them = was_with_them && self.twins_in_force() != TwinLevel::Off && failure.may_be_of_twins();
        let attempt = self.attempt;
        let is_for_an_image = self.plan.verifies.is_none();
        self.again(may_be_of_them && is_for_an_image && self.state == State::Running)?;
        self.twins_fallback = Some(TwinsFallback {
            attempt,
            failure: failure.clone(),
        });
        Ok(())
    }

    /// The way back to the queue, for another attempt, which starts from nothing.
    fn again(&mut self, is_allowed: bool) -> Result<(), Refused> {
        let untouched = self.shell.as_ref().is_none_or(|shell| shell.opened.is_none());
        self.only_from("be tried again", |_| is_allowed && untouched)?;
        self.state = State::Queued;
        self.attempt += 1;
        if self.plan.runner.is_none() {
            // Any server may carry out the next attempt, at a place of its own.
            self.owner = None;
            if self.plan.host.take().is_some() {
                self.plan.place = None;
            }
        }
        (self.token, self.launched, self.step) = (None, None, None);
        (self.found, self.execs, self.layer) = (None, None, None);
        self.toolbox_sha256 = None;
        self.warnings = Warnings::default();
        self.steps.clear();
        self.uploads.clear();
        Ok(())
    }

    /// Which tools may have run as native twins in this attempt's root until its packages were installed. Where a script of the
    /// recipe failed with twins, that script is tried again by plain emulation, in the root that it had.
    pub fn twins_of_packages(&self) -> TwinLevel {
        match &self.twins_fallback {
            Some(fallback) if fallback.failure.code == Code::ScriptFailed => self.plan.twins,
            _ => self.twins_in_force(),
        }
    }

    /// Which tools may run as native twins in this attempt.
    pub fn twins_in_force(&self) -> TwinLevel {
        match self.twins_fallback {
            Some(_) => TwinLevel::Off,
            None => self.plan.twins,
        }
    }

    /// Any state but the two final ones → Failed.
    pub fn fail(&mut self, failure: Failure, now: Moment) -> Result<(), Refused> {
        self.only_from("fail", |state| !state.is_final())?;
        self.state = State::Failed(match self.step {
            Some(step) => failure.at(step),
            None => failure,
        });
        self.end(now);
        Ok(())
    }

    fn end(&mut self, now: Moment) {
        self.ended = Some(now);
        self.token = None;
        if let Some(shell) = &mut self.shell {
            shell.close(now);
        }
    }

    fn only_from(&self, arrow: &'static str, allowed: impl FnOnce(&State) -> bool) -> Result<(), Refused> {
        if allowed(&self.state) {
            return Ok(());
        }
        let from = self.state.name();
        Err(Refused { from, arrow })
    }

    /// The status for IMS's clients, given the previous status.
    pub fn status(&self, before: JobStatus) -> JobStatus {
        let now = match (&self.state, self.step) {
            (State::Success, _) => JobStatus::Success,
            (State::Failed(_), _) => JobStatus::Error,
            (State::Committing, _) | (_, Some(Step::Package | Step::Upload)) => JobStatus::PackagingArtifacts,
            (_, None | Some(Step::Prepare)) => JobStatus::Creating,
            _ if self.has_open_shell() => JobStatus::WaitingOnUser,
            (_, Some(Step::Fetch)) if self.plan.image.is_some() => JobStatus::FetchingImage,
            (_, Some(Step::Fetch | Step::Template)) => JobStatus::FetchingRecipe,
            (_, Some(Step::Repos)) => JobStatus::WaitingForRepos,
            // The status must not announce the shell before it is open.
            (_, Some(Step::Customize)) if self.is_changed_by_hand() => before,
            (_, Some(Step::Build | Step::Verify | Step::Customize)) => JobStatus::BuildingImage,
        };
        if before.may_become(now) { now } else { before }
    }

    /// The remaining pause before the next attempt. A clock that was set back does not delay the job for ever.
    pub fn rest(&self, now: Moment) -> Option<Duration> {
        let micros = self.retry_at?.micros().checked_sub(now.micros())?;
        let rest = Duration::from_micros(u64::try_from(micros).ok()?);
        (!rest.is_zero() && rest <= LONGEST_REST).then_some(rest)
    }

    /// The point from which this attempt resumes. A second attempt starts afresh: the leftovers of the first may have
    /// caused its failure.
    pub fn resumes(&self) -> Option<ResumeFrom> {
        self.plan.resume.filter(|_| self.attempt == 1)
    }

    /// Whether a user can log in now.
    pub fn has_open_shell(&self) -> bool {
        self.shell.as_ref().is_some_and(Shell::is_ready)
    }

    /// Whether the job waits for its user to change the image.
    fn is_changed_by_hand(&self) -> bool {
        let shell = self.shell.as_ref();
        shell.is_some_and(|shell| shell.wish.when == ShellTime::Customize)
    }

    /// The time since which the job has worked without a user.
    pub fn at_work_since(&self) -> Option<Moment> {
        let closed = self.shell.as_ref().and_then(|shell| shell.closed);
        closed.or(self.launched)
    }

    /// Records the facts about its sandbox.
    pub fn note_sandbox(&mut self, found: SandboxFacts) {
        self.found = Some(found);
    }

    /// Records news of its shell.
    pub fn note_shell(&mut self, news: &ShellNews, now: Moment) {
        let Some(shell) = &mut self.shell else { return };
        match news {
            ShellNews::Opened { host_key, until } => shell.open(host_key, (*until).into(), now),
            ShellNews::Extended { until } if shell.is_ready() => shell.until = Some((*until).into()),
            ShellNews::Extended { .. } => {}
            ShellNews::Closed => shell.close(now),
        }
    }

    /// Running: records the user's verdict on the work in its shell. It can be changed until the agent has received it.
    pub fn judge(&mut self, verdict: Verdict) -> Result<(), Refused> {
        let open = self.has_open_shell();
        self.only_from("be told what to do with its shell", |state| {
            matches!(state, State::Running) && open
        })?;
        if let Some(shell) = &mut self.shell {
            shell.verdict = Some(verdict);
        }
        Ok(())
    }

    /// Records the start of a step.
    pub fn begin_step(&mut self, step: Step) {
        self.step = Some(step);
    }

    /// Records the success of a step. A repeated call changes nothing.
    pub fn end_step(&mut self, time: StepTime) {
        if !self.steps.iter().any(|known| known.step == time.step) {
            self.steps.push(time);
        }
    }

    /// Records the counts of native and emulated programs in this attempt.
    pub fn note_execs(&mut self, mut execs: Execs) {
        // The output of a sandbox must not decide the size of a record.
        execs.most_expensive.truncate(Execs::MOST_EXPENSIVE);
        self.execs = Some(execs);
    }

    /// Records the warning of event number `event` of this attempt. A repeated call changes nothing.
    pub fn note_warning(&mut self, event: u64, warning: Warning) {
        self.warnings.note(event, warning);
    }

    /// Records a warning of the server's own.
    pub fn warn(&mut self, warning: Warning) {
        self.warnings.add(warning);
    }

    /// Records measured usage; each figure keeps its maximum.
    pub fn note_use(&mut self, now: Used) {
        let before = self.used.unwrap_or_default();
        self.used = Some(Used {
            memory: before.memory.max(now.memory),
            disk: before.disk.max(now.disk),
            cpu_ms: before.cpu_ms.max(now.cpu_ms),
        });
    }

    /// The uploads of this attempt, one of each kind: a restarted upload replaces the one before it.
    ///
    /// # Errors
    ///
    /// The first upload that is not complete.
    pub fn artifacts(&self) -> Result<Vec<UploadedArtifact>, &Upload> {
        let last_of_its_kind = |at: usize, known: &RunUpload| {
            let later = &self.uploads[at + 1..];
            !later.iter().any(|other| other.upload.kind == known.upload.kind)
        };
        let last = self.uploads.iter().enumerate();
        last.filter(|(at, known)| last_of_its_kind(*at, known))
            .map(|(_, known)| known.done.clone().ok_or(&known.upload))
            .collect()
    }

    /// Whether resources of its place are reserved for it.
    pub fn holds_place(&self) -> bool {
        self.owner.is_some() && self.state != State::Queued && !self.settled
    }

    /// The failure, if the job failed.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.state {
            State::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

impl State {
    /// Its name.
    pub const fn name(&self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Launching => "launching",
            State::Running => "running",
            State::Committing => "committing",
            State::Success => "success",
            State::Failed(_) => "error",
        }
    }

    /// Whether the state is final.
    pub const fn is_final(&self) -> bool {
        matches!(self, State::Success | State::Failed(_))
    }
}

impl How {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            How::Native => "native",
            How::Emulated => "emulated",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ShellWish;

    fn run() -> Run {
        Run::new(Plan {
            place: Some(LOCAL.to_owned()),
            host: None,
            driver: DriverKind::Namespace,
            own_kernel: false,
            how: How::Native,
            why: String::new(),
            passed_over: Vec::new(),
            needs: Needs::default(),
            recipe: String::new(),
            recipe_type: RecipeType::default(),
            values: Vec::new(),
            template_mode: TemplateMode::Strict,
            squashfs: SquashfsOptions::default(),
            twins: TwinLevel::Full,
            verify_twins: false,
            cache: CacheDepth::Packages,
            cache_from: None,
            cache_asked: false,
            epoch: None,
            locked: false,
            profiles: Vec::new(),
            additions: Additions::default(),
            containerfile: Box::default(),
            verifies: None,
            boot: BootFiles {
                kernel: String::new(),
                initrd: String::new(),
                parameters: String::new(),
                required: false,
            },
            resume: None,
            who: None,
            runner: None,
            keep: false,
            repos_timeout_s: REPOS_TIMEOUT_S,
            image: None,
        })
    }

    fn execs(twins: u64) -> Execs {
        Execs {
            twins,
            emulated: 1,
            most_expensive: Vec::new(),
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Arrow {
        Launch,
        Start,
        Finish,
        Reuse,
        Commit,
        Retry(Blame),
        FallBack,
        Ran(u64),
        Fail,
        Step(Step),
    }

    fn arrows() -> impl Strategy<Value = Vec<Arrow>> {
        let arrow = prop_oneof![
            Just(Arrow::Launch),
            Just(Arrow::Start),
            Just(Arrow::Finish),
            Just(Arrow::Reuse),
            Just(Arrow::Commit),
            prop::sample::select(vec![Blame::Place, Blame::Storage, Blame::Killed]).prop_map(Arrow::Retry),
            Just(Arrow::FallBack),
            (0..2_u64).prop_map(Arrow::Ran),
            Just(Arrow::Fail),
            prop::sample::select(Step::ALL.to_vec()).prop_map(Arrow::Step),
        ];
        prop::collection::vec(arrow, 0..40)
    }

    fn apply(run: &mut Run, arrow: Arrow) -> Result<(), Refused> {
        let now = Moment::from_micros(1);
        match arrow {
            Arrow::Launch => run.launch(ServerId::new(), now),
            Arrow::Start => run.start(),
            Arrow::Finish => run.finish(),
            Arrow::Reuse => run.reuse(String::new(), LayerUse::passed(""), Vec::new()),
            Arrow::Commit => run.commit(now),
            Arrow::Retry(blame) => run.retry(blame, 3, now),
            Arrow::FallBack => run.fall_back(&Failure::new(Code::BuildFailed, "it failed")),
            Arrow::Ran(twins) => {
                run.note_execs(execs(twins));
                Ok(())
            }
            Arrow::Fail => run.fail(Failure::new(Code::SandboxLost, "gone"), now),
            Arrow::Step(step) => {
                run.begin_step(step);
                Ok(())
            }
        }
    }

    #[test]
    fn rests_are_longer_each_time_and_end_whatever_the_clock_does() {
        let first = Duration::from_secs(5);
        let rests: Vec<_> = (1..=4).map(|attempt| rest_after(attempt, first).as_secs()).collect();
        assert_eq!(rests, [5, 10, 20, 40]);
        assert_eq!(rest_after(u32::MAX, first), LONGEST_REST);

        let mut run = run();
        let now = Moment::from_micros(1 << 50);
        run.retry_at = Some(now.plus(first));
        assert_eq!(run.rest(now), Some(first));
        assert_eq!(run.rest(now.plus(first)), None);
        assert_eq!(run.rest(Moment::from_micros(0)), None);
    }

    proptest! {
        /// In any order of arrows: an end is final, a refusal changes nothing, clients never see a status go back, a
        /// token exists only while work is left, attempts are counted, and only one is because of twins.
        #[test]
        fn no_order_of_arrows_breaks_a_run(arrows in arrows()) {
            let mut run = run();
            let mut status = JobStatus::Creating;
            for arrow in arrows {
                if matches!(arrow, Arrow::Step(_) | Arrow::Ran(_)) && run.state != State::Running {
                    continue;
                }
                let before = run.clone();
                if apply(&mut run, arrow).is_err() {
                    prop_assert_eq!(&run, &before);
                }
                if before.state.is_final() {
                    prop_assert_eq!(&run.state, &before.state);
                }
                prop_assert_eq!(run.state.is_final(), run.ended.is_some());
                prop_assert!(!run.state.is_final() || run.token.is_none());
                prop_assert!([Blame::Place, Blame::Storage, Blame::Killed].iter().all(|blame| run.failed.by(*blame) < 3));
                prop_assert!(run.attempt == before.attempt || (run.attempt == before.attempt + 1 && run.state == State::Queued));
                prop_assert!(before.twins_fallback.is_none() || run.twins_fallback == before.twins_fallback);
                let next = run.status(status);
                prop_assert!(status.may_become(next), "{:?} to {:?}", status, next);
                status = next;
                prop_assert_eq!(status.is_final(), run.state.is_final());
                prop_assert_eq!(status == JobStatus::Success, run.state == State::Success);
            }
        }
    }

    /// A run whose root is being built, in which this many twins ran.
    fn building(twins: u64) -> Run {
        let mut run = run();
        run.plan.how = How::Emulated;
        run.launch(ServerId::new(), Moment::from_micros(1)).unwrap();
        run.start().unwrap();
        run.begin_step(Step::Build);
        run.note_execs(execs(twins));
        run
    }

    #[test]
    fn a_build_that_failed_with_twins_is_tried_once_without() {
        let failure = Failure::new(Code::ScriptFailed, "config.sh failed");
        let mut run = building(7);
        assert_eq!(run.twins_in_force(), TwinLevel::Full);
        run.fall_back(&failure).unwrap();
        assert_eq!((&run.state, run.attempt, run.retry_at), (&State::Queued, 2, None));
        let mut changing = building(1);
        changing.begin_step(Step::Customize);
        changing.fall_back(&Failure::new(Code::ChangeFailed, "")).unwrap();
        let mut verifying = building(1);
        verifying.begin_step(Step::Verify);
        verifying.fall_back(&Failure::new(Code::TwinsDiffer, "")).unwrap();
        let fallback = run.twins_fallback.clone().unwrap();
        assert_eq!((fallback.attempt, fallback.failure), (1, failure.clone()));
        // What was asked for stays; a place that fails afterwards does not bring the twins back.
        assert_eq!(
            (run.plan.twins, run.twins_in_force()),
            (TwinLevel::Full, TwinLevel::Off)
        );
        run.launch(ServerId::new(), Moment::from_micros(1)).unwrap();
        run.retry(Blame::Place, 3, Moment::from_micros(1)).unwrap();
        assert_eq!((run.attempt, run.twins_in_force()), (3, TwinLevel::Off));
        run.launch(ServerId::new(), Moment::from_micros(1)).unwrap();
        run.start().unwrap();
        run.begin_step(Step::Build);
        run.note_execs(execs(7));
        run.fall_back(&failure).unwrap_err();
    }

    #[test]
    fn a_failure_that_twins_cannot_have_caused_is_not_tried_without() {
        let refused = |mut run: Run, code| {
            let before = run.clone();
            run.fall_back(&Failure::new(code, "")).unwrap_err();
            assert_eq!(run, before);
        };
        refused(building(0), Code::BuildFailed);
        let mut off = building(1);
        off.plan.twins = TwinLevel::Off;
        refused(off, Code::BuildFailed);
        let mut verification = building(1);
        verification.plan.verifies = Some(JobId::new());
        refused(verification, Code::TwinsDiffer);
        for step in [Step::Fetch, Step::Repos, Step::Package, Step::Upload] {
            let mut run = building(1);
            run.begin_step(step);
            refused(run, Code::BuildFailed);
        }
        for code in Code::ALL.iter().filter(|code| !code.may_be_of_twins()) {
            refused(building(1), *code);
        }
        let mut touched = building(1);
        let wish = ShellWish {
            when: ShellTime::Debug,
            keys: String::new(),
            jail: false,
        };
        touched.shell = Some(Shell::new(wish));
        let news = ShellNews::Opened {
            host_key: String::new(),
            until: jiff::Timestamp::UNIX_EPOCH,
        };
        touched.note_shell(&news, Moment::from_micros(1));
        refused(touched, Code::BuildFailed);
    }

    #[test]
    fn the_way_to_an_image() {
        let mut run = run();
        let mut seen = vec![run.status(JobStatus::Creating)];
        let now = Moment::from_micros(1);
        run.launch(ServerId::new(), now).unwrap();
        run.start().unwrap();
        for step in Step::of(JobType::Create) {
            run.begin_step(*step);
            seen.push(run.status(*seen.last().unwrap()));
        }
        run.finish().unwrap();
        run.commit(now).unwrap();
        seen.push(run.status(*seen.last().unwrap()));
        seen.dedup();
        let words: Vec<_> = seen.into_iter().map(JobStatus::name).collect();
        assert_eq!(
            words,
            [
                "creating",
                "fetching_recipe",
                "waiting_for_repos",
                "building_image",
                "packaging_artifacts",
                "success"
            ]
        );
    }
}
