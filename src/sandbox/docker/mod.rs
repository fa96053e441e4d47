//! The docker driver: sandboxes in containers of an engine, on this host or another one. Talks to the engine; keeps
//! nothing on disk.
//!
//! ```text
//!  image kiln-toolbox:<digest>       the toolbox in /tree, loaded once
//!  container kiln-<us>-<job>         the agent as entrance (`agent::container`), which makes the sandbox inside
//!  volume kiln-<us>-<id>             the agent and the disk space; passed on to another container if that is kept
//!  container kiln-<us>-probe-<id>    a trial of the engine, for seconds; swept when it is older than any trial lasts
//!  network kiln                      a bridge on which sandboxes cannot reach each other
//! ```
//!
//! On the engine's own kernel a sandbox has no rights there: the container may only map ids, and the build runs in a
//! user namespace inside it. With a runtime that gives each container a virtual machine (Kata), it has all rights over
//! the machine. No state of a sandbox is kept here: everything is found again by its labels.

use std::{
    collections::HashMap,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use bollard::{
    Docker,
    models::{SystemInfo, VolumeCreateRequest},
    query_parameters::{
        AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, StartContainerOptions,
        UploadToContainerOptionsBuilder,
    },
};
use sha2::{Digest, Sha256};
use tokio::{io::AsyncWriteExt, sync::Mutex};
use uuid::Uuid;

pub use address::EngineAddress;
use connect::{Engine, Open};
use container::{DOORS_HERE, INSTALLATION, JOB, WARNING, Wanted, body};
use fault::{failure, is_conflict, runtime_unknown};
use kiln_inside::room::{
    Beyond, IdMap,
    order::{Order, VOLUME},
};
use kiln_records::{Code, Failure, JobId, protocol::AgentFacts};
use probe::Probes;

use super::{
    Kernel, Network, SandboxSpec,
    agents::Agents,
    namespace::NamespaceDriver,
    orders::{self, exists},
};

mod address;
mod connect;
mod container;
mod detached;
mod dialect;
mod fault;
mod image;
mod network;
mod probe;
mod programs;
mod said;
mod tunnel;

/// The ids of sandboxes on the hosts of engines that run as root, the same as where Kiln itself does.
const IDS: IdMap = IdMap {
    uid_base: 0x7000_0000,
    gid_base: 0x7000_0000,
    rootless: false,
    beyond: Beyond::Upper,
};

/// Their ids in containers of an engine that runs as a user, which have 65536 ids besides their root's: all of these.
const IDS_OF_USER: IdMap = IdMap {
    uid_base: 1,
    gid_base: 1,
    rootless: false,
    beyond: Beyond::Rest,
};

/// The parts of a docker driver.
#[derive(Debug)]
pub struct DockerSettings {
    /// The engine.
    pub engine: EngineAddress,
    /// Identifies this installation of Kiln among those that use the same engine; letters, digits and dashes.
    pub installation: String,
    /// The static agents: the one for the engine's host is the first process of containers.
    pub agents: Agents,
    /// Packs toolboxes, whose files belong to ids of sandboxes.
    pub packer: NamespaceDriver,
    /// The engine's runtime that gives each container a virtual machine, if it has one.
    pub vm_runtime: Option<String>,
    /// The name servers of virtual machines; if empty, those of the engine's host.
    pub dns: Vec<IpAddr>,
}

/// Makes sandboxes in containers of one engine.
#[derive(Debug)]
pub struct DockerDriver {
    settings: DockerSettings,
    engine: Engine,
    probes: Probes,
    // One at a time: a toolbox that two jobs need is loaded once.
    taking_in: Mutex<()>,
}

impl DockerDriver {
    /// A driver for an engine, which is not contacted yet.
    pub fn new(settings: DockerSettings) -> Self {
        Self {
            engine: Engine::at(settings.engine.clone()),
            probes: Probes::default(),
            taking_in: Mutex::new(()),
            settings,
        }
    }

    fn name_of(&self, job: JobId) -> String {
        format!("kiln-{}-{job}", self.settings.installation)
    }

    /// A client of the engine. A new SSH tunnel carries the doors of all running sandboxes, including those started by
    /// an earlier server.
    async fn client(&self) -> Result<Docker, Failure> {
        let Open { client, tunnel, .. } = self.engine.open().await?;
        if let Some(tunnel) = tunnel.filter(|tunnel| tunnel.is_fresh()) {
            for container in self.containers(None).await? {
                if let Some(doors) = container.labels.as_ref().and_then(|labels| labels.get(DOORS_HERE)) {
                    let doors = Path::new(doors);
                    tunnel.carry_doors(doors, &self.doors_there(doors)).await?;
                }
            }
        }
        Ok(client)
    }

    /// Removes a container's doors on another host.
    async fn leave_doors(&self, container: &bollard::models::ContainerSummary) -> Result<(), Failure> {
        let doors = container.labels.as_ref().and_then(|labels| labels.get(DOORS_HERE));
        if let (Some(doors), Some(tunnel)) = (doors, self.engine.open().await?.tunnel) {
            let doors = Path::new(doors);
            tunnel.leave_doors(doors, &self.doors_there(doors)).await?;
        }
        Ok(())
    }

    /// The place of a directory's doors on another host.
    fn doors_there(&self, doors: &Path) -> PathBuf {
        let digest = hex::encode(Sha256::digest(doors.as_os_str().as_encoded_bytes()));
        // Only root may write to the first; others, to where they made their engine's socket.
        let dir = match self.engine.address() {
            EngineAddress::Ssh { socket, login, .. } if login.user != "root" => socket.parent(),
            _ => None,
        };
        dir.unwrap_or(Path::new("/run"))
            .join(format!("kiln-doors-{}-{}", self.settings.installation, &digest[..8]))
    }

    fn labels(&self, job: JobId) -> HashMap<String, String> {
        HashMap::from([
            (INSTALLATION.to_owned(), self.settings.installation.clone()),
            (JOB.to_owned(), job.to_string()),
        ])
    }

    /// Creates and starts the container. Objects created before an error are found by their labels.
    async fn make(&self, engine: &Docker, sandbox: &SandboxSpec) -> Result<(), Failure> {
        let name = self.name_of(sandbox.job);
        if self.inspect(&name).await?.is_some() {
            return Err(exists(sandbox.job));
        }
        let info = dialect::info(engine).await?;
        let runtime = self.runtime_for(sandbox.kernel, &info)?;
        let entrance = self.settings.agents.of(dialect::arch_of(&info)?)?;
        let open = self.engine.open().await?;
        let ids = (sandbox.kernel == Kernel::Shared).then(|| open.dialect.ids(&info));
        let (facts, doors) = self.way_to_the_server(sandbox).await?;
        let (network, own) = match sandbox.network {
            Network::Isolated(_) => (network::NAME, network::ensure(&open).await?),
            Network::Host => ("host", Vec::new()),
        };
        let server = facts.gateway;
        let resolvers = self.resolvers(sandbox.kernel).await;
        let order = orders::order(sandbox, facts, ids, network::neighbours(own, server), resolvers);
        let image = {
            let _one = self.taking_in.lock().await;
            image::ensure(&open, &self.settings.packer, &sandbox.toolbox, ids).await?
        };
        let mut labels = self.labels(sandbox.job);
        labels.insert(DOORS_HERE.to_owned(), sandbox.doors_dir.display().to_string());
        if sandbox.kernel == Kernel::Shared && open.dialect.lacks_limits(&info) {
            warn(
                &mut labels,
                "the sandbox has no limits of memory, CPUs and processes: its engine runs as a user, on control groups version 1",
            );
        }
        let volume = match sandbox.scratch_from {
            Some(from) => self.kept_volume(from).await?,
            None => self.new_volume(&open, sandbox, &mut labels).await?,
        };
        let wanted = Wanted {
            job: sandbox.job,
            labels,
            image: &image,
            kernel: sandbox.kernel,
            runtime,
            limits: sandbox.limits,
            volume: Some(&volume),
            doors,
            network,
            sets_routes: matches!(sandbox.network, Network::Isolated(_)),
            options: self.options(engine, &info).await?,
            arguments: Vec::new(),
        };
        let options = CreateContainerOptionsBuilder::default().name(&name).build();
        engine
            .create_container(Some(options), body(&wanted))
            .await
            .map_err(|error| {
                if is_conflict(&error) {
                    exists(sandbox.job)
                } else {
                    failure("cannot make the sandbox's container", &error)
                }
            })?;
        if let Some(from) = sandbox.scratch_from {
            // From here on the disk space belongs to this sandbox and is removed with it.
            self.remove_container(engine, &format!("{}{}", self.name_of(from), detached::KEPT))
                .await?;
        }
        let archive = programs::archive(&entrance, &sandbox.agent)?;
        let options = UploadToContainerOptionsBuilder::default().path(VOLUME).build();
        dialect::patient(engine)
            .upload_to_container(&name, Some(options), bollard::body_full(archive.into()))
            .await
            .map_err(|error| fault::failure_within(dialect::LOAD, "cannot copy the agent into the sandbox", &error))?;
        give_order(engine, &name, &order).await
    }

    /// The runtime for this kind of kernel.
    fn runtime_for(&self, kernel: Kernel, engine: &SystemInfo) -> Result<Option<&str>, Failure> {
        match (kernel, self.settings.vm_runtime.as_deref()) {
            (Kernel::Shared, _) => Ok(None),
            (Kernel::Own, None) => Err(no_vm_runtime()),
            (Kernel::Own, Some(runtime)) => {
                // Shims of containerd need not be in the engine's configuration.
                let is_known = engine.runtimes.as_ref().is_none_or(|known| known.contains_key(runtime));
                if is_known || runtime.starts_with("io.containerd.") || runtime.starts_with('/') {
                    Ok(Some(runtime))
                } else {
                    Err(runtime_unknown(format!(
                        "the container engine has no runtime `{runtime}`"
                    )))
                }
            }
        }
    }

    /// The name servers that are asked from the sandbox's network: by a virtual machine itself, and for a container by
    /// the engine's resolver in that network.
    async fn resolvers(&self, kernel: Kernel) -> Vec<IpAddr> {
        if kernel == Kernel::Own && !self.settings.dns.is_empty() {
            return self.settings.dns.clone();
        }
        Box::pin(self.offers()).await.resolvers
    }

    /// The agent's facts about its server, and the directory with the server's sockets on the engine's host.
    async fn way_to_the_server(&self, sandbox: &SandboxSpec) -> Result<(AgentFacts, Option<PathBuf>), Failure> {
        let mut facts = sandbox.facts.clone();
        let doors = match (sandbox.kernel, self.engine.address()) {
            (Kernel::Shared, EngineAddress::Socket(_)) => Some(sandbox.doors_dir.clone()),
            (Kernel::Shared, EngineAddress::Ssh { .. }) => {
                let there = self.doors_there(&sandbox.doors_dir);
                if let Some(tunnel) = self.engine.open().await?.tunnel {
                    tunnel.carry_doors(&sandbox.doors_dir, &there).await?;
                }
                Some(there)
            }
            _ => None,
        };
        if doors.is_none() {
            // A virtual machine shares files with its host, but no sockets.
            facts = orders::facts_elsewhere(sandbox).await?;
        }
        Ok((facts, doors))
    }

    /// Disk space of the requested size where the engine supports that; otherwise without a limit, and with a warning.
    async fn new_volume(
        &self,
        Open {
            client: engine,
            dialect,
            ..
        }: &Open,
        sandbox: &SandboxSpec,
        labels: &mut HashMap<String, String>,
    ) -> Result<String, Failure> {
        let name = format!("kiln-{}-{}", self.settings.installation, Uuid::new_v4());
        let wanted = |size: Option<u64>| VolumeCreateRequest {
            name: Some(name.clone()),
            labels: Some(self.labels(sandbox.job)),
            driver_opts: size.map(|bytes| dialect.of_size(bytes)),
            ..Default::default()
        };
        // In a virtual machine, a file of that size holds the disk space.
        let size = sandbox
            .limits
            .disk
            .filter(|_| sandbox.kernel == Kernel::Shared)
            .map(|disk| disk.bytes);
        if size.is_some() {
            match engine.create_volume(wanted(size)).await {
                Ok(_) => return Ok(name),
                Err(bollard::errors::Error::DockerResponseServerError { message, .. }) => {
                    let text = format!("the disk space of the sandbox has no fixed size: {}", message.trim());
                    warn(labels, &text);
                }
                Err(error) => return Err(failure("cannot make the sandbox's disk space", &error)),
            }
        }
        engine
            .create_volume(wanted(None))
            .await
            .map_err(|error| failure("cannot make the sandbox's disk space", &error))?;
        Ok(name)
    }
}

/// Adds to what a container's record warns of.
fn warn(labels: &mut HashMap<String, String>, text: &str) {
    let said = labels.entry(WARNING.to_owned()).or_default();
    if !said.is_empty() {
        said.push_str("; ");
    }
    said.push_str(text);
}

/// How long an engine may take to pass on one line.
const ORDER_TIME: Duration = Duration::from_secs(30);

/// Starts the container and sends its first process the order. No other way is safe: arguments, the environment and
/// labels are visible to everyone who may query the engine.
async fn give_order(engine: &Docker, name: &str, order: &Order) -> Result<(), Failure> {
    let failed = |error| failure("cannot start the sandbox's container", &error);
    let mut line = serde_json::to_string(order).map_err(|error| Failure::new(Code::SandboxStart, error))?;
    line.push('\n');
    // Attached before the start, so that the first read already finds a writer.
    let options = AttachContainerOptionsBuilder::default()
        .stdin(true)
        .stream(true)
        .build();
    let mut attached = engine.attach_container(name, Some(options)).await.map_err(failed)?;
    engine
        .start_container(name, None::<StartContainerOptions>)
        .await
        .map_err(failed)?;
    let told = async {
        attached.input.write_all(line.as_bytes()).await?;
        attached.input.shutdown().await
    };
    let told = tokio::time::timeout(ORDER_TIME, told).await;
    told.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        .map_err(|error| {
            fault::gone(format!(
                "the container engine does not pass on the instructions of the sandbox: {error}"
            ))
        })
}

fn no_vm_runtime() -> Failure {
    Failure::new(
        Code::NoVm,
        "no runtime with virtual machines is configured for this container engine",
    )
    .hint("install Kata Containers and name its runtime; see kata/README.md")
}
