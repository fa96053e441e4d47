//! Turns the settings for what a job can reach into addresses. It looks names up in DNS and asks for this host's
//! addresses when the job starts, and touches nothing else.

use std::net::IpAddr;

use ipnet::IpNet;
use kiln_records::{Code, Failure};
use reqwest::Url;
use tokio::net::lookup_host;

use crate::{
    config::NetworkSettings,
    proxy::{Gate, Rules},
    sandbox::Reach,
    settings::Destination,
};

/// The addresses that a job may reach and those that it may not. `services` are those that every job needs, such as S3.
/// The site's proxy is reached through the gate only: it would carry requests that the gate refuses.
///
/// # Errors
///
/// `no_network` when a name currently has no address.
pub(super) async fn reach(
    settings: &NetworkSettings,
    services: &[String],
    gate: Option<&Gate>,
) -> Result<Reach, Failure> {
    let needed: Vec<_> = services.iter().filter_map(|url| destination(url)).collect();
    let mut allow = match gate {
        None => addresses(&settings.allow).await?,
        Some(_) => known_addresses(&settings.allow).await?,
    };
    if !settings.allow.is_empty() {
        allow.extend(addresses(&needed).await?);
        if allow.is_empty() {
            // An empty list would mean everything. The sandbox's own loopback is always reached.
            allow.push(IpNet::from(IpAddr::from([127, 0, 0, 1])));
        }
    }
    let (here, named): (Vec<_>, Vec<_>) = settings
        .deny
        .iter()
        .cloned()
        .partition(|destination| *destination == Destination::ThisHost);
    let mut deny = addresses(&named).await?;
    if !here.is_empty() {
        // A service whose name is unknown now is on no address that could be left open.
        let needed = addresses(&needed).await.unwrap_or_default();
        deny.extend(addresses(&here).await?.into_iter().filter(|net| !needed.contains(net)));
    }
    if let Some(gate) = gate {
        let proxies: Vec<Destination> = gate.hosts().filter_map(|host| host.parse().ok()).collect();
        let services = addresses(&needed).await.unwrap_or_default();
        let others = |net: &IpNet| !net.addr().is_loopback() && !services.contains(net);
        deny.extend(addresses(&proxies).await?.into_iter().filter(others));
    }
    Ok(Reach { allow, deny })
}

/// What may be asked of the site's proxy, or by this process itself, for a job: what the job may reach. Hosts whose names only the
/// proxy can look up are known by their names.
///
/// # Errors
///
/// `no_network` when the addresses of this host are unknown.
pub(super) async fn rules(settings: &NetworkSettings, gate: Option<&Gate>) -> Result<Rules, Failure> {
    let names = |destinations: &[Destination]| -> Vec<String> {
        let name = |destination: &Destination| match destination {
            Destination::Host(name) => Some(name.trim_end_matches('.').to_ascii_lowercase()),
            Destination::Network(_) | Destination::ThisHost => None,
        };
        destinations.iter().filter_map(name).collect()
    };
    let proxies = gate.into_iter().flat_map(Gate::hosts);
    let proxies: Vec<Destination> = proxies.filter_map(|host| host.parse().ok()).collect();
    let deny = [settings.deny.as_slice(), &proxies].concat();
    Ok(Rules {
        apply: true,
        only_allowed: !settings.allow.is_empty(),
        allow: known_addresses(&settings.allow).await?,
        allow_names: names(&settings.allow),
        deny: known_addresses(&deny).await?,
        deny_names: names(&deny),
    })
}

/// The host in a URL, as programs that reach it without a proxy are told.
pub(super) fn host_of(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    Some(url.host_str()?.trim_matches(['[', ']']).to_owned())
}

/// The addresses of those destinations that have any.
async fn known_addresses(destinations: &[Destination]) -> Result<Vec<IpNet>, Failure> {
    let mut found = Vec::new();
    for destination in destinations {
        match addresses(std::slice::from_ref(destination)).await {
            Ok(known) => found.extend(known),
            Err(_) if matches!(destination, Destination::Host(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(found)
}

/// The host of an address.
fn destination(url: &str) -> Option<Destination> {
    let url = Url::parse(url).ok()?;
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

async fn addresses(destinations: &[Destination]) -> Result<Vec<IpNet>, Failure> {
    let mut found = Vec::new();
    for destination in destinations {
        match destination {
            Destination::Network(network) => found.push(*network),
            Destination::ThisHost => found.extend(own_addresses()?),
            Destination::Host(name) => {
                let all = lookup_host((name.as_str(), 0)).await.map_err(|error| {
                    Failure::new(Code::NoNetwork, format!("{name} has no address: {error}"))
                        .hint("[network] names it; see whether this host can look it up")
                })?;
                found.extend(all.map(|address| IpNet::from(address.ip())));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The addresses of this host's network cards. A sandbox has a loopback of its own.
fn own_addresses() -> Result<Vec<IpNet>, Failure> {
    let own = kiln_addresses::own().map_err(|error| {
        Failure::new(
            Code::NoNetwork,
            format!("the addresses of this host are unknown: {error}"),
        )
    })?;
    Ok(own.into_iter().map(IpNet::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn services_of_this_host_that_listen_on_all_addresses_are_not_reached_by_its_own() {
        let own = own_addresses().unwrap();
        let Some(first) = own.iter().find(|net| net.addr().is_ipv4()) else {
            return;
        };
        let settings = NetworkSettings::default();
        let closed = reach(&settings, &[], None).await.unwrap();
        assert!(own.iter().all(|address| closed.deny.contains(address)), "{closed:?}");
        assert!(
            !closed
                .deny
                .iter()
                .any(|net| net.contains(&IpNet::from(IpAddr::from([127, 0, 0, 1]))))
        );

        // What every job needs stays open, wherever it is.
        let with_s3 = reach(&settings, &[format!("http://{}:9000", first.addr())], None)
            .await
            .unwrap();
        assert!(!with_s3.deny.contains(first), "{with_s3:?}");

        let open = NetworkSettings {
            deny: Vec::new(),
            ..NetworkSettings::default()
        };
        assert_eq!(reach(&open, &[], None).await.unwrap().deny, []);
    }

    #[tokio::test]
    async fn names_become_addresses_and_what_every_job_needs_is_among_them() {
        let with = |allow: &[&str]| NetworkSettings {
            allow: allow.iter().map(|text| text.parse().unwrap()).collect(),
            ..NetworkSettings::default()
        };
        let services = ["https://198.51.100.1:9000/".to_owned()];
        let strict = reach(&with(&["10.92.100.0/24", "localhost"]), &services, None)
            .await
            .unwrap();
        let has = |text: &str| strict.allow.contains(&text.parse().unwrap());
        assert!(has("10.92.100.0/24") && has("127.0.0.1/32") && has("198.51.100.1/32"));
        assert!(strict.deny.contains(&"169.254.0.0/16".parse().unwrap()));

        let open = reach(&with(&[]), &services, None).await.unwrap();
        assert!(open.allow.is_empty(), "an empty list allows everything");

        let unknown = reach(&with(&["nobody.invalid"]), &services, None).await.unwrap_err();
        assert_eq!(unknown.code, Code::NoNetwork);
    }
}
