//! Turns the settings for what a job can reach into addresses. It looks names up in DNS and asks for this host's
//! addresses when the job starts, and touches nothing else.

use std::net::IpAddr;

use ipnet::IpNet;
use kiln_records::{Code, Failure};
use nix::ifaddrs::getifaddrs;
use reqwest::Url;
use tokio::net::lookup_host;

use crate::{config::NetworkSettings, sandbox::Reach, settings::Destination};

/// The addresses that a job may reach and those that it may not. `services` are those that every job needs, such as S3.
///
/// # Errors
///
/// `no_network` when a name currently has no address.
pub(super) async fn reach(settings: &NetworkSettings, services: &[String]) -> Result<Reach, Failure> {
    let needed: Vec<_> = services.iter().filter_map(|url| destination(url)).collect();
    let mut allow = addresses(&settings.allow).await?;
    if !allow.is_empty() {
        allow.extend(addresses(&needed).await?);
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
    Ok(Reach { allow, deny })
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
    let cards = getifaddrs().map_err(|errno| {
        Failure::new(
            Code::NoNetwork,
            format!("the addresses of this host are unknown: {errno}"),
        )
    })?;
    let addresses = cards.filter_map(|card| {
        let address = card.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
    });
    Ok(addresses
        .filter(|address| !address.is_loopback())
        .map(IpNet::from)
        .collect())
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
        let closed = reach(&settings, &[]).await.unwrap();
        assert!(own.iter().all(|address| closed.deny.contains(address)), "{closed:?}");
        assert!(
            !closed
                .deny
                .iter()
                .any(|net| net.contains(&IpNet::from(IpAddr::from([127, 0, 0, 1]))))
        );

        // What every job needs stays open, wherever it is.
        let with_s3 = reach(&settings, &[format!("http://{}:9000", first.addr())])
            .await
            .unwrap();
        assert!(!with_s3.deny.contains(first), "{with_s3:?}");

        let open = NetworkSettings {
            deny: Vec::new(),
            ..NetworkSettings::default()
        };
        assert_eq!(reach(&open, &[]).await.unwrap().deny, []);
    }

    #[tokio::test]
    async fn names_become_addresses_and_what_every_job_needs_is_among_them() {
        let with = |allow: &[&str]| NetworkSettings {
            allow: allow.iter().map(|text| text.parse().unwrap()).collect(),
            ..NetworkSettings::default()
        };
        let services = ["https://198.51.100.1:9000/".to_owned()];
        let strict = reach(&with(&["10.92.100.0/24", "localhost"]), &services).await.unwrap();
        let has = |text: &str| strict.allow.contains(&text.parse().unwrap());
        assert!(has("10.92.100.0/24") && has("127.0.0.1/32") && has("198.51.100.1/32"));
        assert!(strict.deny.contains(&"169.254.0.0/16".parse().unwrap()));

        let open = reach(&with(&[]), &services).await.unwrap();
        assert!(open.allow.is_empty(), "an empty list allows everything");

        let unknown = reach(&with(&["nobody.invalid"]), &services).await.unwrap_err();
        assert_eq!(unknown.code, Code::NoNetwork);
    }
}
