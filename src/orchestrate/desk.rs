//! Answers the calls of agents: the service's side of their protocol. It reads and writes rows of the store; in S3 it
//! reads objects, presigns addresses and completes uploads; it asks drivers for a sandbox's usage, and opens the ports
//! of shells.
//!
//! Every call is first checked against the job's own row: the token must be that of the current try, and the job must
//! not have ended. Every call may arrive twice.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use kiln_inside::emulation::binfmt::emulation_of;
use kiln_records::{
    Code, Execs, FailedTwin, Failure, GivenUp, Job, JobId, LogLine, Moment, Run, ServerId, Shell, Step, TwinLevel,
    Upload, Warning,
    arch::Arch,
    link::bucket_and_key,
    log,
    protocol::{
        Answer, Call, ChangeSource, Emulator, Event, EventBatch, EventsKept, ImageWork, JobDescription, JobQuery,
        NewUpload, ObjectSource, OpenUpload, PROTOCOL, PackageFile, PackageUrl, PackageUrls, Packages, PartUrls,
        Purpose, RecipeSource, RecipeType, RecipeWork, SandboxFacts, SentParts, ShellNews, ShellPlan, StoredPart,
        Stream, ToolboxSource, What, Work,
    },
    run::{BaseImage, How, Kernel, Plan, Refused, RunUpload, StepTime},
};

use tracing::Instrument;

use super::{
    agents::{AgentCalls, Line, Refusal},
    allowance,
    ask::HISTORY,
    job_span,
    launch::since_launch,
    live::Live,
    orchestrator::Orchestrator,
    reach::rules,
    token,
    watch::out_of_memory,
};
use crate::{
    artifacts::KeptAccount,
    host,
    store::{Appended, StoreError, StoredRun},
};

/// How long a presigned address is valid. The agent asks for one just before using it.
const URL_VALID: Duration = Duration::from_mins(15);

/// The same for objects that are read after other work, or that take long to read.
pub(super) const LONG_URL_VALID: Duration = Duration::from_hours(6);

/// The longest an agent waits for a server, or for S3, that does not answer.
const SERVER_PATIENCE: Duration = Duration::from_mins(30);

#[async_trait]
impl AgentCalls for Orchestrator {
    async fn admit(&self, job: JobId, token: &str) -> Result<(), Refusal> {
        self.admitted(job, token).await.map(drop)
    }

    async fn answer(&self, job: JobId, token: &str, call: Call) -> Result<Answer, Refusal> {
        let stored = self.admitted(job, token).await?;
        // The toolbox is asked for before there is an agent that could be heard, or fall silent.
        if !matches!(call, Call::FindToolbox(_)) {
            self.heard(&stored);
        }
        match call {
            Call::GetJob(JobQuery { protocol: PROTOCOL }) => {
                let description = self.describe(&stored).await?;
                self.change_for(&stored, |run, _| {
                    if let Work::Create(work) = &description.work {
                        run.recipe_sha256 = Some(work.recipe.sha256.clone());
                    }
                    run.start()
                })
                .await?;
                Ok(Answer::Job(Box::new(description)))
            }
            // While servers are upgraded one after the other, an agent may call one of another version first.
            Call::GetJob(_) if !self.carries_out(&stored.run) => Err(Refusal::Later(Failure::new(
                Code::AgentMismatch,
                "this server is of another version than the one that runs the job",
            ))),
            Call::GetJob(_) => Err(Refusal::Failed(
                Failure::new(Code::AgentMismatch, "kiln and its agent were not built together")
                    .hint("`make build` builds both"),
            )),
            Call::PostEvents(batch) => self.keep_events(&stored, batch).await,
            Call::CreateUpload(new) => self.create_upload(&stored, new).await,
            Call::GetPartUrls { upload, parts } => {
                let (_, known) = nth(&stored.run, upload)?;
                allowance::check_parts(&parts.numbers)?;
                let urls = self
                    .artifacts
                    .part_urls(&known.upload, &parts.numbers, URL_VALID)
                    .await?;
                Ok(Answer::PartUrls(PartUrls { urls }))
            }
            Call::CompleteUpload { upload, sent } => self.complete_upload(&stored, upload, &sent).await,
            Call::FindPackages(Packages { packages }) => self.find_packages(&stored, packages).await,
            Call::FindToolbox(name) => Ok(Answer::Toolbox(ToolboxSource {
                layers: self.artifacts.layers(&name, URL_VALID).await?,
                ca_bundle: host::ca_bundle(),
            })),
            Call::KeepInstalled(installed) => self.keep_installed(&stored, installed).await,
            Call::FindLayer(inputs) => self.find_layer(&stored, &inputs).await,
            Call::SettleLayer(settled) => self.settle_layer(&stored, settled).await,
            Call::KeepAccount(account) => {
                allowance::check_account(&account)?;
                let attempt = stored.run.attempt;
                let kept = KeptAccount { attempt, account };
                self.artifacts.put_account(job, &kept).await?;
                Ok(Answer::Done)
            }
            Call::KeepReading(_) => Err(Refusal::Failed(Failure::new(
                Code::Protocol,
                "the job is to be carried out, not only read",
            ))),
            Call::OpenLine if stored.run.shell.is_some() => Ok(Answer::Line),
            Call::OpenLine => Err(Refusal::Failed(Failure::new(Code::Protocol, "the job has no shell"))),
            Call::OpenProxy if self.gate.is_some() => Ok(Answer::Line),
            Call::OpenProxy => Err(Refusal::Failed(Failure::new(Code::Protocol, "there is no proxy"))),
            Call::Finish(outcome) => match outcome.failure {
                None => self.finish(&stored).await,
                Some(failure) => {
                    let failure = self.better_cause(&stored, failure).await;
                    self.fail(job, stored.run.attempt, failure).await?;
                    Ok(Answer::Done)
                }
            },
        }
    }

    async fn take_line(&self, job: JobId, token: &str, line: Line, passed_on: bool) {
        let stored = self.store.get_run(job).await;
        let Ok(Some(StoredRun { run, .. })) = stored else {
            // The agent asks again.
            return;
        };
        match run.owner {
            Some(owner) if !self.carries_out(&run) && !passed_on => self.pass_on(owner, job, token, line).await,
            _ => self.shells.offer(job, line),
        }
    }

    async fn take_proxied(&self, job: JobId, line: Line) {
        let Some(gate) = &self.gate else { return };
        match rules(&self.network, Some(gate)).await {
            Ok(rules) => Arc::clone(gate).serve(line, rules, None).await,
            // The caller sees a closed connection, and tries again.
            Err(failure) => tracing::warn!(job.id = %job, "nothing is asked of the site's proxy: {failure}"),
        }
    }
}

impl Orchestrator {
    /// Passes a line on to the server that carries its job out. A line that cannot be passed on is closed, and its agent opens
    /// another one.
    pub(super) async fn pass_on(&self, owner: ServerId, job: JobId, token: &str, line: Line) {
        let (Some(peers), Some(url)) = (&self.peers, self.places.url_of(owner)) else {
            tracing::warn!(
                job.id = %job, server = %owner,
                "nobody can log in to the job: its agent calls this server, and `peer_url` in [server] of the one that \
                 carries it out is not set"
            );
            return;
        };
        let passed_on = peers.pass_on(url, job, token, line).instrument(job_span(job)).await;
        if let Err(failure) = passed_on {
            tracing::warn!(job.id = %job, server = %owner, "a line into the job's shell is not passed on: {failure}");
        }
    }

    /// The job of a call, if the call is that of its agent.
    async fn admitted(&self, job: JobId, token: &str) -> Result<StoredRun, Refusal> {
        let stored = self.store.get_run(job).await?.ok_or(Refusal::Unknown)?;
        if stored.run.state.is_final() {
            return Err(Refusal::Over);
        }
        let known = stored.run.token.as_deref().is_some_and(|kept| token::fits(token, kept));
        if known { Ok(stored) } else { Err(Refusal::Unknown) }
    }

    fn heard(&self, stored: &StoredRun) {
        self.with_live(stored, Live::hear);
    }

    /// Notes something in what this process knows of a job, which another server may carry out.
    fn with_live<T>(&self, stored: &StoredRun, note: impl FnOnce(&mut Live) -> T) -> T {
        let attempt = stored.run.attempt;
        let mut state = self.state();
        let live = state.live.entry(stored.job.id);
        let live = live.or_insert_with(|| Live::new(attempt, since_launch(&stored.run)));
        if live.attempt != attempt {
            *live = Live::new(attempt, since_launch(&stored.run));
        }
        note(live)
    }

    /// Changes the job of a call by an arrow; a refused arrow means that the job is over for this agent.
    pub(super) async fn change_for(
        &self,
        stored: &StoredRun,
        arrow: impl Fn(&mut Run, Moment) -> Result<(), Refused>,
    ) -> Result<StoredRun, Refusal> {
        let attempt = stored.run.attempt;
        let changed = self
            .change(stored.job.id, |run, now| {
                if run.attempt != attempt {
                    return Err(Refused {
                        from: "in another try",
                        arrow: "hear this agent",
                    });
                }
                arrow(run, now)
            })
            .await?;
        changed.ok_or(Refusal::Unknown)?.map_err(|_| Refusal::Over)
    }

    async fn describe(&self, stored: &StoredRun) -> Result<JobDescription, Failure> {
        let (job, plan) = (&stored.job, &stored.run.plan);
        Ok(JobDescription {
            id: job.id,
            image_name: job.image_root_archive_name.clone(),
            arch: job.arch,
            work: match &plan.image {
                Some(image) => Work::Customize(self.describe_image(image).await?),
                None => Work::Create(self.describe_recipe(plan).await?),
            },
            shell: stored.run.shell.as_ref().map(|shell| self.describe_shell(shell)),
            environment: environment(job),
            emulator: emulator(plan.how, job.arch)?,
            twins: stored.run.twins_in_force(),
            verify_twins: plan.verify_twins,
            purpose: plan.verifies.map_or(Purpose::Image, |_| Purpose::Verification),
            failed_twins: self.failed_twins(stored).await?,
            given_up: self.given_up(stored).await?,
            epoch: plan.epoch,
            cache: plan.cache,
            locked: plan.locked,
            squashfs: plan.squashfs.clone(),
            boot: plan.boot.clone(),
            checks: self.checks.clone(),
            cpus: self.cpus_of(&stored.run).await?,
            ca_bundle: host::ca_bundle(),
            kept_authorities: host::kept_authorities()?,
            signing_keys: host::signing_keys()?,
            from: stored.run.resumes().map(|resume| resume.step),
            // The agent knows what it waits for; the clock that would end its job for silence does not.
            patience_s: SERVER_PATIENCE.min(self.watch.silence.duration() / 2).as_secs(),
            log_bytes: self.log_share(stored).await?,
        })
    }

    /// The size that the log of this attempt may have, in bytes, less a little for the lines that are made of other
    /// events.
    async fn log_share(&self, stored: &StoredRun) -> Result<u64, Failure> {
        let before = self.store.pulse(stored.job.id).await?.map_or(0, |pulse| {
            if pulse.attempt == stored.run.attempt {
                pulse.log_bytes_before
            } else {
                pulse.log_bytes
            }
        });
        let share = log::share(self.watch.log_bytes.0, before);
        Ok(share - share / 16)
    }

    async fn describe_recipe(&self, plan: &Plan) -> Result<RecipeWork, Failure> {
        let (bucket, key) = bucket_and_key(&plan.recipe)
            .ok_or_else(|| Failure::new(Code::RecipeMissing, format!("{} is no object in S3", plan.recipe)))?;
        let digests = self.artifacts.digests(bucket, key).await?;
        let mirror = host::apt_mirror().map(|mirror| ("debian_mirror".to_owned(), mirror.archive));
        Ok(RecipeWork {
            recipe: RecipeSource {
                url: self.artifacts.presign_get(bucket, key, URL_VALID).await?,
                sha256: digests.sha256,
                size: digests.size,
            },
            recipe_type: RecipeType::KiwiNg,
            values: plan.values.iter().cloned().collect(),
            default_values: mirror.into_iter().collect(),
            template_mode: plan.template_mode,
            repos_timeout_s: plan.repos_timeout_s,
            profiles: plan.profiles.clone(),
            additions: plan.additions.clone(),
        })
    }

    async fn describe_image(&self, image: &BaseImage) -> Result<ImageWork, Failure> {
        let mut changes = Vec::with_capacity(image.changes.len());
        for change in &image.changes {
            changes.push(ChangeSource {
                kind: change.kind,
                name: change.name.clone(),
                source: self.object(&change.object, None, Some(change.sha256.clone())).await?,
            });
        }
        let rootfs = self.object(&image.rootfs, image.md5.clone(), image.sha256.clone());
        Ok(ImageWork {
            rootfs: rootfs.await?,
            changes,
        })
    }

    /// An object that an agent reads.
    async fn object(&self, path: &str, md5: Option<String>, sha256: Option<String>) -> Result<ObjectSource, Failure> {
        let missing = || Failure::new(Code::S3Missing, format!("{path} is not in S3"));
        let (bucket, key) = bucket_and_key(path).ok_or_else(missing)?;
        Ok(ObjectSource {
            size: self.artifacts.size(bucket, key).await?.ok_or_else(missing)?,
            url: self.artifacts.presign_get(bucket, key, LONG_URL_VALID).await?,
            md5,
            sha256,
        })
    }

    /// The pairs that this attempt must not use as twins.
    async fn failed_twins(&self, stored: &StoredRun) -> Result<Vec<FailedTwin>, Failure> {
        if !has_twins(stored) {
            return Ok(Vec::new());
        }
        Ok(self.store.failed_twins(Some(stored.job.arch)).await?)
    }

    /// The commands at which twins gave up in the latest job of the same recipe that has an account of them. They only save
    /// time, so a job does without those of an account that cannot be read.
    async fn given_up(&self, stored: &StoredRun) -> Result<GivenUp, Failure> {
        if !has_twins(stored) || stored.run.plan.image.is_some() {
            return Ok(GivenUp::default());
        }
        let past = self.store.past_runs(stored.job.artifact_id, HISTORY).await?;
        for past in past
            .iter()
            .filter(|past| past.job.arch == stored.job.arch && has_twins(past))
        {
            match self.artifacts.account(past.job.id).await {
                Ok(Some(kept)) => return Ok(kept.account.given_up),
                Ok(None) => {}
                Err(failure) => {
                    tracing::warn!(job = %past.job.id, "the account of its programs cannot be read: {failure}");
                }
            }
        }
        Ok(GivenUp::default())
    }

    fn describe_shell(&self, shell: &Shell) -> ShellPlan {
        ShellPlan {
            wish: shell.wish.clone(),
            idle_s: self.shell_place.idle.as_secs(),
            longest_s: self.shell_place.longest.as_secs(),
        }
    }

    async fn keep_events(&self, stored: &StoredRun, batch: EventBatch) -> Result<Answer, Refusal> {
        allowance::check_events(&batch.events)?;
        let job = stored.job.id;
        let mut step = stored.run.step;
        let mut lines = Vec::with_capacity(batch.events.len());
        let mut changes = Vec::new();
        for (number, event) in (batch.first..).zip(&batch.events) {
            match &event.what {
                What::StepStarted(begun) => {
                    step = Some(*begun);
                    changes.push(Change::Began(*begun));
                }
                What::StepFinished { step, wall_ms, cpu_ms } => {
                    changes.push(Change::Ended(StepTime {
                        step: *step,
                        wall_ms: *wall_ms,
                        cpu_ms: *cpu_ms,
                        ended: None,
                    }));
                }
                What::Sandbox(found) => {
                    check_isolation(&stored.run, Some(found))?;
                    changes.push(Change::Found(found.clone()));
                }
                What::Execs(execs) => changes.push(Change::Ran(execs.clone())),
                What::Warning(warning) => {
                    changes.push(Change::Warned(number, warning.at(step)));
                }
                What::Shell(news) => changes.push(Change::Shell(news.clone())),
                What::Log { .. } | What::Progress { .. } => {}
            }
            lines.push(line(event, step));
        }
        let progressed = self.with_live(stored, |live| note_news(live, &batch.events));
        let appended = self
            .store
            .append(
                (job, stored.run.attempt),
                batch.first,
                &lines,
                progressed,
                self.watch.log_bytes.0,
                Moment::now(),
            )
            .await?;
        let next = match appended {
            Appended::Next(next) => next,
            Appended::Hole { expected } => return Err(Refusal::Hole(expected)),
            Appended::OldAttempt => return Err(Refusal::Over),
        };
        self.feed.wake(job);
        let opens = |change: &Change| matches!(change, Change::Shell(ShellNews::Opened { .. }));
        if self.carries_out(&stored.run) && changes.iter().any(opens) {
            // A user who reads that the shell is ready connects at once.
            self.open_port(stored).await?;
        }
        if !changes.is_empty() {
            self.change_for(stored, |run, now| {
                for change in &changes {
                    match change {
                        Change::Began(step) => run.begin_step(*step),
                        Change::Ended(time) => run.end_step(StepTime {
                            ended: Some(now),
                            ..*time
                        }),
                        Change::Found(found) => run.note_sandbox(found.clone()),
                        Change::Ran(execs) => run.note_execs(execs.clone()),
                        Change::Warned(number, warning) => run.note_warning(*number, warning.clone()),
                        Change::Shell(news) => run.note_shell(news, now),
                    }
                }
                Ok(())
            })
            .await?;
        }
        let verdict = stored.run.shell.as_ref().and_then(|shell| shell.verdict);
        Ok(Answer::Events(EventsKept {
            next,
            stop: false,
            verdict,
        }))
    }

    async fn create_upload(&self, stored: &StoredRun, new: NewUpload) -> Result<Answer, Refusal> {
        let same =
            |known: &RunUpload| known.done.is_none() && known.upload.kind == new.kind && known.upload.size == new.size;
        if let Some(number) = stored.run.uploads.iter().position(same) {
            let upload = &stored.run.uploads[number].upload;
            let parts = self.artifacts.stored_parts(upload).await?;
            return Ok(opened(number, upload, parts));
        }
        allowance::check_upload(&stored.run.uploads, new, stored.run.plan.needs.disk_limit)?;
        let job = &stored.job;
        let upload = self
            .artifacts
            .open_upload(
                stored.run.image,
                job.id,
                &job.image_root_archive_name,
                new.kind,
                new.size,
            )
            .await?;
        let noted = self
            .change_for(stored, |run, _| {
                run.uploads.push(RunUpload {
                    upload: upload.clone(),
                    done: None,
                });
                Ok(())
            })
            .await?;
        let number = noted.run.uploads.iter().position(|known| known.upload.id == upload.id);
        Ok(opened(number.unwrap_or_default(), &upload, Vec::new()))
    }

    async fn find_packages(&self, stored: &StoredRun, packages: Vec<PackageFile>) -> Result<Answer, Refusal> {
        let sizes: Vec<u64> = packages.iter().map(|package| package.size).collect();
        let urls = self.artifacts.package_urls(packages, URL_VALID).await?;
        let missing = urls
            .iter()
            .zip(sizes)
            .filter(|(url, _)| matches!(url, PackageUrl::Put { .. }));
        let bytes = missing.map(|(_, size)| size).sum();
        let added = self.with_live(stored, |live| live.add_packages(bytes));
        allowance::check_packages(added, stored.run.plan.needs.disk_limit)?;
        Ok(Answer::Packages(PackageUrls { urls }))
    }

    async fn complete_upload(&self, stored: &StoredRun, number: u32, sent: &SentParts) -> Result<Answer, Refusal> {
        let (at, known) = nth(&stored.run, number)?;
        if known.done.as_ref().is_some_and(|done| done.digests == sent.digests) {
            return Ok(Answer::Done);
        }
        let artifact = self
            .artifacts
            .complete_upload(&known.upload, &sent.parts, &sent.digests)
            .await?;
        self.change_for(stored, |run, _| {
            if let Some(known) = run.uploads.get_mut(at) {
                known.done = Some(artifact.clone());
            }
            Ok(())
        })
        .await?;
        Ok(Answer::Done)
    }

    async fn finish(&self, stored: &StoredRun) -> Result<Answer, Refusal> {
        if let Err(open) = stored.run.artifacts() {
            return Err(Refusal::Failed(Failure::new(
                Code::Protocol,
                format!("the agent finished before its upload of {}", open.key),
            )));
        }
        check_isolation(&stored.run, stored.run.found.as_ref())?;
        self.change_for(stored, |run, _| run.finish()).await?;
        Ok(Answer::Done)
    }

    /// A tool killed for lack of memory does not know the cause; the kernel does.
    async fn better_cause(&self, stored: &StoredRun, failure: Failure) -> Failure {
        match self.driver_of(&stored.run).usage(stored.job.id).await {
            Ok(usage) if usage.oom_kills > 0 => out_of_memory(usage.oom_kills),
            _ => failure,
        }
    }
}

/// The environment that IMS gives to users and scripts that change its images.
fn environment(job: &Job) -> Vec<(String, String)> {
    let dkms = if job.require_dkms { "True" } else { "False" };
    let values = [
        ("IMS_JOB_ID", job.id.to_string()),
        ("IMS_ARCH", job.arch.name().to_owned()),
        ("IMS_DKMS_ENABLED", dkms.to_owned()),
        ("REMOTE_BUILD_NODE", job.remote_build_node.clone()),
    ];
    values.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Checks that a job that must have a kernel of its own does have one: what the agent found counts, not what was
/// requested.
fn check_isolation(run: &Run, found: Option<&SandboxFacts>) -> Result<(), Failure> {
    if run.plan.driver.kernel() == Kernel::Shared {
        return Ok(());
    }
    let detail = match found {
        Some(found) if host::boot_id().is_some_and(|boot| boot == found.boot_id) => "it runs on this host's own kernel",
        Some(SandboxFacts { hypervisor: None, .. }) => "it runs in no virtual machine that can be seen",
        Some(_) => return Ok(()),
        None => "its agent did not say what it runs in",
    };
    Err(Failure::new(
        Code::NotIsolated,
        format!("the job needs a virtual machine, and {detail}"),
    )
    .hint("look at what the container engine's runtime really is; `kiln doctor` tries it out"))
}

/// Reports news to the job's clocks. Returns whether any of it was progress.
fn note_news(live: &mut Live, events: &[Event]) -> bool {
    let before = live.progressed;
    for event in events {
        match &event.what {
            What::StepStarted(_) | What::StepFinished { .. } => live.step(),
            What::Progress { done, total } => live.advance(*done, *total),
            What::Log { text, .. } => live.line(text),
            What::Shell(ShellNews::Closed) => live.leave(),
            What::Execs(_) | What::Sandbox(_) | What::Shell(_) | What::Warning(_) => {}
        }
    }
    live.progressed > before
}

enum Change {
    Began(Step),
    Ended(StepTime),
    Found(SandboxFacts),
    Ran(Execs),
    Warned(u64, Warning),
    Shell(ShellNews),
}

fn nth(run: &Run, number: u32) -> Result<(usize, &RunUpload), Refusal> {
    let at = usize::try_from(number).unwrap_or(usize::MAX);
    let known = run.uploads.get(at);
    known
        .map(|known| (at, known))
        .ok_or_else(|| Refusal::Failed(Failure::new(Code::Protocol, format!("there is no upload {number}"))))
}

fn opened(number: usize, upload: &Upload, parts: Vec<StoredPart>) -> Answer {
    Answer::Upload(OpenUpload {
        upload: u32::try_from(number).unwrap_or(u32::MAX),
        part_size: upload.part_size,
        parts,
    })
}

/// The emulator that runs the programs of an image, if the CPU does not.
fn emulator(how: How, arch: Arch) -> Result<Option<Emulator>, Failure> {
    match how {
        How::Native => Ok(None),
        How::Emulated => {
            let emulation = emulation_of(arch)?;
            Ok(Some(Emulator {
                binfmt: emulation.entry,
                cpu: emulation.cpu,
            }))
        }
    }
}

/// Whether programs of the image may run as twins in this try.
fn has_twins(stored: &StoredRun) -> bool {
    stored.run.plan.how == How::Emulated && stored.run.twins_in_force() != TwinLevel::Off
}

/// The log line for an event, if it has one.
fn line(event: &Event, step: Option<Step>) -> Option<LogLine> {
    let (step, stream, text) = match &event.what {
        What::StepStarted(begun) => (Some(*begun), Stream::Agent, "started".to_owned()),
        What::StepFinished { step, wall_ms, cpu_ms } => {
            let text = format!("done in {wall_ms} ms, {cpu_ms} ms of CPU");
            (Some(*step), Stream::Agent, text)
        }
        What::Log { stream, text } => (step, *stream, log::cut(text.clone())),
        What::Progress { .. } | What::Execs(_) | What::Sandbox(_) | What::Shell(_) | What::Warning(_) => return None,
    };
    Some(LogLine {
        time: event.time,
        step,
        stream: stream.into(),
        text,
    })
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) | StoreError::Stale => Refusal::Later(error.into()),
            _ => Refusal::Failed(error.into()),
        }
    }
}
