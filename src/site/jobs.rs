//! Builds the part of a server, or of a command, that carries out jobs. It makes directories and the id of the data
//! directory, and builds toolboxes; sandboxes are the drivers' business.

use std::{sync::Arc, time::Duration};

use axum::Router;
use kiln_records::{Code, Failure, JobId, ServerId, arch::Arch};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    descriptors::Descriptors,
    places::places,
    proxy,
    sandboxes::{agent, namespace_driver, shell_place, toolboxes},
    shared_toolboxes::Sharing,
};
use crate::{
    api::{self, connections::AgentPlaces},
    artifacts::ArtifactStore,
    config::{Config, WebhookSettings},
    orchestrate::{
        AgentAddress, AgentSocket, Equipment, JobDoors, Orchestrator, Parts, Peers, job_span, lease_file, loops,
        make_doors_root,
        runner::{Runner, Runners, server_id},
    },
    origin::Signer,
    sandbox::{agents::Agents, namespace::make_private_dir, toolbox::Toolbox, toolboxes::Toolboxes},
    store::{LogFeed, SharedStore},
    traces::Traces,
    webhooks::Webhooks,
};

/// The pause before the next attempt to build a toolbox.
const TOOLBOX_PAUSE: Duration = Duration::from_mins(2);

/// The parts that carry out jobs, ready to run.
#[derive(Debug)]
pub(super) struct JobService {
    /// The orchestrator, for the API.
    pub(super) orchestrator: Arc<Orchestrator>,
    equipment: Arc<Equipment>,
    agents: mpsc::UnboundedReceiver<AgentSocket>,
    agent_places: AgentPlaces<JobId>,
    sharing: Sharing,
}

impl JobService {
    /// Makes the parts; nothing happens before [`JobService::run`]. `site` is the id of all servers on the same records. With a `runner` they carry out only the jobs of this
    /// command, whose sandboxes end with it and share the host's network.
    ///
    /// # Errors
    ///
    /// When this host cannot make sandboxes at all, or the agent is missing.
    pub(super) fn new(
        config: &Config,
        store: SharedStore,
        artifacts: ArtifactStore,
        s3_endpoint: Option<&str>,
        feed: Arc<LogFeed>,
        (site, runner): (ServerId, Option<&Runner>),
    ) -> Result<Self, Failure> {
        let hint = |failure: Failure| match failure.hint {
            Some(_) => failure,
            None => failure.hint("a server that only keeps records says `run = false` in [jobs]"),
        };
        let id = server_id(&config.data_dir)?;
        let runners = Runners::of(&config.data_dir);
        let agents = Agents::beside(agent().map_err(hint)?);
        let toolboxes = toolboxes(config).map_err(hint)?;
        let known: Vec<_> = if config.isolation.is_cluster_only() {
            // Images with them are in the cluster.
            Arch::ALL.map(Toolboxes::named).into()
        } else {
            Arch::ALL.into_iter().filter_map(|arch| toolboxes.find(arch)).collect()
        };
        let equipment = Arc::new(Equipment::new(agents, known));
        let local = namespace_driver(config).map_err(hint)?;
        let (local, outer) = match runner {
            // Sandboxes of a command end with it.
            Some(runner) => (local.attached(), runner.dir().to_owned()),
            None => (local, config.data_dir.join("agents")),
        };
        make_private_dir(&outer)?;
        let places = places(config, local, (id, site), Arc::clone(&equipment)).map_err(hint)?;
        let mut ports = config.isolation.loopback_ports.clone();
        ports.extend(s3_endpoint.and_then(loopback_port));
        // A port that is named twice, or is that of S3, is one door.
        ports.sort_unstable();
        ports.dedup();
        let (sockets, agents_sockets) = mpsc::unbounded_channel();
        let descriptors = Descriptors::of_this_process();
        let doors = JobDoors::new(make_doors_root(&outer)?, ports, descriptors.relays(), sockets);
        let is_shared = store.is_shared();
        let sharing = Sharing {
            store: Arc::clone(&store),
            artifacts: artifacts.clone(),
        };
        // A command shows its user how its jobs end.
        let told = if runner.is_none() {
            config.webhooks.clone()
        } else {
            WebhookSettings::default()
        };
        let webhooks = Webhooks::new(&told, config.server.public_url.as_deref(), Arc::clone(&store));
        let orchestrator = Orchestrator::new(Parts {
            id,
            runner: runner.map(Runner::id),
            runners,
            host_network: runner.is_some(),
            store,
            artifacts,
            places,
            equipment: Arc::clone(&equipment),
            doors,
            shell_place: shell_place(config),
            isolation: config.isolation.clone(),
            network: config.network.clone(),
            gate: proxy::gate(&config.network),
            services: s3_endpoint.into_iter().map(str::to_owned).collect(),
            agent_address: AgentAddress::of(&config.server),
            peers: Peers::of(&config.server),
            emulation: config.emulation.clone(),
            checks: config.root_checks.levels(),
            cache: config.jobs.cache,
            containers: config.containers.clone(),
            authorities: config.trust.ca.clone().filter(|path| path.is_file()),
            capacity: config.capacity.clone(),
            watch: config.watch.clone(),
            signer: signer(config)?,
            builder: config.signing.builder(id),
            // The sandboxes of a command end with it.
            lease_file: (is_shared && runner.is_none()).then(|| lease_file(&config.data_dir)),
            traces: if runner.is_none() {
                Traces::new(&config.traces, id)?
            } else {
                None
            },
            webhooks: Arc::new(webhooks),
            feed,
        });
        Ok(Self {
            orchestrator: Arc::new(orchestrator),
            equipment,
            agents: agents_sockets,
            agent_places: AgentPlaces::new(descriptors.agents()),
            sharing,
        })
    }

    /// Carries out jobs until `stop` fires. Sandboxes keep running, and wait for the next server.
    pub(super) async fn run(self, config: &Config, stop: &CancellationToken) {
        let calls = api::agent::router(self.orchestrator.desk.clone());
        let traces = self.orchestrator.traces.clone();
        let tracing_jobs = async {
            match &traces {
                Some(traces) => traces.run().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = loops::run(self.orchestrator, stop) => {}
            () = make_toolboxes(config, &self.sharing, &self.equipment) => {}
            () = serve_agents(self.agents, &self.agent_places, &calls) => {}
            () = tracing_jobs => {}
        }
    }
}

/// Serves the sockets of agents, each until its job has no sandbox any more. Never ends.
async fn serve_agents(mut sockets: mpsc::UnboundedReceiver<AgentSocket>, places: &AgentPlaces<JobId>, calls: &Router) {
    let mut serving = JoinSet::new();
    while let Some(AgentSocket { job, listener, closed }) = sockets.recv().await {
        while serving.try_join_next().is_some() {}
        let (places, calls) = (places.clone(), calls.clone());
        let serve = async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = places.serve(listener, job, calls) => {}
            }
        };
        serving.spawn(serve.instrument(job_span(job)));
    }
    std::future::pending::<()>().await;
}

/// Builds toolboxes once the first job, or the first build node of another architecture, waits for one. Never ends.
async fn make_toolboxes(config: &Config, sharing: &Sharing, equipment: &Equipment) {
    loop {
        let arch = equipment.wanted().await;
        if arch != Arch::host() && equipment.of(Arch::host()).is_err() {
            // The foreign toolbox is built with the host's one, which this call requests.
            let _ = equipment.of(arch);
            make_toolbox(config, sharing, equipment, Arch::host()).await;
            continue;
        }
        make_toolbox(config, sharing, equipment, arch).await;
    }
}

async fn make_toolbox(config: &Config, sharing: &Sharing, equipment: &Equipment, arch: Arch) {
    let make = async || -> Result<Toolbox, Failure> { sharing.ensure(&toolboxes(config)?, arch).await };
    tracing::info!(%arch, "building the toolbox; once, and it takes a few minutes, or many for another architecture");
    let built = make().await;
    let pause = match &built {
        Ok(toolbox) => {
            tracing::info!(%arch, toolbox = toolbox.name, "the toolbox is ready");
            Duration::ZERO
        }
        Err(failure) => {
            tracing::error!(
                %arch, code = failure.code.name(), hint = failure.hint,
                "the toolbox cannot be built: {failure}"
            );
            TOOLBOX_PAUSE
        }
    };
    equipment.note(arch, built);
    tokio::time::sleep(pause).await;
}

/// The port of an address on this host's loopback. A sandbox reaches such an address only through a door.
pub fn loopback_port(endpoint: &str) -> Option<u16> {
    let url = reqwest::Url::parse(endpoint).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']);
    let address = host.parse::<std::net::IpAddr>();
    let here = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    here.then(|| url.port_or_known_default()).flatten()
}

/// What signs the provenance of images, if the site has a key.
fn signer(config: &Config) -> Result<Option<Arc<Signer>>, Failure> {
    let signer = config.signing.signer();
    let signer = signer.map_err(|error| Failure::new(Code::KeyUnusable, format!("[signing]: {error}")))?;
    Ok(signer.map(Arc::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_on_this_host_needs_a_door() {
        for (endpoint, port) in [
            ("http://127.0.0.1:9001", Some(9001)),
            ("http://localhost:9001/", Some(9001)),
            ("https://127.0.0.2", Some(443)),
            ("http://[::1]:9001", Some(9001)),
            ("http://10.0.0.1:9001", None),
            ("https://s3.example.org", None),
            ("nonsense", None),
        ] {
            assert_eq!(loopback_port(endpoint), port, "{endpoint}");
        }
    }
}
