//! The network that sandboxes are in: a bridge on which none reaches another.

use std::{net::IpAddr, time::Duration};

use bollard::{Docker, errors::Error, models::NetworkCreateRequest};
use ipnet::IpNet;

use super::fault::{failure, is_missing};
use crate::records::Failure;

/// Its name; all installations share it.
pub(super) const NAME: &str = "kiln";

/// How often it is tried to make it, and the pause before each further try.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Makes it unless it is there. Returns its own addresses: other sandboxes', and the host's on it.
///
/// # Errors
///
/// `engine_gone`, or what the engine says.
pub(super) async fn ensure(engine: &Docker) -> Result<Vec<IpNet>, Failure> {
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
        let wanted = NetworkCreateRequest {
            name: NAME.to_owned(),
            driver: Some("bridge".to_owned()),
            options: Some(
                [
                    ("com.docker.network.bridge.enable_icc".to_owned(), "false".to_owned()),
                    ("com.docker.network.bridge.name".to_owned(), "kiln0".to_owned()),
                ]
                .into(),
            ),
            ..Default::default()
        };
        match engine.create_network(wanted).await {
            Ok(_) => {}
            // Somebody else was at it, too: engines say so in several ways.
            Err(Error::DockerResponseServerError { .. }) if tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// What is out of reach on the sandbox's own network: everything, but the server if it is there.
pub(super) fn neighbours(own: Vec<IpNet>, server: Option<IpAddr>) -> Vec<IpNet> {
    let has_server = |net: &IpNet| server.is_some_and(|server| net.contains(&server));
    own.into_iter().filter(|net| !has_server(net)).collect()
}
