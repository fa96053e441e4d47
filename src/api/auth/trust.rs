//! Decides about callers without a token: by the host that the request names, and by the network that it comes from.
//! Pure: no I/O.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Uri, header};
use ipnet::IpNet;
use kiln_records::Role;

use crate::{config::TrustedListenerSettings, settings::is_loopback};

/// The rule of a listener whose callers need no token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    networks: Vec<IpNet>,
    /// The role of a caller without a token.
    pub(super) role: Role,
}

impl From<&TrustedListenerSettings> for Trust {
    fn from(settings: &TrustedListenerSettings) -> Self {
        Self {
            networks: settings.networks.clone(),
            role: settings.role,
        }
    }
}

impl Trust {
    /// Whether the listener serves this address.
    pub(super) fn covers(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.networks.iter().any(|network| network.contains(&peer))
    }
}

/// The host that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named<'a> {
    /// None. No browser sends such a request.
    Nothing,
    /// One that is no text.
    Unreadable,
    /// A name or an address, without the port.
    Host(&'a str),
}

impl<'a> Named<'a> {
    pub(super) fn by(uri: &'a Uri, headers: &'a HeaderMap) -> Self {
        let header = headers.get(header::HOST).map(HeaderValue::to_str);
        let authority = match (uri.authority(), header) {
            (Some(authority), _) => authority.as_str(),
            (None, Some(Ok(named))) => named,
            (None, Some(Err(_))) => return Self::Unreadable,
            (None, None) => return Self::Nothing,
        };
        Self::Host(match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|c| c.is_ascii_digit()) => host,
            _ => authority,
        })
    }

    /// Whether the request is for this very host, or for one of the names that the server answers to. A hostile web
    /// page that points its own domain at Kiln's address names another one, and must not enter through the browser of
    /// its reader.
    pub(super) fn is_here(self, hosts: &[String]) -> bool {
        self.is(hosts, is_loopback)
    }

    /// Like [`Named::is_here`], but any address will do: a domain cannot be an address.
    pub(super) fn is_address_or(self, hosts: &[String]) -> bool {
        self.is(hosts, |_| true)
    }

    fn is(self, hosts: &[String], address: fn(IpAddr) -> bool) -> bool {
        let host = match self {
            Self::Nothing => return true,
            Self::Unreadable => return false,
            Self::Host(host) => host,
        };
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let plain = host.strip_suffix('.').unwrap_or(host);
        plain.eq_ignore_ascii_case("localhost")
            || hosts.iter().any(|known| known.eq_ignore_ascii_case(plain))
            || literal.is_ok_and(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(host: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::HOST, HeaderValue::from_str(host).unwrap())])
    }

    #[test]
    fn a_request_for_a_foreign_name_is_not_for_this_server() {
        let hosts = ["cray-ims".to_owned()];
        let uri = Uri::from_static("/v3/images");
        for (host, here, there) in [
            ("localhost:9000", true, true),
            ("127.0.0.1", true, true),
            ("[::1]:9000", true, true),
            ("cray-ims", true, true),
            ("CRAY-IMS:80", true, true),
            ("cray-ims.", true, true),
            ("10.92.100.71:80", false, true),
            ("evil.example.org", false, false),
            ("cray-ims.evil.example.org", false, false),
            ("", false, false),
        ] {
            let headers = named(host);
            let named = Named::by(&uri, &headers);
            assert_eq!(
                (named.is_here(&hosts), named.is_address_or(&hosts)),
                (here, there),
                "{host}"
            );
        }
        let unreadable = HeaderMap::from_iter([(header::HOST, HeaderValue::from_bytes(b"\xff").unwrap())]);
        assert!(!Named::by(&uri, &unreadable).is_address_or(&hosts));
    }

    #[test]
    fn an_address_of_another_network_is_not_covered() {
        let trust = Trust {
            networks: vec!["10.32.0.0/12".parse().unwrap(), "fd00::/8".parse().unwrap()],
            role: Role::Write,
        };
        for (peer, covered) in [
            ("10.33.1.2", true),
            ("::ffff:10.33.1.2", true),
            ("fd12::1", true),
            ("10.48.0.1", false),
            ("127.0.0.1", false),
            ("::1", false),
        ] {
            assert_eq!(trust.covers(peer.parse().unwrap()), covered, "{peer}");
        }
    }
}
