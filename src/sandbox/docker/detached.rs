//! Implements [`Driver`] with containers: sandboxes are found again by name and label, and removed without a trace.
//! Talks to the engine only.

use std::collections::{BTreeMap, HashMap, HashSet};

use async_trait::async_trait;
use bollard::{
    Docker,
    errors::Error,
    models::{ContainerInspectResponse, ContainerState, ContainerStateStatusEnum, ContainerSummary},
    query_parameters::{
        CreateContainerOptionsBuilder, ListVolumesOptionsBuilder, RemoveContainerOptionsBuilder, RemoveVolumeOptions,
        RenameContainerOptionsBuilder, StartContainerOptions, StopContainerOptionsBuilder,
    },
};
use kiln_inside::room::order::{End, SYNC, Said};
use kiln_records::{Code, Failure, JobId, arch::Arch};
use tokio::time::{Duration, Instant, sleep};

use super::{
    DockerDriver, INSTALLATION, JOB, WARNING, Wanted, body,
    connect::{PROBING, within},
    dialect,
    fault::{failure, in_short, is_conflict, is_missing},
    said,
};
use crate::sandbox::{
    Capacity, Driver, DriverKind, Evidence, Kernel, Limits, Machine, SandboxSpec, SandboxState, Scratch, Usage,
};

/// The suffix of a container's name when only its disk space is kept.
pub(super) const KEPT: &str = "-kept";

/// The suffix of the container that syncs disk space before it is kept.
const SYNCING: &str = "-sync";

/// Seconds that a sandbox gets to end by itself.
const STOP_S: i32 = 10;

/// How long an engine may take to end a container for good.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most time of each kind of work. A start may load the toolbox, and boot a machine.
const ASKING: Duration = Duration::from_secs(30);
const STARTING: Duration = Duration::from_mins(15);
const ENDING: Duration = Duration::from_mins(3);
const CLOSING: Duration = Duration::from_secs(10);

/// The most memory of a virtual machine beside that of its job: of its kernel, QEMU and virtiofsd (kata/README.md).
const BESIDE_MACHINE: u64 = 1 << 30;

/// Pause between checks whether the container is gone.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[async_trait]
impl Driver for DockerDriver {
    async fn start(&self, sandbox: &SandboxSpec) -> Result<(), Failure> {
        let start = async { Box::pin(self.make(&self.client().await?, sandbox)).await };
        let started = within(STARTING, "start a sandbox", start).await;
        if started
            .as_ref()
            .is_err_and(|failure| failure.code != Code::SandboxExists)
        {
            self.forget_offers().await;
        }
        started
    }

    async fn look(&self, job: JobId) -> Result<SandboxState, Failure> {
        within(ASKING, "show a sandbox", self.state_of(job)).await
    }

    async fn last_words(&self, job: JobId) -> Result<Vec<String>, Failure> {
        let read = async { said::last_words(&self.client().await?, &self.name_of(job)).await };
        within(ASKING, "show the output of a sandbox", read).await
    }

    async fn usage(&self, job: JobId) -> Result<Usage, Failure> {
        within(ASKING, "show a sandbox", self.usage_of(job)).await
    }

    async fn destroy(&self, job: JobId, scratch: Scratch) -> Result<(), Failure> {
        within(ENDING, "remove a sandbox", self.remove(job, scratch)).await
    }

    async fn list(&self) -> Result<Vec<(JobId, bool)>, Failure> {
        within(ASKING, "list the sandboxes", self.all()).await
    }

    async fn capacity(&self) -> Result<Capacity, Failure> {
        within(PROBING, "show its capacity", self.measure()).await
    }

    fn is_shared(&self) -> bool {
        self.settings.engine.is_shared()
    }

    fn kind(&self, kernel: Kernel) -> DriverKind {
        match kernel {
            Kernel::Shared => DriverKind::Docker,
            Kernel::Own => DriverKind::Kata,
        }
    }

    fn is_meant_for(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Shared || self.settings.vm_runtime.is_some()
    }

    fn memory_beside(&self, kernel: Kernel) -> u64 {
        match kernel {
            Kernel::Shared => 0,
            Kernel::Own => BESIDE_MACHINE,
        }
    }

    async fn arch(&self) -> Result<Arch, Failure> {
        Box::pin(self.offers()).await.arch
    }

    async fn shared_kernel(&self) -> Result<(), Failure> {
        Box::pin(self.offers()).await.shared_kernel
    }

    async fn own_kernel(&self) -> Result<Machine, Failure> {
        Box::pin(self.offers()).await.own_kernel
    }

    async fn close(&self) -> Result<(), Failure> {
        within(CLOSING, "remove its trial containers", self.close_trials()).await
    }
}

impl DockerDriver {
    async fn state_of(&self, job: JobId) -> Result<SandboxState, Failure> {
        let engine = self.client().await?;
        let name = self.name_of(job);
        let Some(found) = self.inspect(&name).await? else {
            return Ok(SandboxState::Absent);
        };
        let state = found.state.clone().unwrap_or_default();
        if is_running(&state) {
            return Ok(SandboxState::Running);
        }
        let end = match said::last_said(&engine, &name).await? {
            Some(Said::End(end)) => Some(end),
            _ => None,
        };
        let last_words = said::last_words(&engine, &name).await?;
        Ok(SandboxState::Ended(evidence(&found, &state, end, last_words)))
    }

    async fn usage_of(&self, job: JobId) -> Result<Usage, Failure> {
        let engine = self.client().await?;
        let name = self.name_of(job);
        if self.inspect(&name).await?.is_none() {
            return Ok(Usage::default());
        }
        Ok(match said::last_said(&engine, &name).await? {
            Some(Said::Usage(usage) | Said::End(End { usage, .. })) => usage,
            None => Usage::default(),
        })
    }

    async fn remove(&self, job: JobId, scratch: Scratch) -> Result<(), Failure> {
        let engine = self.client().await?;
        if scratch == Scratch::Keep && self.keep(&engine, job).await? {
            return Ok(());
        }
        let containers = self.containers(Some(job)).await?;
        let mut volumes: Vec<String> = containers.iter().flat_map(volumes_of).collect();
        for container in &containers {
            self.remove_container(&engine, container.id.as_deref().unwrap_or_default())
                .await?;
            self.leave_doors(container).await?;
        }
        // An interrupted start may have left a volume without a container.
        volumes.extend(
            self.idle_volumes(&engine)
                .await?
                .into_iter()
                .filter(|(_, of)| *of == job)
                .map(|(name, _)| name),
        );
        for volume in volumes {
            match engine.remove_volume(&volume, None::<RemoveVolumeOptions>).await {
                Ok(()) => {}
                // Another job continues with it.
                Err(error) if is_missing(&error) || is_conflict(&error) => {}
                Err(error) => return Err(failure("cannot remove the sandbox's disk space", &error)),
            }
        }
        Ok(())
    }

    async fn all(&self) -> Result<Vec<(JobId, bool)>, Failure> {
        let engine = self.client().await?;
        let mut jobs = BTreeMap::new();
        for container in self.containers(None).await? {
            let label = container
                .labels
                .as_ref()
                .and_then(|labels| labels.get(JOB)?.parse::<JobId>().ok());
            let names = container.names.unwrap_or_default();
            if let Some(job) = label {
                let is_kept = names.iter().any(|name| name.ends_with(KEPT));
                let known = jobs.entry(job).or_insert(is_kept);
                *known &= is_kept;
            }
        }
        for (_, job) in self.idle_volumes(&engine).await? {
            jobs.entry(job).or_insert(false);
        }
        Ok(jobs.into_iter().collect())
    }

    async fn measure(&self) -> Result<Capacity, Failure> {
        let engine = self.client().await?;
        let info = dialect::info(&engine).await?;
        let disk = self.probe_disk(&engine).await?;
        let number = |number: Option<i64>, what: &str| {
            let number = number
                .and_then(|number| u64::try_from(number).ok())
                .filter(|number| *number > 0);
            number.ok_or_else(|| {
                Failure::new(
                    Code::EngineRefused,
                    format!("the container engine does not say how {what} its host has"),
                )
            })
        };
        Ok(Capacity {
            cpus: u32::try_from(number(info.ncpu, "many CPUs")?).unwrap_or(u32::MAX),
            memory: number(info.mem_total, "much memory")?,
            disk_free: disk.disk_free,
            disk_total: disk.disk_total,
            inodes_free: disk.inodes_free,
            inodes_total: disk.inodes_total,
        })
    }

    /// Kiln's containers, of one job or all.
    pub(super) async fn containers(&self, job: Option<JobId>) -> Result<Vec<ContainerSummary>, Failure> {
        let mut labels = vec![format!("{INSTALLATION}={}", self.settings.installation)];
        labels.extend(job.map(|job| format!("{JOB}={job}")));
        self.labelled(labels).await
    }

    /// Kiln's volumes without a container, and the jobs they were made for.
    async fn idle_volumes(&self, engine: &Docker) -> Result<Vec<(String, JobId)>, Failure> {
        let filters = HashMap::from([("label", vec![format!("{INSTALLATION}={}", self.settings.installation)])]);
        let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
        let found = engine.list_volumes(Some(options)).await;
        let found = found.map_err(|error| failure("cannot list the disk space of sandboxes", &error))?;
        let volumes = found.volumes.unwrap_or_default().into_iter();
        // Asked later, so that a container that was made meanwhile is among them. Engines have a filter for this, which Podman takes
        // for an alternative to the other one.
        let containers = self.containers(None).await?;
        let used: HashSet<String> = containers.iter().flat_map(volumes_of).collect();
        Ok(volumes
            .filter(|volume| !used.contains(&volume.name))
            .filter_map(|volume| Some((volume.name, volume.labels.get(JOB)?.parse().ok()?)))
            .collect())
    }

    /// Removes a container with everything that runs in it. Its volume stays.
    pub(super) async fn remove_container(&self, engine: &Docker, container: &str) -> Result<(), Failure> {
        let until = Instant::now() + PATIENCE;
        loop {
            let options = RemoveContainerOptionsBuilder::default().force(true).build();
            match engine.remove_container(container, Some(options)).await {
                Ok(()) => return Ok(()),
                Err(error) if is_missing(&error) => return Ok(()),
                // Another process is removing it too.
                Err(error) if is_conflict(&error) && Instant::now() < until => sleep(LOOK_EVERY).await,
                Err(error @ Error::DockerResponseServerError { .. }) => {
                    let detail = format!("the engine cannot remove the container of a sandbox: {error}");
                    return Err(Failure::new(Code::SandboxStuck, detail)
                        .hint("a process of it waits for the kernel, perhaps for a disk"));
                }
                Err(error) => return Err(failure("cannot remove the sandbox's container", &error)),
            }
        }
    }

    /// The volume with a sandbox's kept disk space.
    pub(super) async fn kept_volume(&self, from: JobId) -> Result<String, Failure> {
        let name = format!("{}{KEPT}", self.name_of(from));
        let kept = self.inspect(&name).await?;
        let mounts = kept.and_then(|kept| kept.mounts).unwrap_or_default();
        mounts
            .into_iter()
            .find_map(|mount| mount.name)
            .ok_or_else(|| Failure::new(Code::NoScratch, format!("the disk space of job {from} is gone")))
    }

    /// Ends a sandbox and keeps its container, which marks and holds the disk space. Returns whether it is kept.
    async fn keep(&self, engine: &Docker, job: JobId) -> Result<bool, Failure> {
        let name = self.name_of(job);
        let kept = format!("{name}{KEPT}");
        let Some(found) = self.inspect(&name).await? else {
            return Ok(self.inspect(&kept).await?.is_some());
        };
        let options = StopContainerOptionsBuilder::default().t(STOP_S).build();
        match engine.stop_container(&name, Some(options)).await {
            Err(error) if !is_missing(&error) => return Err(failure("cannot end the sandbox", &error)),
            _ => {}
        }
        if !self.sync(engine, job, &found).await? {
            return Ok(false);
        }
        // The container of an earlier attempt that this sandbox continued.
        self.remove_container(engine, &kept).await?;
        let options = RenameContainerOptionsBuilder::default().name(&kept).build();
        engine
            .rename_container(&name, options)
            .await
            .map_err(|error| failure("cannot keep the sandbox's disk space", &error))?;
        Ok(true)
    }

    /// Makes the disk space safe against a crash of the engine's host, since a sandbox does not sync its own writes.
    /// Returns whether that succeeded.
    async fn sync(&self, engine: &Docker, job: JobId, found: &ContainerInspectResponse) -> Result<bool, Failure> {
        let started = found.state.as_ref().and_then(|state| state.started_at.as_deref());
        let started = started.and_then(|text| text.parse::<jiff::Timestamp>().ok());
        let volume = found
            .mounts
            .as_ref()
            .and_then(|mounts| mounts.iter().find_map(|mount| mount.name.clone()));
        let (Some(started), Some(volume)) = (started, volume) else {
            return Ok(false);
        };
        let name = format!("{}{SYNCING}", self.name_of(job));
        self.remove_container(engine, &name).await?;
        let wanted = Wanted {
            job,
            labels: self.labels(job),
            image: found.image.as_deref().unwrap_or_default(),
            kernel: Kernel::Shared,
            runtime: None,
            limits: Limits {
                memory: None,
                cpus: None,
                pids: 10,
                disk: None,
            },
            volume: Some(&volume),
            doors: None,
            network: "none",
            sets_routes: false,
            options: self.options(engine, &dialect::info(engine).await?).await?,
            arguments: vec![SYNC.to_owned(), started.as_second().to_string()],
        };
        let done = self.run_to_the_end(engine, &name, &wanted).await;
        self.remove_container(engine, &name).await?;
        Ok(done? == 0)
    }

    /// Runs a container to its end. Returns its exit code.
    pub(super) async fn run_to_the_end(
        &self,
        engine: &Docker,
        name: &str,
        wanted: &Wanted<'_>,
    ) -> Result<i64, Failure> {
        let failed = |error| failure("cannot run a container", &error);
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        engine
            .create_container(Some(options), body(wanted))
            .await
            .map_err(failed)?;
        engine
            .start_container(name, None::<StartContainerOptions>)
            .await
            .map_err(failed)?;
        let until = Instant::now() + PATIENCE * 4;
        loop {
            let state = self
                .inspect(name)
                .await?
                .and_then(|found| found.state)
                .unwrap_or_default();
            if !is_running(&state) {
                return Ok(state.exit_code.unwrap_or(1));
            }
            if Instant::now() > until {
                return Err(Failure::new(Code::SandboxStart, "a trivial container does not end"));
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

fn is_running(state: &ContainerState) -> bool {
    use ContainerStateStatusEnum as Status;
    matches!(
        state.status,
        Some(Status::RUNNING | Status::PAUSED | Status::RESTARTING | Status::REMOVING)
    )
}

fn volumes_of(container: &ContainerSummary) -> Vec<String> {
    let mounts = container.mounts.iter().flatten();
    mounts.filter_map(|mount| mount.name.clone()).collect()
}

/// The evidence from a container that has ended. Without a final line the sandbox did not end by itself: its engine
/// stopped, it was killed, or it never started.
fn evidence(
    found: &ContainerInspectResponse,
    state: &ContainerState,
    end: Option<End>,
    last_words: Vec<String>,
) -> Evidence {
    let labels = found.config.as_ref().and_then(|config| config.labels.as_ref());
    let oom = u64::from(state.oom_killed == Some(true));
    let code = i32::try_from(state.exit_code.unwrap_or(1)).unwrap_or(1);
    let lost = || {
        let why = match state.error.as_deref() {
            Some(error) if !error.is_empty() => format!(": {}", in_short(error)),
            _ if state.status == Some(ContainerStateStatusEnum::CREATED) => ": it was never started".to_owned(),
            _ => format!(", with code {code}"),
        };
        Failure::new(
            Code::SandboxLost,
            format!("the sandbox's container ended without a report{why}"),
        )
        .hint("it was killed: the container engine was restarted, or its host ran out of memory")
    };
    Evidence {
        exit_code: end.as_ref().map_or(code, |end| end.exit_code),
        oom_kills: end.as_ref().map_or(oom, |end| end.usage.oom_kills),
        failure: match end {
            Some(end) => end.failure,
            // A first process that ran out of memory cannot have reported anything.
            None if oom > 0 => None,
            None => Some(lost()),
        },
        warning: labels.and_then(|labels| labels.get(WARNING).cloned()),
        last_words,
    }
}
