//! Puts the rooms together in which jobs are carried out. Pure: nothing happens until their loops [run](super::loops::run).

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
};

use kiln_records::{CacheDepth, CheckLevels, ServerId};

use super::{
    agent_address::AgentAddress,
    bases::Bases,
    bells::Bells,
    claim::Claim,
    commit::Commit,
    description::Descriptions,
    desk::Desk,
    earlier_image::EarlierImages,
    equipment::Equipment,
    glance::Glance,
    intake::Intake,
    job_doors::JobDoors,
    launch::Launch,
    layers::Layers,
    life::Life,
    lines::Lines,
    live::LiveJobs,
    network::JobNetwork,
    peers::Peers,
    places::Places,
    placing::Placing,
    repeats::Repeats,
    rooms::Rooms,
    row::Jobs,
    runner::Runners,
    sample::Sampling,
    sandboxes::Sandboxes,
    secrets::Secrets,
    settle::Settle,
    shell_ports::{ShellPlace, Shells},
    shells::ShellDoors,
    start::Start,
    sweep::Sweep,
    usage::Usage,
    watch::Watch,
};
use crate::{
    artifacts::ArtifactStore,
    config::{
        CapacitySettings, ContainerSettings, EmulationSettings, IsolationSettings, NetworkSettings, WatchSettings,
    },
    origin::Signer,
    proxy::Gate,
    store::{LogFeed, SharedStore},
    traces::Traces,
    webhooks::Webhooks,
};

/// What a site gives to those that carry its jobs out. [`Orchestrator::new`] takes it apart: each room gets what it needs.
#[derive(Debug)]
pub struct Parts {
    /// The id of this process's data directory.
    pub id: ServerId,
    /// This process, if it carries out jobs of its own only; `None` on a server.
    pub runner: Option<ServerId>,
    /// The other processes that carry out jobs for the data directory.
    pub runners: Runners,
    /// Whether sandboxes on this host's kernel share its network, as programs that a user starts do.
    pub host_network: bool,
    /// Records.
    pub store: SharedStore,
    /// Objects.
    pub artifacts: ArtifactStore,
    /// The places where jobs run.
    pub places: Places,
    /// The agents and toolboxes that sandboxes are made from.
    pub equipment: Arc<Equipment>,
    /// The sockets by which sandboxes reach this process.
    pub doors: JobDoors,
    /// The address and ports of jobs' shells.
    pub shell_place: ShellPlace,
    /// The settings that keep jobs apart.
    pub isolation: IsolationSettings,
    /// The settings for what jobs can reach.
    pub network: NetworkSettings,
    /// The way to the site's HTTP proxy, if there is one.
    pub gate: Option<Arc<Gate>>,
    /// Addresses of the services that every job needs, as jobs see them.
    pub services: Vec<String>,
    /// The address at which agents find this server if they cannot have its sockets.
    pub agent_address: Option<AgentAddress>,
    /// How this server and others on the same records reach each other, if they can.
    pub peers: Option<Peers>,
    /// How emulated jobs are carried out when they do not say.
    pub emulation: EmulationSettings,
    /// The levels of the checks of a finished root that this site chose.
    pub checks: CheckLevels,
    /// How much of earlier jobs a job may reuse that does not say.
    pub cache: CacheDepth,
    /// What builds of Containerfiles get from the site.
    pub containers: ContainerSettings,
    /// Authorities that registries are known by, beside the system's.
    pub authorities: Option<PathBuf>,
    /// The resources that this host gives to jobs.
    pub capacity: CapacitySettings,
    /// Signs the provenance of images, if the site has a key for it.
    pub signer: Option<Arc<Signer>>,
    /// The name of this builder in the provenance of its images: a URI.
    pub builder: String,
    /// When jobs are given up.
    pub watch: WatchSettings,
    /// The file by which the sandboxes of a server on this host know that it holds its lease; `None` if no other server
    /// can take their jobs.
    pub lease_file: Option<PathBuf>,
    /// Sends traces of jobs, if there is a collector.
    pub traces: Option<Arc<Traces>>,
    /// Who is told how jobs end.
    pub webhooks: Arc<Webhooks>,
    /// Wakes the readers that follow a job.
    pub feed: Arc<LogFeed>,
}

/// The rooms in which jobs are carried out. Each knows only what its type has.
#[derive(Debug)]
pub struct Orchestrator {
    /// Which jobs are this process's business.
    pub claim: Arc<Claim>,
    /// The rows of jobs.
    pub jobs: Arc<Jobs>,
    /// What this process saw last.
    pub glance: Arc<Glance>,
    /// The places where jobs run.
    pub places: Arc<Places>,
    /// The room of places.
    pub rooms: Arc<Rooms>,
    /// Accepts jobs.
    pub intake: Intake,
    /// Repeats jobs.
    pub repeats: Repeats,
    /// Answers agents.
    pub desk: Arc<Desk>,
    /// The loop that keeps the lease.
    pub life: Arc<Life>,
    /// The loop that launches jobs.
    pub launch: Arc<Launch>,
    /// The loop that watches them.
    pub watch: Arc<Watch>,
    /// The loop that makes their images.
    pub commit: Arc<Commit>,
    /// The loop that opens the ports of their shells.
    pub shells: Arc<ShellDoors>,
    /// The loop that clears away after them.
    pub settle: Arc<Settle>,
    /// The loop that removes what nothing needs any more.
    pub sweep: Arc<Sweep>,
    /// The sandboxes of jobs.
    pub sandboxes: Arc<Sandboxes>,
    /// Sends traces of jobs, if there is a collector.
    pub traces: Option<Arc<Traces>>,
    pub(super) bells: Arc<Bells>,
    pub(super) placing: Arc<Placing>,
}

impl Orchestrator {
    /// The rooms of a site.
    pub fn new(parts: Parts) -> Self {
        let Parts {
            store,
            artifacts,
            equipment,
            capacity,
            watch: limits,
            traces,
            ..
        } = parts;
        let (bells, live_jobs) = (Arc::new(Bells::default()), Arc::new(LiveJobs::default()));
        let (places, doors) = (Arc::new(parts.places), Arc::new(parts.doors));
        let claim = Claim::new(parts.id, parts.runner, parts.runners, store.is_shared());
        let claim = Arc::new(claim);
        let jobs = Arc::new(Jobs {
            store: store.clone(),
            feed: parts.feed,
            bells: bells.clone(),
            claim: claim.clone(),
            live: live_jobs.clone(),
            places: places.clone(),
            limits: limits.clone(),
        });
        let glance = Arc::new(Glance::new(live_jobs.clone(), places.clone()));
        let sandboxes = Sandboxes::new(places.clone(), claim.clone(), capacity.cpus_per_job);
        let sandboxes = Arc::new(sandboxes);
        let usage = Arc::new(Usage {
            store: store.clone(),
            live: live_jobs.clone(),
            sandboxes: sandboxes.clone(),
        });
        let network = Arc::new(JobNetwork {
            shares_host: parts.host_network,
            settings: parts.network,
            gate: parts.gate,
            services: parts.services,
            agent_address: parts.agent_address,
            ports: doors.ports().to_vec(),
        });
        let placing = Arc::new(Placing {
            store: store.clone(),
            claim: claim.clone(),
            places: places.clone(),
            equipment: equipment.clone(),
            bells: bells.clone(),
            isolation: parts.isolation,
            turn: tokio::sync::Mutex::default(),
        });
        let rooms = Arc::new(Rooms {
            store: store.clone(),
            claim: claim.clone(),
            places: places.clone(),
            usage: usage.clone(),
            bells: bells.clone(),
            settings: capacity.clone(),
            taken: Mutex::default(),
        });
        let earlier_images = Arc::new(EarlierImages {
            store: store.clone(),
            jobs: jobs.clone(),
            claim: claim.clone(),
            artifacts: artifacts.clone(),
            equipment: equipment.clone(),
            sandboxes: sandboxes.clone(),
            network: network.clone(),
        });
        let start = Arc::new(Start {
            store: store.clone(),
            jobs: jobs.clone(),
            claim: claim.clone(),
            bells: bells.clone(),
            sandboxes: sandboxes.clone(),
            earlier_images: earlier_images.clone(),
            equipment,
            network: network.clone(),
            doors: doors.clone(),
            capacity: capacity.clone(),
            lease_file: parts.lease_file.clone(),
        });
        let launch = Launch {
            store: store.clone(),
            jobs: jobs.clone(),
            claim: claim.clone(),
            placing: placing.clone(),
            rooms: rooms.clone(),
            start,
            glance: glance.clone(),
        };
        let watch = Watch {
            store: store.clone(),
            jobs: jobs.clone(),
            claim: claim.clone(),
            bells: bells.clone(),
            live: live_jobs.clone(),
            sandboxes: sandboxes.clone(),
            usage: usage.clone(),
            doors: doors.clone(),
            settings: limits.clone(),
            capacity: capacity.clone(),
            troubles: Mutex::default(),
        };
        let commit = Commit {
            store: store.clone(),
            jobs: jobs.clone(),
            claim: claim.clone(),
            artifacts: artifacts.clone(),
            earlier_images,
            signer: parts.signer,
            builder: parts.builder,
            held_up: Mutex::default(),
        };
        let sampling = Sampling {
            store: store.clone(),
            claim: claim.clone(),
            bells: bells.clone(),
            artifacts: artifacts.clone(),
            percent: parts.emulation.verify_percent,
        };
        let settle = Settle {
            store: store.clone(),
            jobs: jobs.clone(),
            claim: claim.clone(),
            bells: bells.clone(),
            live: live_jobs.clone(),
            sandboxes: sandboxes.clone(),
            usage: usage.clone(),
            doors: doors.clone(),
            artifacts: artifacts.clone(),
            sampling,
            webhooks: parts.webhooks,
            traces: traces.clone(),
            keep_failed: limits.keep_failed,
            memory: Mutex::default(),
        };
        let sweep = Arc::new(Sweep {
            store: store.clone(),
            jobs: jobs.clone(),
            claim: claim.clone(),
            sandboxes: sandboxes.clone(),
            doors,
            glance: glance.clone(),
            keep_failed: limits.keep_failed,
            logs_searched: Mutex::default(),
        });
        let life = Arc::new(Life {
            store: store.clone(),
            claim: claim.clone(),
            places: places.clone(),
            bells: bells.clone(),
            sweep: sweep.clone(),
            own_url: parts.peers.as_ref().map(|peers| peers.own_url().to_owned()),
            file: parts.lease_file,
        });
        let shells = Arc::new(ShellDoors {
            store: store.clone(),
            jobs: jobs.clone(),
            claim: claim.clone(),
            sandboxes: sandboxes.clone(),
            shells: Shells::default(),
            place: parts.shell_place.clone(),
        });
        let lines = Lines {
            store: store.clone(),
            claim: claim.clone(),
            places: places.clone(),
            peers: parts.peers,
            shells: shells.clone(),
            network,
        };
        let secrets = Arc::new(Secrets(parts.containers.secrets));
        let bases = Arc::new(Bases::new(parts.containers.registries, parts.authorities));
        let descriptions = Descriptions {
            store: store.clone(),
            artifacts: artifacts.clone(),
            sandboxes: sandboxes.clone(),
            checks: parts.checks,
            shell_place: parts.shell_place,
            watch: limits.clone(),
            secrets: secrets.clone(),
            bases: bases.clone(),
        };
        let layers = Layers {
            jobs: jobs.clone(),
            artifacts: artifacts.clone(),
        };
        let desk = Desk {
            store: store.clone(),
            jobs: jobs.clone(),
            claim: claim.clone(),
            live: live_jobs,
            artifacts: artifacts.clone(),
            descriptions,
            layers,
            lines,
            bases,
            usage,
            log_bytes: limits.log_bytes.0,
        };
        let intake = Intake {
            store: store.clone(),
            jobs: jobs.clone(),
            claim: claim.clone(),
            bells: bells.clone(),
            placing: placing.clone(),
            shells: shells.clone(),
            life: life.clone(),
            capacity,
            twins: parts.emulation.twins,
            cache: parts.cache,
            secrets,
        };
        let repeats = Repeats {
            store,
            jobs: jobs.clone(),
            claim: claim.clone(),
            bells: bells.clone(),
            artifacts,
            shells: shells.clone(),
            life: life.clone(),
        };
        Self {
            claim,
            jobs,
            glance,
            places,
            rooms,
            intake,
            repeats,
            desk: Arc::new(desk),
            life,
            launch: Arc::new(launch),
            watch: Arc::new(watch),
            commit: Arc::new(commit),
            shells,
            settle: Arc::new(settle),
            sweep,
            traces,
            bells,
            placing,
            sandboxes,
        }
    }
}
