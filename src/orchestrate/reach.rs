//! Turns the settings for what a job can reach into addresses. It looks names up in DNS when the job starts, and
//! touches nothing else.

use ipnet::IpNet;
use kiln_records::{Code, Failure};
use reqwest::Url;
use tokio::net::lookup_host;

use crate::{config::NetworkSettings, sandbox::Reach, settings::Destination};

/// The addresses that a job may reach and those that it may not. `services` are those that every job needs, such as S3.
///
/// # Errors
///
/// `no_network` when a name currently has no address.
pub(super) async fn reach(settings: &NetworkSettings, services: &[String]) -> Result<Reach, Failure> {
    let mut allow = addresses(&settings.allow).await?;
    if !allow.is_empty() {
        let needed: Vec<_> = services.iter().filter_map(|url| destination(url)).collect();
        allow.extend(addresses(&needed).await?);
    }
    Ok(Reach {
        allow,
        deny: addresses(&settings.deny).await?,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

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
