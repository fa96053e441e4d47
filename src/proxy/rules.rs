//! The rules for what may be asked of the proxy. Looks names up; touches nothing else.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use ipnet::IpNet;
use tokio::net::lookup_host;

/// How long a name is looked up. One that is unknown here may be known to the proxy.
const LOOKUP: Duration = Duration::from_secs(5);

/// What a caller may ask for.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Whether there are rules at all.
    pub apply: bool,
    /// Whether only `allow` and `allow_names` may be asked for.
    pub only_allowed: bool,
    /// Networks that may be asked for.
    pub allow: Vec<IpNet>,
    /// Names that may be asked for, in lower case.
    pub allow_names: Vec<String>,
    /// Networks that may not, in any case.
    pub deny: Vec<IpNet>,
    /// Names that may not, in any case, in lower case.
    pub deny_names: Vec<String>,
}

impl Rules {
    /// No rules.
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether this host may be asked for, a name or an address in the normal form of URLs. The reason if not.
    pub async fn check(&self, host: &str) -> Result<(), String> {
        if !self.apply {
            return Ok(());
        }
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            return if self.admits(address) {
                Ok(())
            } else {
                Err(format!("[network] does not let jobs reach {}", address.to_canonical()))
            };
        }
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        let local = name == "localhost" || name.ends_with(".localhost");
        if local || self.deny_names.contains(&name) {
            return Err(format!("[network] does not let jobs reach {name}"));
        }
        let looked_up = tokio::time::timeout(LOOKUP, lookup_host((name.as_str(), 0))).await;
        let addresses: Vec<IpAddr> = match looked_up {
            Ok(Ok(found)) => found.map(|address| address.ip().to_canonical()).collect(),
            // Where there is a proxy, this host may be unable to look up names of the internet.
            Ok(Err(_)) | Err(_) => Vec::new(),
        };
        if let Some(address) = addresses.iter().find(|address| self.denies(**address)) {
            return Err(format!(
                "[network] does not let jobs reach {address}, an address of {name}"
            ));
        }
        let is_allowed = !self.only_allowed
            || self.allow_names.contains(&name)
            || !addresses.is_empty() && addresses.iter().all(|address| self.allows(*address));
        is_allowed
            .then_some(())
            .ok_or_else(|| format!("[network] does not let jobs reach {name}: `allow` has other hosts only"))
    }

    /// Whether this address may be reached.
    pub fn admits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        !self.apply || !self.denies(address) && (!self.only_allowed || self.allows(address))
    }

    fn allows(&self, address: IpAddr) -> bool {
        self.allow.iter().any(|net| net.contains(&address))
    }

    fn denies(&self, address: IpAddr) -> bool {
        // At the proxy, these are the proxy itself, or its neighbours.
        let near = match address {
            IpAddr::V4(address) => {
                address.is_loopback() || address.octets()[0] == 0 || address.is_multicast() || address.is_broadcast()
            }
            IpAddr::V6(address) => {
                address.is_loopback()
                    || address.is_multicast()
                    || address.is_unicast_link_local()
                    || holds_ipv4(address)
            }
        };
        near || self.deny.iter().any(|net| net.contains(&address))
    }
}

/// Whether an address is an old way to write one of IPv4, or leads to one: `::a.b.c.d`, `64:ff9b::a.b.c.d`, 6to4.
fn holds_ipv4(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    parts[..6] == [0; 6] || parts[..6] == [0x64, 0xff9b, 0, 0, 0, 0] || parts[0] == 0x2002
}
