//! Finds out by trial what an engine offers: a tiny container reports its kernel and whether a sandbox can be made
//! there. Talks to the engine only.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::Path,
    sync::{MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bollard::{Docker, models::SystemInfo, query_parameters::TagImageOptionsBuilder};
use bytes::Bytes;
use futures::stream;
use kiln_inside::room::order::{PROBE, Probe};
use kiln_records::{Code, Failure, JobId, arch::Arch};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::{
    DockerDriver, INSTALLATION, Wanted,
    connect::{PROBING, within},
    dialect::{self, arch_of},
    fault::{failure, is_missing},
    no_vm_runtime, programs, said,
};
use crate::sandbox::{Kernel, Limits, Machine};

/// How long a positive result is valid.
const GOOD_FOR: Duration = Duration::from_mins(5);

/// How long a negative result is valid: the missing part may just have been installed.
const BAD_FOR: Duration = Duration::from_secs(30);

/// How long a disk measurement is valid.
const DISK_FOR: Duration = Duration::from_secs(20);

/// The memory of a trial on the engine's own kernel, in bytes.
const TRIAL_MEMORY: u64 = 128 << 20;

/// The label of a trial's container.
pub(super) const TRIAL: &str = "kiln.trial";

/// A trial's container that is this old was left by a process that was interrupted, in whatever installation: no trial
/// lasts that long.
const LEFT: Duration = Duration::from_mins(10);

/// The image's repository; its tag is the digest of the program in it.
const REPOSITORY: &str = "kiln-probe";

/// The latest results, with their times.
#[derive(Debug, Default)]
pub(super) struct Probes {
    offers: Mutex<Option<(Instant, Offers)>>,
    disk: Mutex<Option<(Instant, Probe)>>,
    /// The containers of trials that this process has not removed yet.
    open: std::sync::Mutex<BTreeSet<String>>,
}

impl Probes {
    fn open(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Each change is one call.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The abilities of an engine.
#[derive(Debug, Clone)]
pub(super) struct Offers {
    pub(super) arch: Result<Arch, Failure>,
    pub(super) shared_kernel: Result<(), Failure>,
    pub(super) own_kernel: Result<Machine, Failure>,
    /// The name servers of the engine's host.
    pub(super) resolvers: Vec<IpAddr>,
}

impl Offers {
    /// Nothing, for this reason.
    fn nothing(arch: Result<Arch, Failure>, why: &Failure) -> Self {
        Self {
            arch,
            shared_kernel: Err(why.clone()),
            own_kernel: Err(why.clone()),
            resolvers: Vec::new(),
        }
    }
}

impl DockerDriver {
    /// The abilities of the engine, at most a few minutes old.
    pub(super) async fn offers(&self) -> Offers {
        let mut known = self.probes.offers.lock().await;
        if let Some((when, offers)) = known.as_ref() {
            let has_all =
                offers.shared_kernel.is_ok() && (offers.own_kernel.is_ok() || self.settings.vm_runtime.is_none());
            if when.elapsed() < if has_all { GOOD_FOR } else { BAD_FOR } {
                return offers.clone();
            }
        }
        let tried = within(PROBING, "run a trial container", self.try_out()).await;
        let offers = tried.unwrap_or_else(|failure| Offers::nothing(Err(failure.clone()), &failure));
        *known = Some((Instant::now(), offers.clone()));
        offers
    }

    /// A sandbox could not be started: the next look tries again.
    pub(super) async fn forget_offers(&self) {
        *self.probes.offers.lock().await = None;
    }

    async fn try_out(&self) -> Result<Offers, Failure> {
        let engine = self.client().await?;
        let info = dialect::info(&engine).await?;
        let arch = arch_of(&info)?;
        let entrance = match self.settings.agents.of(arch) {
            Ok(entrance) => entrance,
            // The CPU is known all the same.
            Err(failure) => return Ok(Offers::nothing(Ok(arch), &failure)),
        };
        self.sweep_trials(LEFT).await?;
        let shared = self.probe(&engine, &info, &entrance, Kernel::Shared, None).await;
        let own_kernel = match self.settings.vm_runtime.as_deref() {
            None => Err(no_vm_runtime()),
            Some(runtime) => {
                let found = self.probe(&engine, &info, &entrance, Kernel::Own, Some(runtime)).await;
                found.and_then(|found| own_kernel(runtime, &found, info.kernel_version.as_deref()))
            }
        };
        Ok(Offers {
            arch: Ok(arch),
            resolvers: shared
                .as_ref()
                .map_or_else(|_| Vec::new(), |found| found.resolvers.clone()),
            shared_kernel: shared.and_then(|found| found.refused.map_or(Ok(()), Err)),
            own_kernel,
        })
    }

    /// The usage of the disk that holds containers.
    pub(super) async fn probe_disk(&self, engine: &Docker) -> Result<Probe, Failure> {
        let mut known = self.probes.disk.lock().await;
        if let Some((when, probe)) = known.as_ref()
            && when.elapsed() < DISK_FOR
        {
            return Ok(probe.clone());
        }
        let info = dialect::info(engine).await?;
        let entrance = self.settings.agents.of(arch_of(&info)?)?;
        let probe = self.probe(engine, &info, &entrance, Kernel::Shared, None).await?;
        *known = Some((Instant::now(), probe.clone()));
        Ok(probe)
    }

    /// Removes the containers of trials that are older than this on the engine's clock.
    ///
    /// # Errors
    ///
    /// `engine_gone`, or another error of the engine.
    pub async fn sweep_trials(&self, oldest: Duration) -> Result<(), Failure> {
        let engine = self.client().await?;
        let failed = |error| failure("cannot list trial containers", &error);
        let info = engine.info().await.map_err(failed)?;
        let now = info.system_time.and_then(|time| time.parse::<jiff::Timestamp>().ok());
        for trial in self.labelled(vec![TRIAL.to_owned()]).await? {
            let age = now.zip(trial.created).map(|(now, made)| now.as_second() - made);
            if age.is_some_and(|age| age > oldest.as_secs().cast_signed()) {
                // One that cannot be removed does not keep jobs from the engine.
                let id = trial.id.as_deref().unwrap_or_default();
                if let Err(failure) = self.remove_container(&engine, id).await {
                    tracing::warn!(
                        container = id,
                        "a trial container that was left cannot be removed: {failure}"
                    );
                }
            }
        }
        Ok(())
    }

    /// Removes the containers of trials that this process has begun and not ended.
    pub(super) async fn close_trials(&self) -> Result<(), Failure> {
        let open = std::mem::take(&mut *self.probes.open());
        for name in open {
            self.remove_container(&self.client().await?, &name).await?;
        }
        Ok(())
    }

    /// Runs the tiny container.
    async fn probe(
        &self,
        engine: &Docker,
        info: &SystemInfo,
        entrance: &Path,
        kernel: Kernel,
        runtime: Option<&str>,
    ) -> Result<Probe, Failure> {
        let image = self.probe_image(engine, entrance).await?;
        let ids = serde_json::to_string(&self.engine.open().await?.dialect.ids(info))
            .map_err(|error| Failure::new(Code::SandboxStart, error))?;
        let mut arguments = vec![PROBE.to_owned()];
        if kernel == Kernel::Shared {
            arguments.push(ids);
        }
        let job = JobId::new();
        let name = format!("kiln-{}-probe-{}", self.settings.installation, Uuid::new_v4());
        let wanted = Wanted {
            job,
            // Without a job label: lists of sandboxes leave it out.
            labels: [INSTALLATION, TRIAL]
                .map(|label| (label.to_owned(), self.settings.installation.clone()))
                .into(),
            image: &image,
            kernel,
            runtime,
            // As a job has them: an engine of a user may not be allowed to set all. A machine has its runtime's own size.
            limits: Limits {
                memory: (kernel == Kernel::Shared).then_some(TRIAL_MEMORY),
                cpus: (kernel == Kernel::Shared).then_some(1),
                pids: 50,
                disk: None,
            },
            volume: None,
            doors: None,
            network: "none",
            sets_routes: false,
            options: self.options(engine, info).await?,
            arguments,
        };
        self.probes.open().insert(name.clone());
        let ran = self.run_to_the_end(engine, &name, &wanted).await;
        let found = match &ran {
            Ok(_) => said::last_line(engine, &name).await,
            Err(failure) => Err(failure.clone()),
        };
        let line = match (found, self.remove_container(engine, &name).await) {
            (Err(failure), Err(left)) => {
                let detail = format!("{}; its container {name} is left: {left}", failure.detail);
                return Err(Failure { detail, ..failure });
            }
            (found, removed) => {
                if removed.is_ok() {
                    self.probes.open().remove(&name);
                }
                let line = found?;
                removed?;
                line
            }
        };
        serde_json::from_str(&line.unwrap_or_default()).map_err(|_| {
            let code = ran.unwrap_or_default();
            Failure::new(
                Code::SandboxStart,
                format!("a container cannot run the agent here: it ended with code {code}"),
            )
        })
    }

    pub(super) async fn probe_image(&self, engine: &Docker, entrance: &Path) -> Result<String, Failure> {
        let archive = programs::probe_image(entrance)?;
        let digest = hex::encode(Sha256::digest(&archive));
        let name = format!("{REPOSITORY}:{digest}");
        match engine.inspect_image(&name).await {
            Ok(_) => return Ok(name),
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(failure("cannot look for an image", &error)),
        }
        let failed = |error| failure("cannot make an image", &error);
        let dialect = self.engine.open().await?.dialect;
        let archive = stream::iter([Ok(Bytes::from(archive))]);
        let id = dialect.import(engine, archive).await.map_err(failed)?;
        let tag = TagImageOptionsBuilder::default().repo(REPOSITORY).tag(&digest).build();
        engine.tag_image(&id, Some(tag)).await.map_err(failed)?;
        Ok(name)
    }
}

/// Checks that a runtime really provides another kernel than the host's: a name in the engine's configuration proves
/// nothing.
fn own_kernel(runtime: &str, found: &Probe, of_host: Option<&str>) -> Result<Machine, Failure> {
    if Some(found.kernel.as_str()) == of_host {
        let detail = format!(
            "the runtime {runtime} runs containers on the host's own kernel, {}",
            found.kernel
        );
        return Err(Failure::new(Code::NoVm, detail).hint("name a runtime of Kata Containers"));
    }
    Ok(Machine {
        what: format!("{runtime} with Linux {}", found.kernel),
        accelerated: !found.cpu.contains("TCG"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_on_the_hosts_kernel_is_no_virtual_machine_whatever_its_name() {
        let found = |kernel: &str, cpu: &str| Probe {
            kernel: kernel.to_owned(),
            cpu: cpu.to_owned(),
            refused: None,
            resolvers: Vec::new(),
            disk_free: 0,
            disk_total: 0,
            inodes_free: 0,
            inodes_total: 0,
        };
        let host = Some("6.1.0-host");
        assert_eq!(
            own_kernel("kata", &found("6.1.0-host", ""), host).unwrap_err().code,
            Code::NoVm
        );
        let slow = own_kernel("kata", &found("6.12.8", "QEMU TCG CPU version 2.5+"), host).unwrap();
        assert_eq!(
            (slow.what.as_str(), slow.accelerated),
            ("kata with Linux 6.12.8", false)
        );
        assert!(
            own_kernel("kata", &found("6.12.8", "AMD EPYC"), host)
                .unwrap()
                .accelerated
        );
    }
}
