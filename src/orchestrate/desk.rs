//! Answers the calls of agents: the service's side of their protocol. It reads and writes rows of the store; in S3 it
//! keeps what agents say, presigns addresses and completes uploads; it asks drivers for a sandbox's usage, and opens the
//! ports of shells.
//!
//! Every call is first checked against the job's own row: the token must be that of the current try, and the job must
//! not have ended. Every call may arrive twice.

use std::sync::Arc;

use async_trait::async_trait;
use kiln_records::{
    Code, Execs, Failure, Installed, JobId, LogLine, Moment, Run, Step, Upload, Warning, log,
    protocol::{
        Answer, Call, Event, EventBatch, EventsKept, JobQuery, NewUpload, OpenUpload, PROTOCOL, PackageFile,
        PackageUrl, PackageUrls, Packages, PartUrls, SandboxFacts, SentParts, ShellNews, StoredPart, Stream,
        ToolboxSource, What, Work,
    },
    run::{Kernel, RunUpload, StepTime},
};

use super::{
    agents::{AgentCalls, Line, Refusal},
    allowance,
    bases::Bases,
    claim::Claim,
    description::Descriptions,
    layers::Layers,
    lines::Lines,
    live::{Live, LiveJobs},
    row::Jobs,
    token,
    usage::Usage,
};
use crate::{
    artifacts::{ArtifactStore, KeptAccount, KeptInstalled, URL_VALID},
    host,
    store::{Appended, SharedStore, StoredRun},
};

/// Answers agents.
#[derive(Debug)]
pub struct Desk {
    pub(super) store: SharedStore,
    pub(super) jobs: Arc<Jobs>,
    pub(super) claim: Arc<Claim>,
    pub(super) live: Arc<LiveJobs>,
    pub(super) artifacts: ArtifactStore,
    pub(super) descriptions: Descriptions,
    pub(super) layers: Layers,
    pub(super) lines: Lines,
    pub(super) bases: Arc<Bases>,
    pub(super) usage: Arc<Usage>,
    /// The most bytes of a job's log.
    pub(super) log_bytes: u64,
}

#[async_trait]
impl AgentCalls for Desk {
    async fn admit(&self, job: JobId, token: &str) -> Result<(), Refusal> {
        self.admitted(job, token).await.map(drop)
    }

    async fn answer(&self, job: JobId, token: &str, call: Call) -> Result<Answer, Refusal> {
        let stored = self.admitted(job, token).await?;
        // The toolbox is asked for before there is an agent that could be heard, or fall silent.
        if !matches!(call, Call::FindToolbox(_)) {
            self.live.with(job, &stored.run, Live::hear);
        }
        match call {
            Call::GetJob(JobQuery { protocol: PROTOCOL }) => {
                let description = self.descriptions.of(&stored).await?;
                self.jobs
                    .change_for(&stored, |run, _| {
                        if let Work::Create(work) = &description.work {
                            run.recipe_sha256 = Some(work.recipe.sha256.clone());
                        }
                        run.start()
                    })
                    .await?;
                Ok(Answer::Job(Box::new(description)))
            }
            // While servers are upgraded one after the other, an agent may call one of another version first.
            Call::GetJob(_) if !self.claim.carries_out(&stored.run) => Err(Refusal::Later(Failure::new(
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
            Call::FindLayer(inputs) => self.layers.find(&stored, &inputs).await,
            Call::SettleLayer(settled) => self.layers.settle(&stored, settled).await,
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
            Call::OpenProxy if self.lines.network.gate.is_some() => Ok(Answer::Line),
            Call::OpenProxy => Err(Refusal::Failed(Failure::new(Code::Protocol, "there is no proxy"))),
            Call::OpenRegistry if self.bases.of(&stored.run.plan).next().is_some() => Ok(Answer::Line),
            Call::OpenRegistry => Err(Refusal::Failed(Failure::new(
                Code::Protocol,
                "the job has no registries",
            ))),
            Call::Finish(outcome) => match outcome.failure {
                None => self.finish(&stored).await,
                Some(failure) => {
                    let failure = self.usage.better_cause(&stored, failure).await;
                    self.jobs.fail(job, stored.run.attempt, failure).await?;
                    Ok(Answer::Done)
                }
            },
        }
    }

    async fn take_line(&self, job: JobId, token: &str, line: Line, passed_on: bool) {
        self.lines.take(job, token, line, passed_on).await;
    }

    async fn take_proxied(&self, job: JobId, line: Line) {
        self.lines.take_proxied(job, line).await;
    }

    async fn take_registry(&self, job: JobId, token: &str, line: Line) {
        if let Ok(stored) = self.admitted(job, token).await {
            Arc::clone(&self.bases).serve(&stored.run, token, line).await;
        }
    }
}

impl Desk {
    /// The job of a call, if the call is that of its agent.
    async fn admitted(&self, job: JobId, token: &str) -> Result<StoredRun, Refusal> {
        let stored = self.store.get_run(job).await?.ok_or(Refusal::Unknown)?;
        if stored.run.state.is_final() {
            return Err(Refusal::Over);
        }
        let known = stored.run.token.as_deref().is_some_and(|kept| token::fits(token, kept));
        if known { Ok(stored) } else { Err(Refusal::Unknown) }
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
        let progressed = self.live.with(job, &stored.run, |live| note_news(live, &batch.events));
        let appended = self
            .store
            .append(
                (job, stored.run.attempt),
                batch.first,
                &lines,
                progressed,
                self.log_bytes,
                Moment::now(),
            )
            .await?;
        let next = match appended {
            Appended::Next(next) => next,
            Appended::Hole { expected } => return Err(Refusal::Hole(expected)),
            Appended::OldAttempt => return Err(Refusal::Over),
        };
        self.jobs.feed.wake(job);
        let opens = |change: &Change| matches!(change, Change::Shell(ShellNews::Opened { .. }));
        if self.claim.carries_out(&stored.run) && changes.iter().any(opens) {
            // A user who reads that the shell is ready connects at once.
            self.lines.shells.open_port(stored).await?;
        }
        if !changes.is_empty() {
            self.jobs
                .change_for(stored, |run, now| {
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
            .jobs
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

    /// Keeps the packages that an agent found in its job's root. It tells them before any late file of the recipe is used, and
    /// the first word of an attempt counts: what a recipe's scripts do with the sandbox later changes nothing of it.
    async fn keep_installed(&self, stored: &StoredRun, installed: Installed) -> Result<Answer, Refusal> {
        let refused = |why: &str| Refusal::Failed(Failure::new(Code::Protocol, why));
        let (job, attempt) = (stored.job.id, stored.run.attempt);
        if stored.run.plan.image.is_some() || !installed.is_sound() {
            return Err(refused(
                "what is said of the packages is too large, or not of a recipe's root",
            ));
        }
        match self.artifacts.installed(job, attempt).await? {
            // An agent that lost the answer tells it again.
            Some(before) if before == installed => {}
            Some(_) => return Err(refused("other packages of this attempt are known already")),
            None => {
                let kept = KeptInstalled { attempt, installed };
                self.artifacts.put_installed(job, &kept).await?;
            }
        }
        Ok(Answer::Done)
    }

    async fn find_packages(&self, stored: &StoredRun, packages: Vec<PackageFile>) -> Result<Answer, Refusal> {
        let sizes: Vec<u64> = packages.iter().map(|package| package.size).collect();
        let urls = self.artifacts.package_urls(packages, URL_VALID).await?;
        let missing = urls
            .iter()
            .zip(sizes)
            .filter(|(url, _)| matches!(url, PackageUrl::Put { .. }));
        let bytes = missing.map(|(_, size)| size).sum();
        let added = self
            .live
            .with(stored.job.id, &stored.run, |live| live.add_packages(bytes));
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
        self.jobs
            .change_for(stored, |run, _| {
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
        self.jobs.change_for(stored, |run, _| run.finish()).await?;
        Ok(Answer::Done)
    }
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
