//! Builds the way to the site's HTTP proxy from the configuration. It makes nothing on the host.

use std::sync::Arc;

use crate::{
    config::{NetworkSettings, ProxyUrl},
    proxy::{Address, Gate, Site},
    settings::Destination,
};

/// The gate to the configured proxies; `None` if there are none.
pub(super) fn gate(settings: &NetworkSettings) -> Option<Arc<Gate>> {
    let address = |url: &ProxyUrl| Address {
        host: url.host.clone(),
        port: url.port,
    };
    let host = |destination: &Destination| match destination {
        Destination::Network(net) => Some(net.addr().to_string()),
        Destination::Host(name) => Some(name.clone()),
        Destination::ThisHost => None,
    };
    Gate::to(Site {
        http: settings.http_proxy.as_ref().map(address),
        https: settings
            .https_proxy
            .as_ref()
            .or(settings.http_proxy.as_ref())
            .map(address),
        credentials: settings.proxy_credentials.clone(),
        direct: settings.no_proxy.iter().filter_map(host).collect(),
    })
}
