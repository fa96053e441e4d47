//! `/kiln/v1/jobs/{id}`: the progress of a job that Kiln carries out, and the actions on it. Touches the database.
//! IMS's view of jobs is in [`v3`](crate::api::v3).

use axum::{Extension, Json, extract::State, http::StatusCode};
use kiln_records::{
    CacheDepth, Code, Epoch, Execs, Failure, ImageId, Job, JobId, LayerUse, Moment, Shell, ShellStatus, Step,
    TwinLevel, TwinPair, Verdict, Warning,
    containerfile::ContainerfileOptions,
    protocol::SandboxFacts,
    run::{How, PassedOver, StepTime, TwinsFallback},
};
use serde::Serialize;
use serde_json::Value;
use utoipa::{
    ToSchema,
    openapi::{RefOr, Schema},
};
use uuid::Uuid;

use crate::{
    api::{
        Api,
        address::Path,
        auth::Principal,
        body::{Answer, RawBody},
        fields::{Components, Field, Parsed, body, collect, error, reference, text},
        lists,
        problem::{Problem, Result},
        v3::id,
    },
    orchestrate::{
        Ended, Orchestrator,
        ask::{Ask, Refusal},
    },
    store::StoredRun,
};

/// The progress of a job that Kiln runs.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct JobProgress {
    /// The job.
    id: Uuid,
    /// `queued`, `launching`, `running`, `committing`, `success`, `error`.
    state: &'static str,
    /// For a job that is queued or whose sandbox has not started, the reason for waiting; for others, the place and the
    /// way of the run.
    reason: Option<String>,
    /// Its position in the queue, from 1.
    position: Option<usize>,
    /// The current step, or the step at which the job ended.
    #[schema(value_type = Option<String>)]
    step: Option<Step>,
    /// The progress of that step, if known.
    progress: Option<StepProgress>,
    /// `native` or `emulated`; null until its place is chosen.
    how: Option<&'static str>,
    /// The tools that may run as native twins, as was asked for; null for a native job.
    twins: Option<TwinLevel>,
    /// The same for this attempt: `off` after one that failed with native twins.
    twins_in_force: Option<TwinLevel>,
    /// Whether its twins are verified: step `verify` makes the root once more without them, and compares.
    verify_twins: bool,
    /// Whether equal inputs are to give an equal image, to the last byte.
    reproducible: bool,
    /// The date in a reproducible image, in seconds since 1970; null if that of the recipe's newest file is taken.
    source_date_epoch: Option<u32>,
    /// How much of earlier jobs it may reuse.
    cache: CacheDepth,
    /// The image whose packages it starts from, if it names one.
    #[schema(value_type = Option<String>)]
    cache_from: Option<ImageId>,
    /// Whether it may have the packages of its recipe's lock file only.
    locked: bool,
    /// The profiles of its recipe that it builds; if there are none, those that the recipe has in force by itself.
    profiles: Vec<String>,
    /// What it builds of a Containerfile.
    containerfile: ContainerfileOptions,
    /// What it adds to the description of its recipe: kiwi's option and its value, addresses without secrets.
    additions: Vec<String>,
    /// What it did about the layer of its recipe's packages; null before that is settled.
    layer: Option<LayerUse>,
    /// The job whose twins this one verifies, without an image of its own; null for all others.
    verifies: Option<Uuid>,
    /// The attempt that failed with native twins, after which the job is tried without; null if none did.
    twins_fallback: Option<JobFallback>,
    /// The place of the run: `local`, or another place of the server; null until it is chosen.
    place: Option<String>,
    /// The driver of its sandbox: `namespace`, `microvm`, `docker`, `kata`, `kubernetes`, `kubernetes-vm`; null until its place is
    /// chosen.
    driver: Option<&'static str>,
    /// The isolation of its sandbox: `namespace`, `container`, `vm`; null until its place is chosen.
    isolation: Option<&'static str>,
    /// Suitable places that would not have been worse, and why they could not be had when the place was chosen.
    passed_over: Vec<PassedOver>,
    /// Facts about the sandbox, which the agent inside determined before the recipe ran anything.
    sandbox: Option<SandboxFacts>,
    /// The number of this attempt, from 1.
    attempt: u32,
    /// The resources reserved for it, and their limits.
    needs: JobNeeds,
    /// The highest usage so far.
    used: Option<JobUse>,
    /// Its shell, if it has one.
    shell: Option<JobShell>,
    /// Counts of native and emulated programs, once the root of an emulated job is built.
    execs: Option<Execs>,
    /// The steps of this attempt that succeeded.
    steps: Vec<StepTime>,
    /// What this attempt warned of: what the job went on without, and what should be looked at.
    warnings: Vec<Warning>,
    /// How many more warnings there were than a record has. They are in the log.
    more_warnings: u64,
    /// The failure, if it failed.
    error: Option<JobError>,
    /// The resulting image.
    image: Option<Uuid>,
    /// The location of the whole log, zstd-compressed: `s3://bucket/key`. Present once the job has ended and its
    /// sandbox is removed.
    log: Option<String>,
    /// The time of the request.
    #[schema(value_type = String)]
    created: Moment,
    /// The start of this attempt.
    #[schema(value_type = Option<String>)]
    started: Option<Moment>,
    /// The time of its end.
    #[schema(value_type = Option<String>)]
    ended: Option<Moment>,
}

/// The progress of a step.
#[derive(Debug, Serialize, ToSchema)]
struct StepProgress {
    /// Units done.
    done: u64,
    /// Units in total.
    total: u64,
}

/// The resources reserved for a job, and their limits.
#[derive(Debug, Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "names in JSON say their unit")]
struct JobNeeds {
    /// Memory, in bytes.
    memory_bytes: u64,
    /// The memory limit at which the job is ended, in bytes.
    memory_limit_bytes: u64,
    /// Disk space, in bytes.
    disk_bytes: u64,
    /// The disk limit at which the job is ended, in bytes.
    disk_limit_bytes: u64,
}

/// The resources that a job used.
#[derive(Debug, Serialize, ToSchema)]
struct JobUse {
    /// Memory, in bytes.
    memory_bytes: u64,
    /// Disk space, in bytes.
    disk_bytes: u64,
    /// CPU time, in milliseconds.
    cpu_ms: u64,
}

/// The SSH shell of a job. The user is `root`.
#[derive(Debug, Serialize, ToSchema)]
struct JobShell {
    /// Its status.
    status: ShellStatus,
    /// Its host name or IP address.
    host: Option<String>,
    /// The TCP port.
    port: Option<u16>,
    /// Its host key, made for this job: type and key, as in `known_hosts`.
    host_key: Option<String>,
    /// Whether a login sees only the image's root.
    jail: bool,
    /// The keys that may log in, as in `authorized_keys`.
    public_keys: String,
    /// The time at which it closes unless it is used before.
    #[schema(value_type = Option<String>)]
    until: Option<Moment>,
}

impl From<&Shell> for JobShell {
    fn from(shell: &Shell) -> Self {
        Self {
            status: shell.status,
            host: shell.at.as_ref().map(|at| at.host.clone()),
            port: shell.at.as_ref().map(|at| at.port),
            host_key: shell.host_key.clone(),
            jail: shell.wish.jail,
            public_keys: shell.wish.keys.clone(),
            until: shell.until,
        }
    }
}

/// An attempt of a job that failed with native twins.
#[derive(Debug, Serialize, ToSchema)]
struct JobFallback {
    /// The number of the attempt, from 1.
    attempt: u32,
    /// Its failure, which names the program where that is known.
    error: JobError,
    /// The pair of programs whose native twin died, if one did. Once the job has succeeded without twins, no job uses it.
    twin: Option<TwinPair>,
}

/// The failure of a job.
#[derive(Debug, Serialize, ToSchema)]
struct JobError {
    /// Its stable code; docs/errors.md lists all codes.
    #[schema(value_type = String)]
    code: Code,
    /// The cause, on one line.
    detail: String,
    /// The suggested remedy.
    hint: Option<String>,
    /// The step that failed.
    #[schema(value_type = Option<String>)]
    step: Option<Step>,
}

impl From<Failure> for JobError {
    fn from(failure: Failure) -> Self {
        let Failure {
            code,
            detail,
            hint,
            step,
            twin: _,
            beyond_twins: _,
        } = failure;
        Self {
            code,
            detail,
            hint,
            step,
        }
    }
}

body! {
    /// The way to repeat a job.
    pub(in crate::api) struct JobRetry {
        /// The step to resume from, with the results of the earlier steps. Default: the job starts from the beginning.
        from: Option<Step>,
    }
}

impl Field for Step {
    type Read = Self;

    fn read(value: &Value) -> Parsed<Self> {
        let name = text(value)?;
        lists::one_of("from", &name, &Self::ALL, Self::name)
            .map_err(|problem| error(problem.detail.unwrap_or_default()))
    }

    fn schema() -> RefOr<Schema> {
        reference::<Self>()
    }

    fn components(components: &mut Components) {
        collect::<Self>(components);
    }
}

impl JobProgress {
    pub(super) fn of(stored: &StoredRun, orchestrator: Option<&Orchestrator>) -> Self {
        let StoredRun { job, run, .. } = stored;
        let waiting = orchestrator.and_then(|orchestrator| orchestrator.glance.waiting(job.id));
        let (position, reason) = waiting.unzip();
        let held_up = || orchestrator.and_then(|orchestrator| orchestrator.glance.held_up(job.id));
        let progress = orchestrator.and_then(|orchestrator| orchestrator.glance.progress(job.id));
        let needs = run.plan.needs;
        let is_emulated = run.plan.how == How::Emulated;
        let because = || (!run.plan.why.is_empty()).then(|| run.plan.why.clone());
        let is_placed = run.plan.place.is_some();
        Self {
            id: job.id.0,
            state: run.state.name(),
            reason: reason.or_else(held_up).or_else(because),
            position,
            step: run.step,
            progress: progress.map(|(done, total)| StepProgress { done, total }),
            how: is_placed.then(|| run.plan.how.name()),
            twins: is_emulated.then_some(run.plan.twins),
            twins_in_force: is_emulated.then(|| run.twins_in_force()),
            verify_twins: run.plan.verify_twins,
            reproducible: run.plan.epoch.is_some(),
            source_date_epoch: run.plan.epoch.and_then(Epoch::seconds),
            cache: run.plan.cache,
            cache_from: run.plan.cache_from,
            locked: run.plan.locked,
            profiles: run.plan.profiles.clone(),
            containerfile: (*run.plan.containerfile).clone(),
            additions: {
                let shown = run.plan.additions.shown().into_iter();
                shown.map(|(option, text)| format!("{option} {text}")).collect()
            },
            layer: run.layer.clone(),
            verifies: run.plan.verifies.map(Uuid::from),
            twins_fallback: run
                .twins_fallback
                .clone()
                .map(|TwinsFallback { attempt, failure }| JobFallback {
                    attempt,
                    twin: failure.twin.as_deref().cloned(),
                    error: failure.into(),
                }),
            place: run.plan.place.clone(),
            driver: is_placed.then(|| run.plan.driver.name()),
            isolation: is_placed.then(|| run.plan.driver.isolation()),
            passed_over: run.plan.passed_over.clone(),
            sandbox: run.found.clone(),
            attempt: run.attempt,
            needs: JobNeeds {
                memory_bytes: needs.memory,
                memory_limit_bytes: needs.memory_limit,
                disk_bytes: needs.disk,
                disk_limit_bytes: needs.disk_limit,
            },
            used: run.used.map(|used| JobUse {
                memory_bytes: used.memory,
                disk_bytes: used.disk,
                cpu_ms: used.cpu_ms,
            }),
            shell: run.shell.as_ref().map(JobShell::from),
            execs: run.execs.clone(),
            steps: run.steps.clone(),
            warnings: run.warnings.list.clone(),
            more_warnings: run.warnings.more,
            error: run.failure().cloned().map(JobError::from),
            image: job.resultant_image_id.map(Uuid::from),
            log: run.log.clone(),
            created: job.created,
            started: run.launched,
            ended: run.ended,
        }
    }
}

/// Show the progress of a job: its state, the reason for waiting, the cause of a failure.
#[utoipa::path(get, path = "/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = JobProgress), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(in crate::api) async fn get(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<JobProgress>> {
    let stored = carried_out(&api, id(&text)?).await?;
    Ok(Json(JobProgress::of(&stored, api.orchestrator.as_deref())))
}

/// Cancel a job that has not ended.
#[utoipa::path(post, path = "/jobs/{id}/cancel", tag = "jobs", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = JobProgress), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(in crate::api) async fn cancel(
    State(api): State<Api>,
    principal: Option<Extension<Principal>>,
    Path(text): Path<String>,
) -> Result<Json<JobProgress>> {
    let job = id(&text)?;
    carried_out(&api, job).await?;
    let orchestrator = orchestrator(&api)?;
    let who = principal.map_or_else(|| "a user".to_owned(), |Extension(principal)| principal.name);
    match orchestrator
        .jobs
        .cancel(
            job,
            Failure::new(Code::Cancelled, format!("the job was cancelled by {who}")),
        )
        .await
    {
        Ok(Some(stored)) => Ok(Json(JobProgress::of(&stored, Some(orchestrator)))),
        Ok(None) => Err(Problem::not_found()),
        Err(Ended::Already(refused)) => Err(Problem::conflict(format_args!("The job has ended: {refused}."))),
        Err(Ended::Store(error)) => Err(error.into()),
    }
}

/// Repeat a job that has ended, as a new job.
#[utoipa::path(post, path = "/jobs/{id}/retry", tag = "jobs", request_body = JobRetry,
    params(("id" = String, Path, description = "The id of the record")),
    responses((status = 201, body = Job), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 502, body = Problem)))]
pub(in crate::api) async fn retry(
    State(api): State<Api>,
    principal: Option<Extension<Principal>>,
    Path(text): Path<String>,
    body: RawBody,
) -> Answer<(StatusCode, Json<Job>)> {
    let job = id(&text)?;
    let from = body.read_if_any::<JobRetry>()?.and_then(|retry| retry.from);
    let old = Box::new(carried_out(&api, job).await?);
    let who = Principal::name_of(principal);
    let job = api.asker.ask(JobId::new(), Ask::Again { old, from }, who).await?;
    Ok((StatusCode::CREATED, Json(job)))
}

/// Keep the changes made in a job's shell: the shell closes, and the image is made.
#[utoipa::path(post, path = "/jobs/{id}/complete", tag = "jobs", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = JobProgress), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(in crate::api) async fn complete(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<JobProgress>> {
    judge(&api, &text, Verdict::Complete).await
}

/// Discard the changes made in a job's shell: the shell closes, and the job ends without an image.
#[utoipa::path(post, path = "/jobs/{id}/fail", tag = "jobs", params(("id" = String, Path, description = "The id of the record")),
    responses((status = 200, body = JobProgress), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(in crate::api) async fn fail(State(api): State<Api>, Path(text): Path<String>) -> Result<Json<JobProgress>> {
    judge(&api, &text, Verdict::Failed).await
}

async fn judge(api: &Api, text: &str, verdict: Verdict) -> Result<Json<JobProgress>> {
    let job = id(text)?;
    carried_out(api, job).await?;
    let orchestrator = orchestrator(api)?;
    match orchestrator.jobs.judge(job, verdict).await {
        Ok(Some(stored)) => Ok(Json(JobProgress::of(&stored, Some(orchestrator)))),
        Ok(None) => Err(Problem::not_found()),
        Err(Ended::Already(_)) => Err(Problem::conflict("The job has no shell that is open.")),
        Err(Ended::Store(error)) => Err(error.into()),
    }
}

/// The job, if it exists and Kiln carries it out.
pub(super) async fn carried_out(api: &Api, job: JobId) -> Result<StoredRun> {
    if let Some(stored) = api.store.get_run(job).await? {
        return Ok(stored);
    }
    match api.store.get_job(job).await? {
        Some(_) => Err(Problem::conflict(
            "Kiln only keeps the record of this job; another service carries it out.",
        )),
        None => Err(Problem::not_found()),
    }
}

fn orchestrator(api: &Api) -> Result<&Orchestrator> {
    api.orchestrator.as_deref().ok_or_else(|| Refusal::RecordsOnly.into())
}
