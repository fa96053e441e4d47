//! One create job, step by step.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::sys::resource::{UsageWho, getrusage};
use tokio::process::Command;

use super::{
    boot_files,
    build::kiwi,
    cause,
    channel::{Channel, Ending},
    doors,
    events::Events,
    evidence, fetch, kiwi_config,
    outputs::{Artifacts, Outputs},
    process,
    programs::Programs,
    repos, squashfs, stop, template,
    twins::Twins,
    unpack, upload,
};
use crate::{
    emulation::{binfmt, probe, twins::join},
    records::{
        ArtifactKind, EmulatedProgram, Execs, Failure, Step, TwinLevel,
        protocol::{AgentFacts, Emulator, JobDescription, Outcome, What},
    },
};

/// The job's disk space. The driver puts it here.
const SCRATCH: &str = "/scratch";

/// Where the toolbox's programs look for certificate authorities.
const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Memory that mksquashfs may use for its queues, in MiB.
const SQUASHFS_MEMORY_MIB: u64 = 512;

/// Asks for the job, does it, and finishes it.
///
/// # Errors
///
/// Why the agent ends without the server knowing how the job went.
pub async fn run(facts: &AgentFacts) -> Result<(), Failure> {
    doors::open(&facts.doors, facts.gateway).await?;
    let channel = Channel::new(facts)?;
    let events = Events::new(channel.clone());
    let outcome = tokio::select! {
        outcome = work(&channel, &events) => outcome,
        // Dropping the work kills the tool that it runs; the rest of the sandbox goes with the agent.
        ending = channel.ended() => match ending {
            Ending::Failed(failure) => Err(failure),
            Ending::Dismissed(failure) => return Err(failure),
        },
        failure = stop::asked() => Err(failure),
    };
    // The server must hold the last line before it hears that the job is over.
    let finish = async {
        events.flush().await;
        let failure = outcome.err();
        channel.finish(&Outcome { failure }).await
    };
    tokio::select! {
        finished = finish => finished,
        failure = dismissed(&channel) => Err(failure),
    }
}

/// Returns when nobody wants to hear of the job any more.
async fn dismissed(channel: &Channel) -> Failure {
    match channel.ended().await {
        Ending::Dismissed(failure) => failure,
        Ending::Failed(_) => std::future::pending().await,
    }
}

async fn work(channel: &Channel, events: &Events) -> Result<(), Failure> {
    let job = channel.job().await?;
    let steps = Steps {
        job: &job,
        channel,
        events,
    };
    steps.run().await
}

/// What later steps need of the first.
struct Prepared {
    http: reqwest::Client,
    /// What runs the image's programs, when the machine itself does not.
    emulator: Option<Emulator>,
}

struct Steps<'a> {
    job: &'a JobDescription,
    channel: &'a Channel,
    events: &'a Events,
}

impl Steps<'_> {
    async fn run(&self) -> Result<(), Failure> {
        let scratch = Path::new(SCRATCH);
        let Prepared { http, emulator } = self.step(Step::Prepare, self.prepare(scratch)).await?;
        let mut outputs = match self.job.from {
            Some(from) => Outputs::of_another_attempt(scratch, from)?,
            None => Outputs::none(scratch),
        };
        for step in outputs.steps() {
            outputs = blocking(move || outputs.begin(step).map(|()| outputs)).await?;
            let facts = &outputs.facts;
            match step {
                Step::Prepare => {}
                Step::Fetch => outputs.facts.recipe = self.step(step, self.fetch(&http, &outputs)).await?,
                Step::Template => self.step(step, self.template(&facts.recipe)).await?,
                Step::Repos => outputs.facts.has_tbz = self.step(step, self.repos(&http, &facts.recipe)).await?,
                Step::Build => self.step(step, self.build(&http, &outputs, emulator.as_ref())).await?,
                Step::Package => outputs.facts.artifacts = self.step(step, self.package(&outputs)).await?,
                Step::Upload => self.step(step, self.upload(&http, &facts.artifacts)).await?,
            }
            outputs.finished(step)?;
        }
        Ok(())
    }

    /// Does one step and tells how long it took.
    async fn step<T>(&self, step: Step, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        self.events.send(What::StepStarted(step)).await;
        let (begun, cpu_before) = (Instant::now(), cpu_time());
        let done = work.await.map_err(|failure| better_cause(failure).at(step))?;
        let wall_ms = millis(begun.elapsed());
        let cpu_ms = millis(cpu_time().saturating_sub(cpu_before));
        self.events.send(What::StepFinished { step, wall_ms, cpu_ms }).await;
        Ok(done)
    }

    async fn prepare(&self, scratch: &Path) -> Result<Prepared, Failure> {
        if let Some(bundle) = &self.job.ca_bundle {
            fs_err::write(CA_BUNDLE, bundle)
                .map_err(|error| Failure::io("cannot trust the site's authorities", &error))?;
        }
        kiwi::prepare_package_managers(self.job.arch)?;
        let emulator = if let Some(emulator) = &self.job.emulator {
            Some(self.register(emulator, scratch).await?)
        } else {
            self.events
                .say(format!("{} is this machine's own architecture", self.job.arch))
                .await;
            None
        };
        let found = evidence::gather(self.job.emulator.as_ref());
        self.events.send(What::Sandbox(found)).await;
        let http = fetch::http_client(self.job.ca_bundle.as_deref())?;
        Ok(Prepared { http, emulator })
    }

    /// Has the kernel run programs of the image's architecture. Returns what runs them.
    async fn register(&self, plain: &Emulator, scratch: &Path) -> Result<Emulator, Failure> {
        let mut emulator = plain.clone();
        if self.job.twins != TwinLevel::Off {
            match join::join_in_sandbox(&plain.binfmt.interpreter) {
                Ok(joined) => emulator.binfmt.interpreter = joined,
                // Twins make a build quicker; it is the same build without them.
                Err(failure) => {
                    let text = format!("warning: everything is emulated, there are no native twins: {failure}");
                    self.events.say(text).await;
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

    /// Returns where the recipe is.
    async fn fetch(&self, http: &reqwest::Client, outputs: &Outputs) -> Result<PathBuf, Failure> {
        let (archive, into) = outputs.recipe();
        fetch::fetch(http, &self.job.recipe, &archive).await?;
        let source = self.job.recipe.clone();
        let unpacked = blocking(move || {
            unpack::check_fetched(&archive, &source)?;
            unpack::unpack(&archive, &into, &unpack::Limits::default())
        })
        .await?;
        self.events
            .say(format!(
                "{} entries, {} bytes unpacked",
                unpacked.entries, unpacked.bytes
            ))
            .await;
        Ok(unpacked.root)
    }

    async fn template(&self, recipe: &Path) -> Result<(), Failure> {
        let mut values = self.job.values.clone();
        // A recipe without templates needs no values, and the user gave none.
        if !values.is_empty() || recipe.join(template::LIST_FILE).exists() {
            for (name, value) in &self.job.default_values {
                values.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        let (recipe, mode, events) = (recipe.to_owned(), self.job.template_mode, self.events.clone());
        blocking(move || template::render(&recipe, &values, mode, &|line| events.say_blocking(line))).await
    }

    /// Returns whether the recipe has a type `tbz`, which IMS recipes are written for.
    async fn repos(&self, http: &reqwest::Client, recipe: &Path) -> Result<bool, Failure> {
        let facts = kiwi_config::read(recipe, self.job.arch)?;
        let timeout = Duration::from_secs(self.job.repos_timeout_s);
        repos::wait(&facts, http, timeout, &|line| self.events.say_soon(line)).await?;
        Ok(facts.has_tbz)
    }

    async fn build(
        &self,
        http: &reqwest::Client,
        outputs: &Outputs,
        emulator: Option<&Emulator>,
    ) -> Result<(), Failure> {
        let request = kiwi::PrepareRoot {
            recipe: &outputs.facts.recipe,
            root: &outputs.root(),
            arch: self.job.arch,
            emulator,
            has_tbz: outputs.facts.has_tbz,
        };
        let twins = Twins::of_job(self.job, outputs, self.events, self.channel, http);
        let mut programs = Programs::default();
        let built = kiwi::prepare_root(request, &mut programs, self.events).await;
        let counted = match twins {
            Some(twins) => blocking(move || twins.finish()).await,
            None => Ok(None),
        };
        if emulator.is_some() {
            let counted = counted.as_ref().ok().copied().flatten();
            self.tell_execs(programs.execs(counted)).await;
        }
        built.and(counted.map(drop))
    }

    /// Tells what ran how, in the log and for the job's record.
    async fn tell_execs(&self, execs: Execs) {
        self.events.say(format!("programs of the image: {execs}")).await;
        for EmulatedProgram { program, runs, cpu_ms } in &execs.most_expensive {
            let text = format!("emulated: {program}, {runs} times, {cpu_ms} ms of CPU");
            self.events.say(text).await;
        }
        self.events.send(What::Execs(execs)).await;
    }

    async fn package(&self, outputs: &Outputs) -> Result<Artifacts, Failure> {
        let (rootfs, kernel) = outputs.packages();
        let (arch, names) = (self.job.arch, self.job.boot.clone());
        let (root_of_search, kernel_file) = (outputs.root(), kernel.clone());
        let boot = blocking(move || {
            squashfs::restrict_image_dir(&root_of_search)?;
            let boot = boot_files::find_boot_files(&root_of_search, arch, &names)?;
            if let Some(set) = &boot {
                boot_files::write_kernel(set, &kernel_file)?;
            }
            Ok(boot)
        })
        .await?;

        let mut command = Command::new("mksquashfs");
        command.args(squashfs::mksquashfs_args(
            &outputs.root(),
            &rootfs,
            &self.job.squashfs,
            self.job.cpus,
            SQUASHFS_MEMORY_MIB,
        ));
        let mut progress = None;
        let finished = process::run(command, None, self.events, |line| {
            let seen = squashfs::parse_progress(line);
            progress = seen.or(progress);
            seen.is_some()
        })
        .await?;
        finished.check(|tool| {
            cause::known_cause(&tool.tail).unwrap_or_else(|| {
                let last = cause::last_words(&tool.tail).unwrap_or("it said nothing");
                Failure::new("squashfs_failed", format!("mksquashfs failed: {last}"))
            })
        })?;
        let mut artifacts = vec![(ArtifactKind::Rootfs, rootfs)];
        match boot {
            Some(set) => {
                artifacts.push((ArtifactKind::Kernel, kernel));
                artifacts.push((ArtifactKind::Initrd, set.initrd));
                artifacts.extend(set.parameters.map(|path| (ArtifactKind::BootParameters, path)));
            }
            None => {
                self.events
                    .say("the root has no kernel: the image is a root file system only")
                    .await;
            }
        }
        Ok(artifacts)
    }

    async fn upload(&self, http: &reqwest::Client, artifacts: &Artifacts) -> Result<(), Failure> {
        let uploader = upload::Uploader {
            http: http.clone(),
            channel: self.channel.clone(),
            events: self.events.clone(),
            patience: Duration::from_secs(self.job.patience_s),
        };
        for (kind, path) in artifacts {
            let digests = uploader.upload(*kind, path).await?;
            self.events
                .say(format!(
                    "{}: {} bytes, sha256 {}",
                    kind.key_name(),
                    digests.size,
                    digests.sha256
                ))
                .await;
        }
        Ok(())
    }
}

/// Runs code that blocks where it may.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure::new("agent_panic", error))?
}

/// Tools say many things when the disk is full; the disk itself says it best.
fn better_cause(failure: Failure) -> Failure {
    /// Less than this is no space for any step: bytes, and inodes.
    const FLOOR: (u64, u64) = (4 << 20, 16);
    let Ok(disk) = nix::sys::statvfs::statvfs(SCRATCH) else {
        return failure;
    };
    let free = disk.blocks_available().saturating_mul(disk.fragment_size());
    let inodes = disk.files_available();
    let full = free < FLOOR.0 || (disk.files() > 0 && inodes < FLOOR.1);
    if !full || failure.code == "disk_full" {
        return failure;
    }
    Failure::disk_full(format!(
        "the disk is full ({free} bytes and {inodes} inodes left): {}",
        failure.detail
    ))
}

/// CPU time of every tool that ran and ended so far.
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
