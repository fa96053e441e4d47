//! Runs one job, step by step. Talks to the server, and touches the job's disk space.

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use super::{
    build::kiwi,
    building::Building,
    channel::{Channel, Ending},
    containerfile, create, customize, debug, doors,
    events::Events,
    evidence,
    failed_scripts::FailedScripts,
    fetch, ids, kiwi_config, mask,
    outputs::{Outputs, is_verdict},
    package, pauses,
    process::blocking,
    proxy,
    reading::Reader,
    release::Releases,
    stop, verify,
};
use jiff::Timestamp;
use kiln_inside::{
    emulation::{binfmt, probe},
    room::Release,
};
use kiln_records::{
    Code, EmulatedProgram, Execs, Failure, JobType, ShellTime, Step, TwinLevel, Warning,
    arch::Arch,
    protocol::{
        AgentFacts, Emulator, ImageWork, JobDescription, Outcome, Purpose, RecipeType, RecipeWork, ShellPlan, What,
        Work,
    },
    twins::no_twins_between,
};

use crate::twins::join;
use nix::sys::resource::{UsageWho, getrusage};

/// The job's disk space, as the driver mounts it.
const SCRATCH: &str = "/scratch";

/// The file in which the toolbox's programs look for certificate authorities.
const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The site's authorities, which the new root trusts for a while, and its keys.
const SITE_AUTHORITIES: &str = "/run/kiln-authorities.pem";
const KEPT_AUTHORITIES: &str = "/run/kiln-kept-authorities.pem";
const SITE_KEYS: &str = "/run/kiln-keys";

/// Gets the job from the server, does it, and reports its outcome. `release` is what programs are told of the kernel, if that can
/// be chosen.
///
/// # Errors
///
/// The reason why the agent ends before the server knows the outcome.
pub async fn run(facts: &AgentFacts, release: Option<Release>) -> Result<(), Failure> {
    let asked_to_end = stop::asked();
    doors::open(&facts.doors, facts.gateway).await?;
    let channel = Channel::new(facts)?;
    proxy::open(facts.proxy.as_deref(), &channel).await?;
    let events = Events::new(channel.clone());
    let outcome = tokio::select! {
        outcome = work(&channel, &events, release) => outcome,
        // Dropping the work kills the running tool; the rest of the sandbox ends with the agent.
        ending = channel.ended() => match ending {
            Ending::Failed(failure) => Err(failure),
            Ending::Dismissed(failure) => return Err(failure),
        },
        failure = asked_to_end => Err(failure),
    };
    // The server must have the last line before it hears that the job is over.
    let finish = async {
        events.flush().await;
        let failure = outcome.err().map(|failure| events.masked(failure));
        channel.finish(&Outcome { failure }).await
    };
    tokio::select! {
        finished = finish => finished,
        failure = dismissed(&channel) => Err(failure),
    }
}

/// Returns when the server no longer wants the job.
async fn dismissed(channel: &Channel) -> Failure {
    match channel.ended().await {
        Ending::Dismissed(failure) => failure,
        Ending::Failed(_) => std::future::pending().await,
    }
}

async fn work(channel: &Channel, events: &Events, release: Option<Release>) -> Result<(), Failure> {
    let job = channel.job().await?;
    events.allow(job.log_bytes);
    let steps = Steps {
        job: &job,
        channel,
        events,
        releases: Releases::new(release, job.arch),
        failed_scripts: FailedScripts::default(),
    };
    steps.run().await
}

/// Results of the first step for later ones.
struct Prepared {
    http: reqwest::Client,
    /// For what the recipe names.
    web: reqwest::Client,
    /// The emulator for the image's programs, unless the machine runs them itself.
    emulator: Option<Emulator>,
}

struct Steps<'a> {
    job: &'a JobDescription,
    channel: &'a Channel,
    events: &'a Events,
    releases: Releases,
    failed_scripts: FailedScripts,
}

impl Steps<'_> {
    async fn run(&self) -> Result<(), Failure> {
        let scratch = Path::new(SCRATCH);
        let prepared = self.step(Step::Prepare, self.prepare(scratch)).await?;
        let http = &prepared.http;
        if self.job.purpose == Purpose::Reading {
            let reader = Reader {
                job: self.job,
                http,
                web: &prepared.web,
                outputs: &Outputs::none(scratch, self.job.steps()),
                channel: self.channel,
                events: self.events,
            };
            return reader.read().await;
        }
        let mut outputs = match self.job.from {
            Some(from) => Outputs::of_another_attempt(scratch, self.job.steps(), from)?,
            None => Outputs::none(scratch, self.job.steps()),
        };
        if self.job.verify_twins && self.job.work.job_type() == JobType::Customize {
            let text = "the twins are not verified: that is for images that are made from a recipe";
            self.events.say(text).await;
        }
        if self.job.epoch.is_some() && self.job.work.job_type() == JobType::Customize {
            let text = "the image is not made reproducibly: that is for images that are made from a recipe";
            self.events.say(text).await;
        }
        if self.job.locked && self.job.work.job_type() == JobType::Customize {
            let text = "the packages are not compared with a lock: that is for images that are made from a recipe";
            self.events.say(text).await;
        }
        if self.job.from.is_some_and(|from| from > Step::Build) {
            pauses::tell_again(&outputs, self.channel).await?;
        }
        if self.job.from.is_some_and(|from| from > Step::Customize) {
            customize::recover(self.job, &outputs, self.events).await?;
        }
        for step in outputs.steps() {
            self.conceal(step, &outputs);
            outputs = blocking(move || outputs.begin(step).map(|()| outputs)).await?;
            let facts = &outputs.facts;
            match (step, &self.job.work) {
                (Step::Fetch, Work::Create(work)) => {
                    outputs.facts.begun = Timestamp::now().as_second();
                    let fetched = create::fetch(work, self.job, http, &outputs, self.events);
                    (outputs.facts.recipe, outputs.facts.newest) = self.step(step, fetched).await?;
                }
                // buildah waits for registries itself, and takes values as arguments.
                (Step::Template | Step::Repos, Work::Create(work)) if work.recipe_type == RecipeType::Containerfile => {
                    self.step(step, async { Ok(()) }).await?;
                }
                (Step::Template, Work::Create(work)) => {
                    let rendered = create::template(work, self.job, &facts.recipe, self.events);
                    self.step(step, rendered).await.map(drop)?;
                }
                (Step::Repos, Work::Create(work)) => {
                    let waited = create::repos(work, self.job, &prepared.web, &facts.recipe, self.events);
                    outputs.facts.has_tbz = self.step(step, waited).await?;
                }
                (Step::Build, Work::Create(work)) => {
                    outputs.facts.twins = self.step(step, self.build(work, &outputs, &prepared)).await?;
                }
                (Step::Verify, Work::Create(_)) => {
                    let verified = verify::verify(self.building(&outputs, &prepared));
                    self.step(step, verified).await?;
                }
                (Step::Fetch, Work::Customize(work)) => {
                    let fetched = customize::rootfs::fetch(&work.rootfs, http, &outputs, self.events);
                    outputs.facts.devices = self.step(step, fetched).await?;
                }
                (Step::Customize, Work::Customize(work)) => {
                    let customized = async {
                        match self.customize(work, &outputs, &prepared).await {
                            Err(verdict) if is_verdict(&verdict) => Ok(Some(verdict)),
                            customized => customized.map(|()| None),
                        }
                    };
                    if let Some(verdict) = self.step(step, customized).await? {
                        // Another job may still package the root.
                        outputs.finished(step)?;
                        return Err(verdict.at(step));
                    }
                }
                (Step::Package, _) => {
                    let packaged = package::package(self.job, &outputs, self.events);
                    outputs.facts.artifacts = self.step(step, packaged).await?;
                }
                (Step::Upload, _) => {
                    let uploaded = package::upload(self.job, http, self.channel, &facts.artifacts, self.events);
                    self.step(step, uploaded).await?;
                }
                // Steps of the other type of job.
                _ => {}
            }
            outputs.finished(step)?;
        }
        Ok(())
    }

    /// Learns what must not be said, before the first step in which a tool may say it. Another attempt may have done the
    /// steps before.
    fn conceal(&self, step: Step, outputs: &Outputs) {
        match step {
            Step::Repos | Step::Build | Step::Verify => {
                let values = match &self.job.work {
                    Work::Create(work) => Some(work.values.values()),
                    Work::Customize(_) => None,
                };
                let secrets = kiwi_config::secrets(&outputs.facts.recipe, values.into_iter().flatten());
                self.events.conceal(secrets);
            }
            Step::Customize => self.events.conceal(mask::of_apt(&outputs.root())),
            _ => {}
        }
    }

    /// Runs one step and logs its duration.
    async fn step<T>(&self, step: Step, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        self.events.send(What::StepStarted(step)).await;
        let (begun, cpu_before) = (Instant::now(), cpu_time());
        let done = work
            .await
            .map_err(|failure| ids::explained(better_cause(failure)).at(step))?;
        let wall_ms = millis(begun.elapsed());
        let cpu_ms = millis(cpu_time().saturating_sub(cpu_before));
        self.events.send(What::StepFinished { step, wall_ms, cpu_ms }).await;
        Ok(done)
    }

    async fn prepare(&self, scratch: &Path) -> Result<Prepared, Failure> {
        self.trust()
            .map_err(|error| Failure::io("cannot trust what the site trusts", &error))?;
        kiwi::prepare_package_managers(self.job.arch)?;
        let emulator = if let Some(emulator) = &self.job.emulator {
            Some(self.register(emulator, scratch).await?)
        } else if self.job.purpose == Purpose::Reading {
            // No program of the image will run.
            None
        } else {
            self.events
                .say(format!("{} is this machine's own architecture", self.job.arch))
                .await;
            None
        };
        let found = evidence::gather(self.job.emulator.as_ref());
        self.events.send(What::Sandbox(found)).await;
        let http = fetch::http_client(self.job.ca_bundle.as_deref())?;
        let web = fetch::web_client(self.job.ca_bundle.as_deref())?;
        Ok(Prepared { http, web, emulator })
    }

    /// Puts the site's authorities and keys where programs of the toolbox, and what runs kiwi, look for them.
    fn trust(&self) -> io::Result<()> {
        if let Some(bundle) = &self.job.ca_bundle {
            fs_err::write(CA_BUNDLE, bundle)?;
            fs_err::write(SITE_AUTHORITIES, bundle)?;
        }
        if let Some(kept) = &self.job.kept_authorities {
            fs_err::write(KEPT_AUTHORITIES, kept)?;
        }
        fs_err::create_dir_all(SITE_KEYS)?;
        for (number, key) in self.job.signing_keys.iter().enumerate() {
            fs_err::write(Path::new(SITE_KEYS).join(format!("{number:03}.asc")), &key.text)?;
        }
        Ok(())
    }

    /// Registers an emulator for the image's architecture. Returns it.
    async fn register(&self, plain: &Emulator, scratch: &Path) -> Result<Emulator, Failure> {
        let mut emulator = plain.clone();
        let (target, host) = (self.job.arch, Arch::host());
        if let Some(why) = no_twins_between(target, host) {
            self.events.say(format!("no native twins: {why}")).await;
        } else if self.job.twins != TwinLevel::Off {
            match join::join_in_sandbox(&plain.binfmt.interpreter) {
                Ok(joined) => emulator.binfmt.interpreter = joined,
                // Twins only speed up a build; its result is the same without them.
                Err(failure) => {
                    let text = format!("everything is emulated, there are no native twins: {}", failure.detail);
                    self.events.warn(Warning::of(&failure, text)).await;
                }
            }
        }
        binfmt::register(&emulator.binfmt)?;
        probe::probe(self.job.arch, scratch)?;
        self.events
            .say(format!(
                "{} programs run under {}",
                self.job.arch, emulator.binfmt.interpreter
            ))
            .await;
        Ok(emulator)
    }

    fn building<'a>(&'a self, outputs: &'a Outputs, prepared: &'a Prepared) -> Building<'a> {
        Building {
            job: self.job,
            http: &prepared.http,
            web: &prepared.web,
            channel: self.channel,
            outputs,
            emulator: prepared.emulator.as_ref(),
            releases: &self.releases,
            failed_scripts: &self.failed_scripts,
            events: self.events,
        }
    }

    /// Makes the root. Returns how often a program ran as a native twin.
    async fn build(&self, work: &RecipeWork, outputs: &Outputs, prepared: &Prepared) -> Result<u64, Failure> {
        let building = self.building(outputs, prepared);
        let (execs, built) = match work.recipe_type {
            RecipeType::KiwiNg => building.with_twins(None).await,
            RecipeType::Containerfile => Box::pin(containerfile::build(building, work)).await,
        };
        let twins = execs.as_ref().map_or(0, |execs| execs.twins);
        self.tell_execs(execs).await;
        let Some(debug) = self.shell_at(ShellTime::Debug) else {
            return built.map(|()| twins);
        };
        let at = debug::Shown {
            job: self.job,
            root: &outputs.root(),
            channel: self.channel,
            events: self.events,
        };
        debug::show(at, debug, built).await.map(|()| twins)
    }

    /// The shell that the job opens at this time, if any.
    fn shell_at(&self, when: ShellTime) -> Option<&ShellPlan> {
        self.job.shell.as_ref().filter(|shell| shell.wish.when == when)
    }

    async fn customize(&self, work: &ImageWork, outputs: &Outputs, prepared: &Prepared) -> Result<(), Failure> {
        let by_hand = work
            .changes
            .is_empty()
            .then(|| self.shell_at(ShellTime::Customize))
            .flatten();
        let customizing = customize::Customizing {
            job: self.job,
            outputs,
            emulator: prepared.emulator.as_ref(),
            http: &prepared.http,
            web: &prepared.web,
            channel: self.channel,
            releases: &self.releases,
            events: self.events,
        };
        let (execs, changed) = customizing.change(&work.changes, by_hand).await;
        self.tell_execs(execs).await;
        changed
    }

    /// Reports how often programs ran as twins or emulated, in the log and for the job's record.
    async fn tell_execs(&self, execs: Option<Execs>) {
        let Some(execs) = execs else { return };
        self.events.say(format!("programs of the image: {execs}")).await;
        for EmulatedProgram { program, runs, cpu_ms } in &execs.most_expensive {
            let text = format!("emulated: {program}, {runs} times, {cpu_ms} ms of CPU");
            self.events.say(text).await;
        }
        self.events.send(What::Execs(execs)).await;
    }
}

/// Tools fail in many ways when the disk is full; the disk's own state is the better cause.
fn better_cause(failure: Failure) -> Failure {
    /// With less than this, no step can work: bytes, and inodes.
    const FLOOR: (u64, u64) = (4 << 20, 16);
    let Ok(disk) = nix::sys::statvfs::statvfs(SCRATCH) else {
        return failure;
    };
    let free = disk.blocks_available().saturating_mul(disk.fragment_size());
    let inodes = disk.files_available();
    let full = free < FLOOR.0 || (disk.files() > 0 && inodes < FLOOR.1);
    if !full || failure.code == Code::DiskFull {
        return failure;
    }
    Failure::disk_full(format!(
        "the disk is full ({free} bytes and {inodes} inodes left): {}",
        failure.detail
    ))
}

/// CPU time of all tools that have ended so far.
fn cpu_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else {
        return Duration::ZERO;
    };
    let total = usage.user_time() + usage.system_time();
    Duration::new(u64::try_from(total.tv_sec()).unwrap_or(0), 0)
        + Duration::from_micros(u64::try_from(total.tv_usec()).unwrap_or(0))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
