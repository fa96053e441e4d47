//! Builds the part of a server, or of a command, that carries out jobs. It makes directories and the id of the data
//! directory, and builds toolboxes; sandboxes are the drivers' business.

use std::{sync::Arc, time::Duration};

use kiln_records::{Failure, arch::Arch};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use super::{
    places::places,
    sandboxes::{agent, doors_dir, namespace_driver, shell_place, toolboxes},
};
use crate::{
    api,
    artifacts::ArtifactStore,
    config::Config,
    host,
    orchestrate::{
        Equipment, Orchestrator, Parts, loops,
        runner::{Runner, Runners, server_id},
    },
    sandbox::{
        agents::Agents,
        doors::{self, AGENT_SOCKET, Doors},
        toolbox::Toolbox,
    },
    store::{LogFeed, SharedStore},
};

/// The pause before the next attempt to build a toolbox.
const TOOLBOX_PAUSE: Duration = Duration::from_mins(2);

/// The parts that carry out jobs, ready to run.
#[derive(Debug)]
pub(super) struct JobService {
    /// The orchestrator, for the API.
    pub(super) orchestrator: Arc<Orchestrator>,
    equipment: Arc<Equipment>,
    agents: UnixListener,
    _doors: Doors,
}

impl JobService {
    /// Makes the parts; nothing happens before [`JobService::run`]. With a `runner` they carry out only the jobs of this
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
        runner: Option<&Runner>,
    ) -> Result<Self, Failure> {
        let hint = |failure: Failure| match failure.hint {
            Some(_) => failure,
            None => failure.hint("a server that only keeps records says `run = false` in [jobs]"),
        };
        let id = server_id(&config.data_dir)?;
        let runners = Runners::of(&config.data_dir);
        let agents = Agents::beside(agent().map_err(hint)?);
        let toolboxes = toolboxes(config).map_err(hint)?;
        let known = Arch::ALL.into_iter().filter_map(|arch| toolboxes.find(arch));
        let equipment = Arc::new(Equipment::new(agents, known));
        let local = namespace_driver(config).map_err(hint)?;
        let (local, doors_dir) = match runner {
            // Sandboxes of a command end with it.
            Some(runner) => (local.attached(), doors_dir(runner.dir())?),
            None => (local, doors_dir(&config.data_dir.join("agents"))?),
        };
        let places = places(config, local, &id.to_string(), Arc::clone(&equipment)).map_err(hint)?;
        let failed = |error: std::io::Error| Failure::io("cannot make the agents' socket", &error);
        let listener = doors::listen(&doors_dir, AGENT_SOCKET).map_err(failed)?;
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        let mut ports = config.isolation.loopback_ports.clone();
        ports.extend(s3_endpoint.and_then(loopback_port));
        let doors = Doors::open(&doors_dir, &ports)?;
        let orchestrator = Orchestrator::new(Parts {
            id,
            runner: runner.map(Runner::id),
            runners,
            host_network: runner.is_some(),
            store,
            artifacts,
            places,
            equipment: Arc::clone(&equipment),
            doors_dir,
            doors: ports,
            shell_place: shell_place(config),
            isolation: config.isolation.clone(),
            network: config.network.clone(),
            services: s3_endpoint.into_iter().map(str::to_owned).collect(),
            agent_url: config.server.agent_url.clone(),
            emulation: config.emulation.clone(),
            capacity: config.capacity.clone(),
            watch: config.watch.clone(),
            feed,
        });
        Ok(Self {
            orchestrator: Arc::new(orchestrator),
            equipment,
            agents: listener,
            _doors: doors,
        })
    }

    /// Carries out jobs until `stop` fires. Sandboxes keep running, and wait for the next server.
    pub(super) async fn run(self, config: &Config, stop: &CancellationToken) {
        let calls = api::agent::router(self.orchestrator.clone());
        let agents = axum::serve(self.agents, calls).into_future();
        tokio::select! {
            () = loops::run(self.orchestrator, stop) => {}
            () = make_toolboxes(config, &self.equipment) => {}
            served = agents => {
                if let Err(error) = served {
                    tracing::error!(%error, "the agents' socket broke");
                }
            }
        }
    }
}

/// Builds toolboxes once the first job, or the first build node of another architecture, waits for one. Never ends.
async fn make_toolboxes(config: &Config, equipment: &Equipment) {
    loop {
        let arch = equipment.wanted().await;
        if arch != Arch::host() && equipment.of(Arch::host()).is_err() {
            // The foreign toolbox is built with the host's one, which this call requests.
            let _ = equipment.of(arch);
            make_toolbox(config, equipment, Arch::host()).await;
            continue;
        }
        make_toolbox(config, equipment, arch).await;
    }
}

async fn make_toolbox(config: &Config, equipment: &Equipment, arch: Arch) {
    let make = async || -> Result<Toolbox, Failure> {
        let toolboxes = toolboxes(config)?;
        let say = |line: &str| tracing::debug!("{line}");
        toolboxes.ensure(arch, host::apt_mirror(), say).await
    };
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
