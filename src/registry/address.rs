//! Which addresses a registry may lead this machine to. Resolves names; opens no connection.
//!
//! A registry on the internet could send a client to services that only the client reaches: its own loopback, the
//! site's network, a cloud's metadata. So an address that a registry names must be public, or of a kind that the
//! registry itself has.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};

/// Kinds of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Reached from everywhere.
    Public,
    /// Of a site's own networks.
    Private,
    /// This machine.
    Loopback,
    /// Of one link, such as a cloud's metadata service.
    Link,
    /// No host's: unspecified, multicast, reserved.
    Nowhere,
}

impl Kind {
    /// The kind of an address. One of IPv4 inside one of IPv6 counts as itself.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => {
                let [a, b, ..] = v4.octets();
                match () {
                    () if v4.is_loopback() => Self::Loopback,
                    () if v4.is_link_local() => Self::Link,
                    // Also the space of carriers (RFC 6598) and of benchmarks (RFC 2544).
                    () if v4.is_private() || (a == 100 && b & 0xc0 == 64) || (a == 198 && b & 0xfe == 18) => {
                        Self::Private
                    }
                    () if a == 0 || a >= 224 => Self::Nowhere,
                    () => Self::Public,
                }
            }
            IpAddr::V6(v6) => {
                let segments = v6.segments();
                if v6.is_loopback() {
                    return Self::Loopback;
                }
                if let Some(v4) = v6.to_ipv4_mapped() {
                    return Self::of(v4.into());
                }
                // NAT64 (RFC 6052): the last four bytes are an address of IPv4.
                if segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0] {
                    let [.., a, b, c, d] = v6.octets();
                    return Self::of(IpAddr::from([a, b, c, d]));
                }
                match segments[0] {
                    first if first & 0xffc0 == 0xfe80 => Self::Link,
                    first if first & 0xfe00 == 0xfc00 => Self::Private,
                    first if first & 0xe000 == 0x2000 => Self::Public,
                    _ => Self::Nowhere,
                }
            }
        }
    }

    /// The kind, in words.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Public => "a public address",
            Self::Private => "an address of a private network",
            Self::Loopback => "the loopback of this machine",
            Self::Link => "an address of the local link",
            Self::Nowhere => "an address that no host has",
        }
    }
}

/// The rule for one registry, which resolves names for its connections too: what was checked is what is connected to.
#[derive(Debug, Clone)]
pub struct Guard {
    /// The registry's host, which users chose themselves.
    host: String,
    kinds: Arc<BTreeSet<Kind>>,
}

impl Guard {
    /// Looks where the registry at `url` is. A name that only a proxy can resolve is taken to be public.
    pub async fn of(url: &Url) -> Self {
        let host = bare(url).to_owned();
        let kinds = match host.parse::<IpAddr>() {
            Ok(address) => BTreeSet::from([Kind::of(address)]),
            Err(_) => resolve(&host)
                .await
                .map(|all| all.iter().map(|address| Kind::of(address.ip())).collect())
                .unwrap_or_default(),
        };
        Self {
            host,
            kinds: Arc::new(kinds),
        }
    }

    /// Whether the registry is on this machine.
    pub fn is_loopback(&self) -> bool {
        !self.kinds.is_empty() && self.kinds.iter().all(|kind| *kind == Kind::Loopback)
    }

    fn allows(&self, address: IpAddr) -> bool {
        let kind = Kind::of(address);
        kind == Kind::Public || (kind != Kind::Nowhere && self.kinds.contains(&kind))
    }

    /// Checks an address that the registry names, as far as it can be seen without resolving: connections check the
    /// rest.
    pub fn check(&self, url: &Url) -> Result<(), &'static str> {
        let host = bare(url);
        if host == self.host {
            return Ok(());
        }
        match host.parse::<IpAddr>() {
            Ok(address) if !self.allows(address) => Err(Kind::of(address).noun()),
            // RFC 6761: whatever a resolver says.
            Err(_)
                if (host == "localhost" || host.ends_with(".localhost")) && !self.kinds.contains(&Kind::Loopback) =>
            {
                Err(Kind::Loopback.noun())
            }
            _ => Ok(()),
        }
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let mut all = resolve(name.as_str()).await?;
            if name.as_str() != guard.host {
                all.retain(|address| guard.allows(address.ip()));
                if all.is_empty() {
                    return Err(io::Error::new(
                        io::ErrorKind::PermissionDenied,
                        "it has only addresses that this registry may not send to",
                    )
                    .into());
                }
            }
            Ok(Box::new(all.into_iter()) as Addrs)
        })
    }
}

async fn resolve(host: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((host, 0)).await?.collect())
}

fn bare(url: &Url) -> &str {
    url.host_str().unwrap_or_default().trim_matches(['[', ']'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_has_its_kind() {
        for (address, kind) in [
            ("8.8.8.8", Kind::Public),
            ("2606:4700::1", Kind::Public),
            ("10.1.2.3", Kind::Private),
            ("172.31.0.1", Kind::Private),
            ("192.168.0.1", Kind::Private),
            ("100.64.0.1", Kind::Private),
            ("fd00::1", Kind::Private),
            ("127.9.9.9", Kind::Loopback),
            ("::1", Kind::Loopback),
            ("::ffff:127.0.0.1", Kind::Loopback),
            ("64:ff9b::127.0.0.1", Kind::Loopback),
            ("169.254.169.254", Kind::Link),
            ("64:ff9b::a9fe:a9fe", Kind::Link),
            ("fe80::1", Kind::Link),
            ("0.0.0.0", Kind::Nowhere),
            ("::", Kind::Nowhere),
            ("224.0.0.1", Kind::Nowhere),
            ("ff02::1", Kind::Nowhere),
        ] {
            assert_eq!(Kind::of(address.parse().unwrap()), kind, "{address}");
        }
    }

    #[tokio::test]
    async fn a_registry_leads_only_to_public_places_and_its_own_kind() {
        let url = |host: &str| Url::parse(&format!("https://{host}/v2/")).unwrap();
        let public = Guard::of(&url("9.9.9.9")).await;
        let loopback = Guard::of(&url("127.0.0.1:5000")).await;
        let private = Guard::of(&url("10.0.0.1")).await;
        for (to, from_public, from_loopback, from_private) in [
            ("1.1.1.1", true, true, true),
            ("127.0.0.2", false, true, false),
            ("localhost", false, true, false),
            ("x.localhost", false, true, false),
            ("[::1]:9", false, true, false),
            ("[::ffff:7f00:1]", false, true, false),
            ("10.9.9.9", false, false, true),
            ("169.254.169.254", false, false, false),
            ("0.0.0.0", false, false, false),
            // Decimal spellings of addresses are addresses.
            ("2130706433", false, true, false),
        ] {
            let seen = [&public, &loopback, &private].map(|guard| guard.check(&url(to)).is_ok());
            assert_eq!(seen, [from_public, from_loopback, from_private], "{to}");
        }
        assert!(loopback.is_loopback() && !private.is_loopback());
    }

    #[tokio::test]
    async fn names_are_checked_when_they_are_resolved() {
        let public = Guard::of(&Url::parse("https://9.9.9.9/").unwrap()).await;
        let refused = public.resolve("localhost".parse().unwrap()).await;
        assert!(refused.is_err());
        let own = Guard::of(&Url::parse("https://localhost/").unwrap()).await;
        assert!(own.resolve("localhost".parse().unwrap()).await.is_ok());
    }
}
