//! What the first process of a container is told, wherever the container is: the agent's facts, the ids, the networks.
//! Looks up the name of the server's host; no other I/O.

use std::{net::IpAddr, path::Path};

use ipnet::IpNet;
use kiln_inside::room::{
    IdMap,
    order::{Order, PROGRAMS, VOLUME},
};
use kiln_records::{Code, Failure, JobId, protocol::AgentFacts};

use super::{Network, SandboxSpec};

/// The agent's facts in a sandbox that cannot have the server's sockets: it calls the server's URL.
///
/// # Errors
///
/// `no_server_url` when none is configured, or its host has no address.
pub(super) async fn facts_elsewhere(sandbox: &SandboxSpec) -> Result<AgentFacts, Failure> {
    let url = sandbox.server_url.clone().ok_or_else(no_server_url)?;
    Ok(AgentFacts {
        gateway: Some(address_of(&url).await?),
        server: url,
        ca_bundle: sandbox.server_ca_bundle.clone(),
        ..sandbox.facts.clone()
    })
}

/// The order for the first process.
pub(super) fn order(
    sandbox: &SandboxSpec,
    facts: AgentFacts,
    ids: Option<IdMap>,
    neighbours: Vec<IpNet>,
    resolvers: Vec<IpAddr>,
) -> Order {
    let (mut allow, mut deny) = match &sandbox.network {
        Network::Isolated(reach) => (reach.allow.clone(), reach.deny.clone()),
        Network::Host => (Vec::new(), Vec::new()),
    };
    deny.extend(neighbours);
    if !allow.is_empty() {
        // What every sandbox of this kind needs. A denied network stays denied.
        allow.extend(
            facts
                .gateway
                .into_iter()
                .chain(resolvers.iter().copied())
                .map(IpNet::from),
        );
    }
    let disk = sandbox.limits.disk.filter(|_| ids.is_none());
    Order {
        facts,
        ids,
        allow,
        deny,
        resolvers: if ids.is_none() { resolvers } else { Vec::new() },
        disk: disk.map(|disk| (disk.bytes, disk.inodes)),
        programs: Path::new(VOLUME).join(PROGRAMS),
        filters_calls: false,
        toolbox: None,
        hosts: Vec::new(),
    }
}

/// The address of the server's host.
async fn address_of(url: &str) -> Result<IpAddr, Failure> {
    let bad = |why: String| {
        Failure::new(
            Code::NoServerUrl,
            format!("sandboxes cannot reach the server at `{url}`: {why}"),
        )
        .hint("set the address at which build hosts reach this server")
    };
    let parsed = reqwest::Url::parse(url).map_err(|error| bad(error.to_string()))?;
    let host = parsed.host_str().ok_or_else(|| bad("it names no host".to_owned()))?;
    let port = parsed.port_or_known_default().unwrap_or(80);
    let mut found = tokio::net::lookup_host((host.trim_matches(['[', ']']), port))
        .await
        .map_err(|error| bad(error.to_string()))?;
    found
        .next()
        .map(|address| address.ip())
        .ok_or_else(|| bad("the name has no address".to_owned()))
}

/// The failure for a second sandbox of a job.
pub(super) fn exists(job: JobId) -> Failure {
    Failure::new(Code::SandboxExists, format!("there is a sandbox of job {job} already"))
}

fn no_server_url() -> Failure {
    Failure::new(
        Code::NoServerUrl,
        "this sandbox cannot reach the server: it cannot use the server's sockets, and no address is configured",
    )
    .hint("set the address at which build hosts reach this server")
}
