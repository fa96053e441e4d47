//! What sandboxes reach: the network of each, its doors to this host, and its way to the site's proxy. It looks up names, and
//! reads the addresses of this host.

use std::sync::Arc;

use kiln_records::{
    Failure,
    protocol::ProxyFacts,
    run::{Kernel, LOCAL, Plan},
};

use super::{
    agent_address::AgentAddress,
    reach::{host_of, reach, rules},
};
use crate::{
    config::NetworkSettings,
    proxy::{Gate, Rules},
    sandbox::Network,
};

/// What this process's sandboxes may reach.
#[derive(Debug)]
pub(super) struct JobNetwork {
    /// Whether sandboxes on this host's kernel share its network, as programs that a user starts do.
    pub(super) shares_host: bool,
    pub(super) settings: NetworkSettings,
    /// The way to the site's HTTP proxy, if there is one.
    pub(super) gate: Option<Arc<Gate>>,
    /// Addresses of the services that every job needs, as jobs see them.
    pub(super) services: Vec<String>,
    /// The address at which agents find this server if they cannot have its sockets.
    pub(super) agent_address: Option<AgentAddress>,
    /// The ports of this host that sandboxes reach through doors.
    pub(super) ports: Vec<u16>,
}

/// The network of one sandbox.
pub(super) struct Reached {
    pub(super) network: Network,
    /// The ports of its loopback that lead to this host.
    pub(super) doors: Vec<u16>,
    pub(super) proxy: Option<ProxyFacts>,
}

impl JobNetwork {
    /// Whether a job reaches what programs of this host reach: those of the user of a command.
    fn is_host(&self, plan: &Plan) -> bool {
        self.shares_host && plan.driver.kernel() == Kernel::Shared && plan.place.as_deref() == Some(LOCAL)
    }

    /// What a job reaches.
    ///
    /// # Errors
    ///
    /// When the addresses of this host cannot be read, or a name of the settings is not known.
    pub(super) async fn of(&self, plan: &Plan) -> Result<Reached, Failure> {
        if self.is_host(plan) {
            let variables = match &self.gate {
                Some(gate) => Some(gate.variables_here().await?),
                None => None,
            };
            return Ok(Reached {
                network: Network::Host,
                doors: Vec::new(),
                proxy: variables.map(|variables| ProxyFacts { variables, port: None }),
            });
        }
        let mut services = self.services.clone();
        if plan.place.as_deref() != Some(LOCAL) {
            // Here the agent reaches its server by a socket.
            services.extend(self.agent_address.as_ref().map(|address| address.url.clone()));
        }
        let reach = reach(&self.settings, &services, self.gate.as_deref()).await?;
        let proxy = self.gate.as_deref().map(|gate| {
            let port = proxy_port(&self.ports);
            let direct: Vec<_> = services.iter().filter_map(|url| host_of(url)).collect();
            let url = format!("http://127.0.0.1:{port}");
            ProxyFacts {
                variables: gate.variables(&url, &direct),
                port: Some(port),
            }
        });
        Ok(Reached {
            network: Network::Isolated(reach),
            doors: self.ports.clone(),
            proxy,
        })
    }

    /// The rules for a look, by this process, at what a job reaches without the site's proxy.
    ///
    /// # Errors
    ///
    /// As for [`Self::of`].
    pub(super) async fn rules_of(&self, plan: &Plan) -> Result<Rules, Failure> {
        if self.is_host(plan) {
            return Ok(Rules::none());
        }
        rules(&self.settings, None).await
    }
}

/// The port of a sandbox's loopback for the way to the proxy: no door has it.
fn proxy_port(doors: &[u16]) -> u16 {
    let usual = 3128;
    (usual..=u16::MAX).find(|port| !doors.contains(port)).unwrap_or(usual)
}
