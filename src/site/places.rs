//! Lists the places for a server's jobs, from the configuration: this host, a container engine, a cluster, and the remote build
//! nodes of the records. No I/O of its own, but the drivers prepare their directories.

use std::sync::Arc;

use super::sandboxes::{cluster, docker_driver, node_driver};
use kiln_records::{Failure, ServerId, arch::Arch};

use crate::{
    config::Config,
    orchestrate::{Equipment, Places},
    sandbox::{Driver, kubernetes::KubernetesDriver, namespace::NamespaceDriver},
};

/// The place of the configured container engine.
const ENGINE: &str = "docker";

/// The places of the configured cluster: this, and the architecture of their nodes.
const CLUSTER: &str = "kubernetes";

/// All places; `local` makes the sandboxes on this host. The sandboxes on engines that other servers reach, too, belong to the
/// site, which is all servers on one database; others belong to this server.
///
/// # Errors
///
/// When the agent is missing, or the engine's address is invalid.
pub(super) fn places(
    config: &Config,
    local: NamespaceDriver,
    (server, site): (ServerId, ServerId),
    equipment: Arc<Equipment>,
) -> Result<Places, Failure> {
    let engine = docker_driver(config, |is_shared| if is_shared { site } else { server }.to_string())?
        .map(|driver| (ENGINE, Arc::new(driver) as Arc<dyn Driver>));
    let cluster = cluster(config, &site.to_string())?.map(Arc::new);
    let of_cluster = cluster.iter().flat_map(|cluster| {
        Arch::ALL.map(|arch| {
            let driver = KubernetesDriver::new(Arc::clone(cluster), arch);
            (format!("{CLUSTER}-{arch}"), Arc::new(driver) as Arc<dyn Driver>)
        })
    });
    let engine = engine.map(|(name, driver)| (name.to_owned(), driver));
    let others = engine.into_iter().chain(of_cluster).collect();
    let driver_of = node_driver(config, site.to_string(), local.clone())?;
    let node = move |name: &str| Arc::new(driver_of(name)) as Arc<dyn Driver>;
    Ok(Places::new(
        server,
        Arc::new(local),
        Arch::host(),
        others,
        Box::new(node),
        equipment,
    ))
}
