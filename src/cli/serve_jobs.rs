//! The part of `kiln serve` that carries jobs out.

use std::{path::Path, sync::Arc, time::Duration};

use tokio::{
    net::UnixListener,
    sync::{Notify, watch},
};
use tokio_util::sync::CancellationToken;

use super::places::places;
use crate::{
    api,
    arch::Arch,
    artifacts::ArtifactStore,
    config::Config,
    host,
    orchestrate::{Orchestrator, Parts, ToolboxState, loops},
    records::{Failure, ServerId},
    sandbox::doors::{self, AGENT_SOCKET, Doors},
    store::{LogFeed, SharedStore},
};

/// The pause before a toolbox that could not be built is tried again.
const TOOLBOX_PAUSE: Duration = Duration::from_mins(2);

/// What carries jobs out, ready to run.
#[derive(Debug)]
pub(super) struct JobService {
    /// What the API hands jobs to.
    pub(super) orchestrator: Arc<Orchestrator>,
    toolbox: ToolboxMaker,
    agents: UnixListener,
    _doors: Doors,
}

impl JobService {
    /// Makes everything that carrying jobs out takes; nothing happens before [`JobService::run`].
    ///
    /// # Errors
    ///
    /// When this host cannot make sandboxes at all, or the agent is not there.
    pub(super) fn new(
        config: &Config,
        store: SharedStore,
        artifacts: ArtifactStore,
        s3_endpoint: Option<&str>,
        feed: Arc<LogFeed>,
    ) -> Result<Self, Failure> {
        let hint = |failure: Failure| match failure.hint {
            Some(_) => failure,
            None => failure.hint("a server that only keeps records says `run = false` in [jobs]"),
        };
        let id = server_id(&config.data_dir)?;
        let places = places(config, &id.to_string()).map_err(hint)?;
        let agent = config.agent().map_err(hint)?;
        let doors_dir = config.doors_dir()?;
        let failed = |error: std::io::Error| Failure::io("cannot make the agents' socket", &error);
        let agents = doors::listen(&doors_dir, AGENT_SOCKET).map_err(failed)?;
        let agents = UnixListener::from_std(agents).map_err(failed)?;
        let mut ports = config.isolation.loopback_ports.clone();
        ports.extend(s3_endpoint.and_then(loopback_port));
        let doors = Doors::open(&doors_dir, &ports)?;
        let (toolbox, state) = ToolboxMaker::new(config)?;
        let orchestrator = Orchestrator::new(Parts {
            id,
            store,
            artifacts,
            places,
            agent,
            toolbox: state,
            toolbox_wanted: Arc::clone(&toolbox.wanted),
            doors_dir,
            doors: ports,
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
            toolbox,
            agents,
            _doors: doors,
        })
    }

    /// Carries jobs out until `stop` fires. Sandboxes go on, and wait for the next server.
    pub(super) async fn run(self, config: &Config, stop: &CancellationToken) {
        let calls = api::agent::router(self.orchestrator.clone());
        let agents = axum::serve(self.agents, calls).into_future();
        tokio::select! {
            () = loops::run(self.orchestrator, stop) => {}
            () = self.toolbox.run(config) => {}
            served = agents => {
                if let Err(error) = served {
                    tracing::error!(%error, "the agents' socket broke");
                }
            }
        }
    }
}

/// Builds the toolbox when the first job waits for it.
#[derive(Debug)]
struct ToolboxMaker {
    state: watch::Sender<ToolboxState>,
    wanted: Arc<Notify>,
}

impl ToolboxMaker {
    fn new(config: &Config) -> Result<(Self, watch::Receiver<ToolboxState>), Failure> {
        let found = config.toolboxes()?.find(Arch::host());
        let (state, receiver) = watch::channel(found.map_or(ToolboxState::Missing, ToolboxState::Ready));
        let wanted = Arc::default();
        Ok((Self { state, wanted }, receiver))
    }

    async fn run(self, config: &Config) {
        loop {
            if matches!(*self.state.borrow(), ToolboxState::Ready(_)) {
                std::future::pending::<()>().await;
            }
            self.wanted.notified().await;
            tracing::info!("building the toolbox; once, and it takes a few minutes");
            let built = match config.toolboxes() {
                Ok(toolboxes) => {
                    toolboxes
                        .ensure(Arch::host(), host::apt_mirror(), |line| tracing::debug!("{line}"))
                        .await
                }
                Err(failure) => Err(failure),
            };
            match built {
                Ok(toolbox) => {
                    tracing::info!(toolbox = toolbox.name, "the toolbox is ready");
                    self.state.send_replace(ToolboxState::Ready(toolbox));
                }
                Err(failure) => {
                    tracing::error!(code = failure.code, "the toolbox cannot be built: {failure}");
                    self.state.send_replace(ToolboxState::Failed(failure));
                    tokio::time::sleep(TOOLBOX_PAUSE).await;
                }
            }
        }
    }
}

/// Who this server is: chosen once for its data directory, so that it knows its sandboxes again.
fn server_id(data_dir: &Path) -> Result<ServerId, Failure> {
    let path = data_dir.join("server-id");
    let failed = |error: std::io::Error| Failure::io("cannot keep this server's id", &error);
    match fs_err::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|error| {
            Failure::new("io", format_args!("{}: {error}", path.display()))
                .hint("remove the file if no job of this server runs; a new one is made")
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let id = ServerId::new();
            // The lock on the data directory keeps others away.
            let mut file = tempfile::NamedTempFile::new_in(data_dir).map_err(failed)?;
            std::io::Write::write_all(&mut file, format!("{id}\n").as_bytes()).map_err(failed)?;
            file.as_file().sync_all().map_err(failed)?;
            file.persist(&path).map_err(|error| failed(error.error))?;
            Ok(id)
        }
        Err(error) => Err(failed(error)),
    }
}

/// The port of an address on this host's loopback, which a sandbox reaches only through a door.
fn loopback_port(endpoint: &str) -> Option<u16> {
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

    #[test]
    fn a_server_knows_itself_again() {
        let dir = tempfile::tempdir().unwrap();
        let first = server_id(dir.path()).unwrap();
        assert_eq!(server_id(dir.path()).unwrap(), first);
        fs_err::write(dir.path().join("server-id"), "nonsense").unwrap();
        assert_eq!(server_id(dir.path()).unwrap_err().code, "io");
    }
}
