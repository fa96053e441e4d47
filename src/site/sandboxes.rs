//! Builds the makers of sandboxes: the agent, drivers and toolboxes, and the ways to reach them. Reads the agent's
//! program and files that the configuration names, and makes directories.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Toleration as K8sToleration;
use kiln_records::{Code, Failure, run::Kernel};

use super::proxy;
use crate::{
    config::{Config, EngineUrl, ServiceType},
    host,
    orchestrate::ShellPlace,
    remote_nodes::RemoteNodeSettings,
    sandbox::{
        agents::Agents,
        docker::{DockerDriver, DockerSettings, EngineAddress},
        kubernetes::{Cluster, Image, KubernetesSettings, PodImage, PodSettings, ServiceKind, ShellService},
        namespace::NamespaceDriver,
        toolbox::Toolbox,
        toolboxes::Toolboxes,
    },
};

/// The repository of images where the configuration names none.
const UNNAMED: &str = "kiln-toolbox";

/// The agent's program: beside this one, or at `KILN_AGENT`.
///
/// # Errors
///
/// `no_agent` when it is missing, `agent_not_static` when it would not run in every root file system.
pub(super) fn agent() -> Result<PathBuf, Failure> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("kiln-agent"));
    let path = std::env::var_os("KILN_AGENT")
        .map(PathBuf::from)
        .or_else(beside)
        .unwrap_or_default();
    let program = fs_err::read(&path).map_err(|error| {
        Failure::new(Code::NoAgent, format!("the agent is not there: {error}"))
            .hint("`make build` puts it beside kiln; KILN_AGENT names another place")
    })?;
    // A static program names no loader; a dynamic one has the name near its start.
    let head = &program[..program.len().min(4096)];
    if head
        .windows(7)
        .any(|window| window == b"/ld-lin" || window == b"/ld64.s")
    {
        return Err(
            Failure::new(Code::AgentNotStatic, format!("{} is not static", path.display()))
                .hint("`make build` builds a static one"),
        );
    }
    Ok(path)
}

/// The namespace driver of this data directory.
///
/// # Errors
///
/// When the directory cannot be made, or this user has no ids for a sandbox, unless all sandboxes are in a cluster.
pub fn namespace_driver(config: &Config) -> Result<NamespaceDriver, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::io("cannot find this program", &error))?;
    let sandboxes = config.data_dir.join("sandboxes");
    let driver = if config.isolation.is_cluster_only() {
        NamespaceDriver::perhaps_without_ids(&sandboxes, &program)?
    } else {
        NamespaceDriver::new(&sandboxes, &program)?
    };
    // Without an agent no kind of sandbox works. The error is reported when a sandbox is requested.
    Ok(match agent() {
        Ok(agent) => driver.with_machines(&config.data_dir.join("toolboxes"), &agent),
        Err(_) => driver,
    })
}

/// The container engine, if one is configured. `installation` tells this user of the engine from others, given whether other
/// hosts reach the engine at the same address.
///
/// # Errors
///
/// `engine_address` when its address is invalid.
pub fn docker_driver(
    config: &Config,
    installation: impl FnOnce(bool) -> String,
) -> Result<Option<DockerDriver>, Failure> {
    let Some(url) = &config.docker.engine else {
        return Ok(None);
    };
    let engine = engine_address(config, url)?;
    let installation = installation(engine.is_shared());
    Ok(Some(DockerDriver::new(DockerSettings {
        engine,
        installation,
        agents: Agents::beside(agent()?),
        packer: namespace_driver(config)?,
        vm_runtime: config.docker.vm_runtime.clone(),
        dns: config.docker.dns.clone(),
    })))
}

/// The cluster, if one is configured. `installation` tells this user of its namespace from others.
///
/// # Errors
///
/// When the agent is missing.
pub fn cluster(config: &Config, installation: &str) -> Result<Option<Cluster>, Failure> {
    let settings = &config.kubernetes;
    if !settings.enabled {
        return Ok(None);
    }
    let settings = settings.clone();
    let tolerations = settings.tolerations.into_iter().map(|toleration| K8sToleration {
        operator: Some(if toleration.value.is_some() { "Equal" } else { "Exists" }.to_owned()),
        key: Some(toleration.key),
        value: toleration.value,
        effect: toleration.effect,
        ..K8sToleration::default()
    });
    Ok(Some(Cluster::new(KubernetesSettings {
        kubeconfig: settings.kubeconfig,
        context: settings.context,
        namespace: settings.namespace,
        installation: installation.to_owned(),
        agents: Agents::beside(agent()?),
        start: settings.start.duration(),
        shells: settings.shell_service.map(|kind| ShellService {
            kind: match kind {
                ServiceType::LoadBalancer => ServiceKind::LoadBalancer,
                ServiceType::NodePort => ServiceKind::NodePort,
                ServiceType::ClusterIp => ServiceKind::ClusterIp,
            },
            host: settings.shell_host,
            annotations: settings.shell_annotations,
            endpoint: settings.shell_endpoint,
        }),
        pods: PodSettings {
            image: match settings.base_image {
                Some(image) => PodImage::Base(image),
                None => PodImage::WithToolbox(settings.image.unwrap_or_default()),
            },
            pull_policy: settings.image_pull_policy.name().to_owned(),
            pull_secrets: settings.image_pull_secrets,
            vm_runtime: settings.vm_runtime,
            node_selector: settings.node_selector,
            tolerations: tolerations.collect(),
            priority_class: settings.priority_class,
            labels: settings.labels,
            annotations: settings.annotations,
            request_cpus: settings.request_cpus,
            storage_class: settings.storage_class,
            server_labels: settings.server_labels,
        },
    })))
}

/// The image of a toolbox for pods with this kind of kernel, and the repository that the configuration names.
///
/// # Errors
///
/// When an agent for the toolbox's architecture is missing.
pub fn image_of<'a>(config: &Config, toolbox: &'a Toolbox, kernel: Kernel) -> Result<(Image<'a>, String), Failure> {
    let entrance = Agents::beside(agent()?).of(toolbox.facts.arch)?;
    let repository = config.kubernetes.image.clone();
    let repository = repository.unwrap_or_else(|| UNNAMED.to_owned());
    Ok((Image::of(toolbox, &entrance, &entrance, kernel)?, repository))
}

/// The address of the configured container engine.
fn engine_address(config: &Config, url: &str) -> Result<EngineAddress, Failure> {
    Ok(match url.parse::<EngineUrl>()? {
        EngineUrl::Socket(path) => EngineAddress::Socket(path),
        EngineUrl::Tcp(host) => EngineAddress::Tls {
            host,
            certificates: config.docker.client_certificates()?,
        },
        EngineUrl::Ssh { user, host, socket } => {
            let mut login = node_login(config);
            if let Some(user) = user {
                login.user = user;
            }
            EngineAddress::Ssh { host, socket, login }
        }
    })
}

/// The addresses for the shells of jobs.
pub(super) fn shell_place(config: &Config) -> ShellPlace {
    let listen = config.shells_listen();
    let host = match &config.shell.host {
        Some(host) => host.clone(),
        None if listen.is_unspecified() => host::name(),
        None => listen.to_string(),
    };
    ShellPlace {
        listen,
        host,
        ports: config.shell.ports,
        idle: config.shell.idle.duration(),
        longest: config.shell.longest.duration(),
    }
}

/// Makes the drivers of remote build nodes, by their names, for this installation.
///
/// # Errors
///
/// When the agent is missing.
pub fn node_driver(
    config: &Config,
    installation: String,
    packer: NamespaceDriver,
) -> Result<impl Fn(&str) -> DockerDriver + Send + Sync + use<>, Failure> {
    let (login, socket) = (node_login(config), config.remote_build_nodes.engine_socket.clone());
    let agents = Agents::beside(agent()?);
    Ok(move |name: &str| {
        DockerDriver::new(DockerSettings {
            engine: EngineAddress::Ssh {
                host: name.to_owned(),
                socket: socket.clone(),
                login: login.clone(),
            },
            installation: installation.clone(),
            agents: agents.clone(),
            packer: packer.clone(),
            vm_runtime: None,
            dns: Vec::new(),
        })
    })
}

/// The login to remote build nodes.
pub(super) fn node_login(config: &Config) -> RemoteNodeSettings {
    let settings = config.remote_build_nodes.clone();
    RemoteNodeSettings {
        user: settings.user,
        identity_file: settings.identity_file,
        known_hosts: settings.known_hosts,
        ssh_config: settings.ssh_config,
        connect_timeout: settings.connect_timeout.duration(),
    }
}

/// The toolboxes of this data directory.
pub fn toolboxes(config: &Config) -> Result<Toolboxes, Failure> {
    let toolboxes = Toolboxes::new(&config.data_dir.join("toolboxes"), namespace_driver(config)?)?;
    Ok(toolboxes.through(proxy::gate(&config.network)))
}
