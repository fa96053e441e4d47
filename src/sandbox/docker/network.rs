//! Creates the network of sandboxes at the engine: a bridge on which they cannot reach each other. Talks to the engine
//! only.

use std::{net::IpAddr, time::Duration};

use bollard::{Docker, errors::Error, models::NetworkCreateRequest};
use ipnet::IpNet;
use kiln_records::Failure;

use super::{
    connect::Open,
    dialect::Dialect,
    fault::{failure, is_missing},
};

/// The network's name; all installations share it.
pub(super) const NAME: &str = "kiln";

/// Its bridge on the engine's host.
const BRIDGE: &str = "kiln0";

/// The most attempts to create it, and the pause between them.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Creates the network unless it exists. Returns its subnets, which contain other sandboxes and the host's address on
/// it.
///
/// # Errors
///
/// `engine_gone`, or another error of the engine.
pub(super) async fn ensure(open: &Open) -> Result<Vec<IpNet>, Failure> {
    let engine = &open.client;
    let failed = |error| failure("cannot make the network of sandboxes", &error);
    let mut tries = 0;
    loop {
        match engine.inspect_network(NAME, None).await {
            Ok(network) => {
                let ranges = network.ipam.and_then(|ipam| ipam.config).unwrap_or_default();
                return Ok(ranges
                    .into_iter()
                    .filter_map(|range| range.subnet?.parse().ok())
                    .collect());
            }
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(failed(error)),
        }
        let made = match &open.dialect {
            Dialect::Docker => make(engine).await,
            Dialect::Podman(podman) => podman.make_network(NAME, BRIDGE).await,
        };
        match made {
            Ok(()) => {}
            // Another process was creating it too: engines report that in several ways.
            Err(Error::DockerResponseServerError { .. }) if tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

async fn make(engine: &Docker) -> Result<(), Error> {
    let wanted = NetworkCreateRequest {
        name: NAME.to_owned(),
        driver: Some("bridge".to_owned()),
        options: Some(
            [
                ("com.docker.network.bridge.enable_icc".to_owned(), "false".to_owned()),
                ("com.docker.network.bridge.name".to_owned(), BRIDGE.to_owned()),
            ]
            .into(),
        ),
        ..Default::default()
    };
    engine.create_network(wanted).await.map(drop)
}

/// The parts of the sandbox's own network that are out of reach: all of it, except the server if it is there.
pub(super) fn neighbours(own: Vec<IpNet>, server: Option<IpAddr>) -> Vec<IpNet> {
    let has_server = |net: &IpNet| server.is_some_and(|server| net.contains(&server));
    own.into_iter().filter(|net| !has_server(net)).collect()
}
