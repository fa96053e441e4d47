//! Runs one job of `kiln build` from its request to its end. It makes and removes the job's sandbox through the driver,
//! writes the job's directory and listens on a socket in it, and reads and writes objects in S3.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::UnixListener,
    sync::mpsc,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    agents::AgentCalls,
    desk::emulator,
    job_dir::{JobDir, JobRecord, JobState},
    place::Placement,
    serve::{self, JobServer, Progress, Said},
    token,
};
use crate::{
    arch::Arch,
    artifacts::ArtifactStore,
    host,
    records::{
        Code, Execs, Failure, ImageId, JobId, Link, Step, TwinLevel, UploadedArtifact,
        protocol::{
            AgentFacts, BootFiles, Event, JobDescription, RecipeSource, RecipeType, RecipeWork, SquashfsOptions,
            Stream, TemplateMode, What, Work,
        },
    },
    sandbox::{
        Limits, Network,
        namespace::{DOORS, Handle, JobSandbox, NamespaceDriver, Report},
        toolbox::Toolbox,
    },
};

/// The parts shared by every job of one command.
#[derive(Debug)]
pub struct Site<'a> {
    /// Makes sandboxes.
    pub driver: &'a NamespaceDriver,
    /// The toolbox that sandboxes are made from.
    pub toolbox: &'a Toolbox,
    /// The static agent.
    pub agent: &'a Path,
    /// The store that images go to.
    pub store: &'a ArtifactStore,
    /// The directory in which jobs keep their logs and records.
    pub jobs: &'a Path,
    /// Answers the agent that connects to a socket, as long as the handle lives.
    pub answer: fn(UnixListener, Arc<dyn AgentCalls>) -> AbortOnDropHandle<()>,
}

/// One image to build.
#[derive(Debug, Clone)]
pub struct Request {
    /// The image's name.
    pub name: String,
    /// The image's architecture.
    pub arch: Arch,
    /// Where and how it is built.
    pub placement: Placement,
    /// The bytes of the recipe archive.
    pub recipe: bytes::Bytes,
    /// Their SHA-256, hexadecimal.
    pub recipe_sha256: String,
    /// The build tool that the recipe is written for.
    pub recipe_type: RecipeType,
    /// Template values given by the user.
    pub values: BTreeMap<String, String>,
    /// Template values known by the site.
    pub default_values: BTreeMap<String, String>,
    /// How to treat template names without a value.
    pub template_mode: TemplateMode,
    /// Which tools may run as native twins if it is emulated.
    pub twins: TwinLevel,
    /// How the root is packed.
    pub squashfs: SquashfsOptions,
    /// Which files of `/boot` are delivered.
    pub boot: BootFiles,
    /// How long to wait for repositories.
    pub repos_timeout: Duration,
    /// The limits of the sandbox.
    pub limits: Limits,
    /// Whether to leave the sandbox's files on disk at the end.
    pub keep: bool,
}

/// A complete and verified image in S3.
#[derive(Debug)]
pub struct Image {
    /// Its id.
    pub id: ImageId,
    /// The job that made it.
    pub job: JobId,
    /// Its architecture.
    pub arch: Arch,
    /// Its manifest.
    pub manifest: Link,
    /// Its artifacts.
    pub artifacts: Vec<UploadedArtifact>,
    /// Which programs ran emulated and which natively, if it was emulated.
    pub execs: Option<Execs>,
    /// The whole log, on this machine.
    pub log: PathBuf,
}

/// A job that ended without an image.
#[derive(Debug)]
pub struct Failed {
    /// The reason.
    pub failure: Failure,
    /// The whole log, if there is one.
    pub log: Option<PathBuf>,
    /// The sandbox's files, if they were kept.
    pub kept: Option<PathBuf>,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            log: None,
            kept: None,
        }
    }
}

/// How long the agent may take to exit after it reported its end.
const EXIT_GRACE: Duration = Duration::from_secs(10);

/// How long an agent waits for a server that does not answer. A `kiln build` that is gone does not come back.
const SERVER_PATIENCE: Duration = Duration::from_mins(1);

/// How long a presigned recipe address is valid.
const RECIPE_URL_VALID: Duration = Duration::from_hours(1);

/// Runs a job. Whatever happens, its sandbox is gone afterwards, and S3 holds the whole image or nothing of it.
///
/// `watch` sees every event as it arrives. When `cancelled` fires, the job ends as `interrupted`.
pub async fn run(
    site: &Site<'_>,
    request: Request,
    cancelled: &CancellationToken,
    watch: impl FnMut(&Event) + Send,
) -> Result<Image, Failed> {
    let record = JobRecord {
        id: JobId::new(),
        image: ImageId::new(),
        name: request.name.clone(),
        arch: request.arch,
        how: request.placement.how,
        toolbox: site.toolbox.name.clone(),
        recipe_sha256: request.recipe_sha256.clone(),
        begun: Timestamp::now(),
        ended: None,
        sandbox: None,
        execs: None,
        state: JobState::Running,
    };
    let (job, image) = (record.id, record.image);
    let mut dir = JobDir::create(site.jobs, record)?;
    let log = dir.log_path();

    let mut outcome = match build(site, &request, &mut dir, cancelled, watch).await {
        Ok(artifacts) => commit(site, image, request.arch, artifacts, &log).await,
        Err(failure) => Err(failure),
    };
    let cleaned = match &outcome {
        Ok(_) => Ok(()),
        Err(_) => site.store.discard_image(image).await,
    };
    if let (Err(failure), Err(left)) = (&mut outcome, cleaned.and(site.store.discard_recipe(job).await)) {
        failure.detail = format!(
            "{} (and what was uploaded could not be removed: {left})",
            failure.detail
        );
    }
    let state = match &outcome {
        Ok(_) => JobState::Success,
        Err(failure) => {
            // A full disk may keep the last line out of the log; the user is told the cause in any case.
            let _ = dir.write_line(
                Timestamp::now(),
                failure.step,
                Stream::Agent,
                &format!("error: {failure}"),
            );
            JobState::Error(failure.clone())
        }
    };
    let ended = dir.end(state);
    let (manifest, artifacts) = outcome
        .and_then(|image| ended.map(|()| image))
        .map_err(|failure| Failed {
            failure,
            log: Some(log.clone()),
            kept: request.keep.then(|| site.driver.dir_of(job)),
        })?;
    Ok(Image {
        id: image,
        job,
        arch: request.arch,
        manifest,
        artifacts,
        execs: dir.record.execs.clone(),
        log,
    })
}

/// Does everything up to the last artifact in S3. The sandbox is gone when this returns.
async fn build(
    site: &Site<'_>,
    request: &Request,
    dir: &mut JobDir,
    cancelled: &CancellationToken,
    mut watch: impl FnMut(&Event) + Send,
) -> Result<Vec<UploadedArtifact>, Failure> {
    let (job, image) = (dir.record.id, dir.record.image);
    let (token, token_digest) = token::fresh();
    let (tell, mut said) = mpsc::channel(1);
    let server = JobServer {
        job,
        image,
        image_name: request.name.clone(),
        token_digest,
        description: describe(site, request, job).await?,
        store: site.store.clone(),
        said: tell,
        progress: Progress::default(),
    };
    let doors = dir.make_doors()?;
    let (address, listener) = serve::listen(&doors, DOORS)?;
    let _answering = (site.answer)(listener, Arc::new(server));
    let sandbox = JobSandbox {
        job,
        toolbox: &site.toolbox.tree,
        agent: site.agent,
        doors_dir: &doors,
        facts: AgentFacts {
            gateway: None,
            ca_bundle: None,
            server: address,
            job,
            token,
            doors: Vec::new(),
        },
        limits: request.limits,
        network: Network::Host,
        keep: request.keep,
    };
    let (stderr, mut handle) = site.driver.start_attached(sandbox).await?.split();
    let last_words = tokio::spawn(last_lines(BufReader::new(stderr)));

    let mut log = Log {
        dir,
        step: None,
        watch: &mut watch,
    };
    let (mut finished, mut report) = (None, None);
    {
        let mut ended = pin!(handle.wait());
        while finished.is_none() && report.is_none() {
            tokio::select! {
                // The order matters: an agent that reports its outcome exits at once.
                biased;
                () = cancelled.cancelled() => finished = Some(Err(interrupted())),
                Some(said) = said.recv() => finished = log.hear(said),
                ended = &mut ended => report = Some(ended),
            }
        }
    }
    while let (None, Ok(said)) = (&finished, said.try_recv()) {
        finished = log.hear(said);
    }
    let step = log.step;
    if cancelled.is_cancelled() {
        handle.kill().await;
    }
    let report = match report {
        Some(report) => report,
        None => end(&mut handle).await,
    };
    if let Some(warning) = report.as_ref().ok().and_then(|report| report.warning.as_ref()) {
        dir.write_line(Timestamp::now(), step, Stream::Agent, &format!("warning: {warning}"))?;
        tracing::warn!(job.id = %job, "{warning}");
    }
    if request.keep {
        site.driver.mark_kept(job)?;
    } else {
        site.driver.destroy_attached(job).await?;
    }
    let last_words = last_words.await.unwrap_or_default();
    verdict(finished, report, &last_words, step)
}

/// Uploads the recipe to S3 and describes the job to its agent.
async fn describe(site: &Site<'_>, request: &Request, job: JobId) -> Result<JobDescription, Failure> {
    let url = site
        .store
        .put_recipe(job, request.recipe.clone(), RECIPE_URL_VALID)
        .await?;
    let cpus = std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
    Ok(JobDescription {
        id: job,
        arch: request.arch,
        work: Work::Create(RecipeWork {
            recipe: RecipeSource {
                url,
                sha256: request.recipe_sha256.clone(),
                size: request.recipe.len() as u64,
            },
            recipe_type: request.recipe_type,
            values: request.values.clone(),
            default_values: request.default_values.clone(),
            template_mode: request.template_mode,
            repos_timeout_s: request.repos_timeout.as_secs(),
        }),
        shell: None,
        environment: Vec::new(),
        twins: request.twins,
        emulator: emulator(request.placement.how, request.arch)?,
        squashfs: request.squashfs.clone(),
        boot: request.boot.clone(),
        cpus: request.limits.cpus.unwrap_or(cpus),
        ca_bundle: host::ca_bundle(),
        from: None,
        patience_s: SERVER_PATIENCE.as_secs(),
    })
}

/// Waits for the agent's exit, for as long as that should take.
async fn end(handle: &mut Handle) -> Result<Report, Failure> {
    if let Ok(report) = tokio::time::timeout(EXIT_GRACE, handle.wait()).await {
        return report;
    }
    handle.kill().await;
    handle.wait().await
}

fn interrupted() -> Failure {
    Failure::new(Code::Interrupted, "the build was interrupted")
}

/// The destination of events.
struct Log<'a> {
    dir: &'a mut JobDir,
    /// The step that they belong to.
    step: Option<Step>,
    watch: &'a mut (dyn FnMut(&Event) + Send),
}

impl Log<'_> {
    /// Takes what the agent said. Returns the job's outcome, once the agent knows it.
    fn hear(&mut self, said: Said) -> Option<Result<Vec<UploadedArtifact>, Failure>> {
        match said {
            Said::Events(events, answer) => {
                let kept = events.iter().try_for_each(|event| self.keep(event));
                // An agent that has died meanwhile needs no answer.
                let _ = answer.send(kept);
                None
            }
            Said::Finished(outcome) => Some(outcome),
        }
    }

    fn keep(&mut self, event: &Event) -> Result<(), Failure> {
        (self.watch)(event);
        let (stream, text) = match &event.what {
            What::StepStarted(begun) => {
                self.step = Some(*begun);
                (Stream::Agent, "started".to_owned())
            }
            What::StepFinished { wall_ms, cpu_ms, .. } => {
                (Stream::Agent, format!("done in {wall_ms} ms, {cpu_ms} ms of CPU"))
            }
            What::Log { stream, text } => (*stream, text.clone()),
            What::Execs(execs) => {
                self.dir.record.execs = Some(execs.clone());
                return Ok(());
            }
            What::Sandbox(found) => {
                self.dir.record.sandbox = Some(found.clone());
                return Ok(());
            }
            What::Progress { .. } | What::Shell(_) => return Ok(()),
        };
        self.dir.write_line(event.time, self.step, stream, &text)
    }
}

/// The only place that decides how a job ended, from what the agent said and how its sandbox ended.
fn verdict(
    said: Option<Result<Vec<UploadedArtifact>, Failure>>,
    report: Result<Report, Failure>,
    last_words: &[String],
    step: Option<Step>,
) -> Result<Vec<UploadedArtifact>, Failure> {
    let report = match (said, report) {
        (Some(Ok(artifacts)), Ok(_)) => return Ok(artifacts),
        // The sandbox's end is reported only when the agent's outcome is not known.
        (Some(Err(failure)), Err(_)) => return Err(failure),
        (Some(Ok(_)) | None, Err(lost)) => return Err(lost),
        (Some(Err(failure)), Ok(report)) if report.oom_kills == 0 => return Err(failure),
        (_, Ok(report)) => report,
    };
    let at = |failure: Failure| match step {
        Some(step) => failure.at(step),
        None => failure,
    };
    if report.oom_kills > 0 {
        let detail = format!(
            "the build needed more memory than it may have; the kernel killed {} of it",
            report.oom_kills
        );
        return Err(at(
            Failure::new(Code::OutOfMemory, detail).hint("allow it more: `--memory SIZE`")
        ));
    }
    if let Some(failure) = report.failure {
        return Err(failure);
    }
    let last = last_words.last().map(|line| format!(": {line}")).unwrap_or_default();
    let detail = format!(
        "the agent ended with code {} without giving a reason{last}",
        report.exit_code
    );
    Err(at(
        Failure::new(Code::SandboxLost, detail).hint("something killed it; the kernel log may say what")
    ))
}

/// The last lines of a stream, for evidence.
async fn last_lines(reader: impl AsyncBufReadExt + Unpin) -> Vec<String> {
    const LAST: usize = 20;
    let mut lines = reader.lines();
    let mut last = std::collections::VecDeque::new();
    while let Ok(Some(line)) = lines.next_line().await {
        if last.len() == LAST {
            last.pop_front();
        }
        last.push_back(line);
    }
    last.into()
}

/// Adds the log to the image, then writes the manifest: from then on the image exists.
async fn commit(
    site: &Site<'_>,
    image: ImageId,
    arch: Arch,
    artifacts: Vec<UploadedArtifact>,
    log: &Path,
) -> Result<(Link, Vec<UploadedArtifact>), Failure> {
    let path = log.to_owned();
    let packed = tokio::task::spawn_blocking(move || zstd::encode_all(fs_err::File::open(path)?, 0)).await;
    let packed = packed.map_err(|error| Failure::new(Code::LogLost, error))?;
    let packed = packed.map_err(|error| Failure::io("cannot pack the log", &error))?;
    site.store.put_log(image, packed).await?;
    let manifest = site.store.write_manifest(image, arch, &artifacts).await?;
    Ok((manifest, artifacts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_ends_with_the_cause_that_says_most() {
        let code = |said, report| {
            verdict(said, report, &["last".to_owned()], Some(Step::Build)).map_err(|failure| failure.code)
        };
        let agents = || Failure::new(Code::BuildFailed, "kiwi");
        let report = |oom_kills| {
            Ok(Report {
                exit_code: 137,
                oom_kills,
                ..Report::default()
            })
        };
        let lost = || Err(Failure::new(Code::SandboxLost, "gone"));
        assert_eq!(code(Some(Ok(Vec::new())), report(0)), Ok(Vec::new()));
        assert_eq!(code(Some(Err(agents())), report(0)), Err(Code::BuildFailed));
        assert_eq!(code(Some(Err(agents())), report(1)), Err(Code::OutOfMemory));
        assert_eq!(code(Some(Err(agents())), lost()), Err(Code::BuildFailed));
        assert_eq!(code(None, report(0)), Err(Code::SandboxLost));
        assert_eq!(code(None, lost()), Err(Code::SandboxLost));
        let unmade = Report {
            failure: Some(Failure::new(Code::NoUserNamespace, "no")),
            ..Report::default()
        };
        assert_eq!(code(None, Ok(unmade)), Err(Code::NoUserNamespace));
    }
}
