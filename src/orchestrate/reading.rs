//! Answers the agent of a sandbox in which a recipe is only read: no record is made of it. Keeps in memory what the agent reports.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use kiln_records::{
    CacheDepth, CheckLevels, Code, Failure, GivenUp, JobId, Step, TwinLevel, Warnings,
    additions::Additions,
    arch::Arch,
    containerfile::ContainerfileOptions,
    protocol::{
        AgentFacts, Answer, BootFiles, Call, EventBatch, EventsKept, JobDescription, JobQuery, Outcome, PROTOCOL,
        ProxyFacts, Purpose, Reading, RecipeSource, RecipeType, RecipeWork, SquashfsOptions, TemplateMode, What, Work,
    },
    run::Kernel,
};
use sha2::{Digest, Sha256};

use super::{
    agents::{AgentCalls, Line, Refusal},
    layers::never_a_layer,
    token,
    watch::verdict,
};
use crate::{
    host,
    sandbox::{DiskLimit, Evidence, Limits, Network, SandboxSpec, doors::AGENT_SOCKET, toolbox::Toolbox},
};

/// What reading may take: parsers, kiwi's style sheets and a few small files.
const LIMITS: Limits = Limits {
    memory: Some(2 << 30),
    cpus: None,
    pids: 1024,
    disk: Some(DiskLimit {
        bytes: 8 << 30,
        inodes: 1_000_000,
    }),
};

/// The size that the log may have, in bytes.
const LOG_BYTES: u64 = 16 << 20;

/// How long the agent waits for this process, in seconds.
const PATIENCE_S: u64 = 30;

/// A recipe that is to be read.
#[derive(Debug, Clone)]
pub struct WantedReading {
    /// Its archive.
    pub archive: Bytes,
    /// Its name.
    pub name: String,
    /// The architecture to read it for.
    pub arch: Arch,
    /// Values for its templates.
    pub values: BTreeMap<String, String>,
    /// The treatment of template names without a value.
    pub template_mode: TemplateMode,
    /// The profiles that are asked for.
    pub profiles: Vec<String>,
    /// What is added to its description.
    pub additions: Additions,
    /// The levels of checks that the site chose.
    pub checks: CheckLevels,
}

/// Takes lines of the log.
pub type Say = Box<dyn Fn(&str) + Send + Sync>;

/// The side of a reading that the agent calls.
pub struct ReadingDesk {
    description: JobDescription,
    archive: Bytes,
    /// The digest of the agent's token.
    token: String,
    say: Say,
    heard: Mutex<Heard>,
}

/// What the agent has said.
#[derive(Debug, Default)]
struct Heard {
    /// The number of the next event.
    next: u64,
    step: Option<Step>,
    warnings: Warnings,
    reading: Option<Box<Reading>>,
    /// How the agent ended, once it has.
    outcome: Option<Outcome>,
}

impl fmt::Debug for ReadingDesk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadingDesk")
            .field("job", &self.description.id)
            .finish_non_exhaustive()
    }
}

impl ReadingDesk {
    /// The desk for a recipe whose archive is at `url`, and the token of its agent. Lines of the log go to `say`.
    ///
    /// # Errors
    ///
    /// When the site's keys cannot be read.
    pub fn new(wanted: WantedReading, url: String, say: Say) -> Result<(Self, String), Failure> {
        let mirror = host::apt_mirror().map(|mirror| ("debian_mirror".to_owned(), mirror.archive));
        let work = RecipeWork {
            recipe: RecipeSource {
                url,
                sha256: hex::encode(Sha256::digest(&wanted.archive)),
                size: wanted.archive.len() as u64,
            },
            recipe_type: RecipeType::KiwiNg,
            containerfile: ContainerfileOptions::default(),
            secrets: Vec::new(),
            registries: Vec::new(),
            values: wanted.values,
            default_values: mirror.into_iter().collect(),
            template_mode: wanted.template_mode,
            repos_timeout_s: 0,
            profiles: wanted.profiles,
            additions: wanted.additions,
        };
        let (secret, token) = token::fresh();
        let description = JobDescription {
            id: JobId::new(),
            image_name: wanted.name,
            arch: wanted.arch,
            work: Work::Create(Box::new(work)),
            shell: None,
            environment: Vec::new(),
            emulator: None,
            twins: TwinLevel::Off,
            verify_twins: false,
            purpose: Purpose::Reading,
            failed_twins: Vec::new(),
            given_up: GivenUp::default(),
            epoch: None,
            cache: CacheDepth::None,
            locked: false,
            squashfs: SquashfsOptions::default(),
            boot: BootFiles {
                kernel: String::new(),
                initrd: String::new(),
                parameters: String::new(),
                required: false,
            },
            checks: wanted.checks,
            cpus: 1,
            ca_bundle: host::ca_bundle(),
            // No image is made.
            kept_authorities: None,
            signing_keys: host::signing_keys()?,
            from: None,
            patience_s: PATIENCE_S,
            log_bytes: LOG_BYTES,
        };
        let desk = Self {
            description,
            archive: wanted.archive,
            token,
            say,
            heard: Mutex::default(),
        };
        Ok((desk, secret))
    }

    /// The name of the sandbox.
    pub fn job(&self) -> JobId {
        self.description.id
    }

    /// The sandbox, on this host's kernel and network, as that of a command's job.
    pub fn sandbox(
        &self,
        toolbox: Toolbox,
        agent: PathBuf,
        doors_dir: PathBuf,
        secret: String,
        proxy: Option<Vec<(String, String)>>,
    ) -> SandboxSpec {
        SandboxSpec {
            job: self.job(),
            toolbox,
            agent,
            limits: LIMITS,
            kernel: Kernel::Shared,
            network: Network::Host,
            doors_dir,
            facts: AgentFacts {
                server: format!("unix:/run/kiln/{AGENT_SOCKET}"),
                job: self.job(),
                token: secret,
                doors: Vec::new(),
                ca_bundle: None,
                gateway: None,
                proxy: proxy.map(|variables| Box::new(ProxyFacts { variables, port: None })),
            },
            server_url: None,
            server_ca_bundle: None,
            in_directory: false,
            lease: None,
            scratch_from: None,
        }
    }

    /// What was understood, once the sandbox has ended as this says.
    ///
    /// # Errors
    ///
    /// Why nothing is known of the recipe.
    pub fn result(&self, evidence: &Evidence) -> Result<Reading, Failure> {
        let mut heard = self.heard();
        let warnings = std::mem::take(&mut heard.warnings);
        match (heard.reading.take(), heard.outcome.take()) {
            (Some(mut reading), Some(_)) => {
                (reading.warnings, reading.more_warnings) = (warnings.list, warnings.more);
                if reading.failure.is_none() {
                    reading.no_layer = reading.no_layer.take().or_else(|| never_a_layer(&self.archive));
                }
                Ok(*reading)
            }
            (_, Some(Outcome { failure: Some(failure) })) => Err(failure),
            _ => Err(verdict(evidence, heard.step)),
        }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        // Each change is complete before anything can panic.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_events(&self, batch: &EventBatch) -> EventsKept {
        let mut heard = self.heard();
        // Those before were sent once more, since their answer was lost.
        let known = usize::try_from(heard.next.saturating_sub(batch.first)).unwrap_or(usize::MAX);
        for event in batch.events.iter().skip(known) {
            heard.next += 1;
            match &event.what {
                What::StepStarted(step) => heard.step = Some(*step),
                What::Log { text, .. } => (self.say)(text),
                What::Warning(warning) => {
                    let (number, warning) = (heard.next - 1, warning.at(heard.step));
                    heard.warnings.note(number, warning);
                }
                _ => {}
            }
        }
        EventsKept {
            next: heard.next,
            stop: false,
            verdict: None,
        }
    }
}

#[async_trait]
impl AgentCalls for ReadingDesk {
    async fn admit(&self, job: JobId, token: &str) -> Result<(), Refusal> {
        if job == self.job() && token::fits(token, &self.token) {
            return Ok(());
        }
        Err(Refusal::Unknown)
    }

    async fn answer(&self, job: JobId, token: &str, call: Call) -> Result<Answer, Refusal> {
        self.admit(job, token).await?;
        match call {
            Call::GetJob(JobQuery { protocol: PROTOCOL }) => Ok(Answer::Job(Box::new(self.description.clone()))),
            Call::GetJob(_) => Err(Refusal::Failed(
                Failure::new(Code::AgentMismatch, "kiln and its agent were not built together")
                    .hint("`make build` builds both"),
            )),
            Call::PostEvents(batch) => Ok(Answer::Events(self.keep_events(&batch))),
            Call::KeepReading(reading) => {
                self.heard().reading = Some(reading);
                Ok(Answer::Done)
            }
            Call::Finish(outcome) => {
                self.heard().outcome = Some(outcome);
                Ok(Answer::Done)
            }
            _ => Err(Refusal::Failed(Failure::new(
                Code::Protocol,
                "the recipe is only read, and nothing is made of it",
            ))),
        }
    }

    async fn take_line(&self, _: JobId, _: &str, _: Line, _: bool) {}

    async fn take_registry(&self, _: JobId, _: &str, _: Line) {}

    async fn take_proxied(&self, _: JobId, _: Line) {}
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use kiln_records::{Warning, protocol::Event};

    use super::*;

    fn desk() -> ReadingDesk {
        let wanted = WantedReading {
            archive: Bytes::from_static(b"no archive"),
            name: "r".to_owned(),
            arch: Arch::X86_64,
            values: BTreeMap::new(),
            template_mode: TemplateMode::Strict,
            profiles: Vec::new(),
            additions: Additions::default(),
            checks: CheckLevels::new(),
        };
        ReadingDesk::new(wanted, "http://127.0.0.1:1/".to_owned(), Box::new(|_| ()))
            .unwrap()
            .0
    }

    fn batch(first: u64, messages: &[&str]) -> EventBatch {
        let event = |message: &&str| Event {
            time: Timestamp::UNIX_EPOCH,
            what: What::Warning(Warning::new(Code::RecipePaths, message)),
        };
        EventBatch {
            first,
            events: messages.iter().map(event).collect(),
        }
    }

    fn evidence() -> Evidence {
        Evidence {
            exit_code: 137,
            oom_kills: 0,
            failure: None,
            warning: None,
            last_words: Vec::new(),
        }
    }

    #[test]
    fn warnings_are_kept_once_though_events_are_sent_again() {
        let desk = desk();
        assert_eq!(desk.keep_events(&batch(0, &["a", "b"])).next, 2);
        assert_eq!(desk.keep_events(&batch(0, &["a", "b", "c"])).next, 3);
        desk.heard().reading = Some(Box::new(Reading::nothing(Arch::X86_64)));
        desk.heard().outcome = Some(Outcome { failure: None });
        let reading = desk.result(&evidence()).unwrap();
        let messages: Vec<_> = reading.warnings.iter().map(|warning| &*warning.message).collect();
        assert_eq!(messages, ["a", "b", "c"]);
        // What only the archive tells.
        assert!(reading.no_layer.is_some());
    }

    #[tokio::test]
    async fn nothing_else_is_answered_and_an_agent_that_is_lost_is_no_reading() {
        let desk = desk();
        let (job, token) = (desk.job(), "another");
        assert_eq!(desk.admit(job, token).await, Err(Refusal::Unknown));
        let desk = ReadingDesk {
            token: hex::encode(Sha256::digest("mine")),
            ..desk
        };
        let refused = desk.answer(job, "mine", Call::OpenLine).await.unwrap_err();
        assert!(matches!(refused, Refusal::Failed(failure) if failure.code == Code::Protocol));
        assert_eq!(desk.result(&evidence()).unwrap_err().code, Code::SandboxLost);
        let failure = Some(Failure::new(Code::RecipeDamaged, "x"));
        desk.answer(job, "mine", Call::Finish(Outcome { failure }))
            .await
            .unwrap();
        assert_eq!(desk.result(&evidence()).unwrap_err().code, Code::RecipeDamaged);
    }
}
