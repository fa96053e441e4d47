//! Kinds of addresses. Asks for the addresses of this machine's network cards.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use nix::ifaddrs::getifaddrs;

/// The services by which clouds tell their machines secrets: the one of most clouds, Alibaba's, Azure's, Oracle's, and those of Amazon
/// and Google on IPv6.
const METADATA: [IpAddr; 6] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Kinds of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Reached from everywhere.
    Public,
    /// Of a site's own networks.
    Private,
    /// This machine's loopback.
    Loopback,
    /// This machine's, on one of its networks.
    Here,
    /// Of one link.
    Link,
    /// A cloud's metadata service.
    Metadata,
    /// No host's: unspecified, multicast, reserved.
    Nowhere,
}

impl Kind {
    /// The kind of an address. One of IPv4 inside one of IPv6 counts as itself.
    ///
    /// # Errors
    ///
    /// This machine's own addresses are unknown.
    pub fn of(address: IpAddr) -> io::Result<Self> {
        let address = plain(address);
        match Self::written(address) {
            Self::Public | Self::Private | Self::Link if own()?.contains(&address) => Ok(Self::Here),
            kind => Ok(kind),
        }
    }

    /// The kind of an address, as far as it says it itself.
    fn written(address: IpAddr) -> Self {
        if METADATA.contains(&address) {
            return Self::Metadata;
        }
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
            IpAddr::V6(v6) if v6.is_loopback() => Self::Loopback,
            IpAddr::V6(v6) => match v6.segments()[0] {
                first if first & 0xffc0 == 0xfe80 => Self::Link,
                first if first & 0xfe00 == 0xfc00 => Self::Private,
                first if first & 0xe000 == 0x2000 => Self::Public,
                _ => Self::Nowhere,
            },
        }
    }

    /// The kind, in words.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Public => "a public address",
            Self::Private => "an address of a private network",
            Self::Loopback => "the loopback of this machine",
            Self::Here => "an address of this machine",
            Self::Link => "an address of the local link",
            Self::Metadata => "the metadata service of a cloud",
            Self::Nowhere => "an address that no host has",
        }
    }
}

/// The addresses of this machine's network cards, without the loopback's.
///
/// # Errors
///
/// The kernel does not tell them.
pub fn own() -> io::Result<Vec<IpAddr>> {
    let addresses = getifaddrs()?.filter_map(|card| {
        let address = card.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
    });
    Ok(addresses.filter(|address| !address.is_loopback()).collect())
}

/// The address of IPv4 that one of IPv6 leads to: by mapping, NAT64 (RFC 6052) or 6to4 (RFC 3056).
fn plain(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address.to_canonical() else {
        return address.to_canonical();
    };
    let octets = v6.octets();
    let held = match v6.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => [octets[12], octets[13], octets[14], octets[15]],
        [0x2002, ..] => [octets[2], octets[3], octets[4], octets[5]],
        _ => return address,
    };
    held.into()
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
            ("2002:7f00:1::", Kind::Loopback),
            ("169.254.1.1", Kind::Link),
            ("fe80::1", Kind::Link),
            ("169.254.169.254", Kind::Metadata),
            ("64:ff9b::a9fe:a9fe", Kind::Metadata),
            ("100.100.100.200", Kind::Metadata),
            ("::ffff:100.100.100.200", Kind::Metadata),
            ("fd00:ec2::254", Kind::Metadata),
            ("0.0.0.0", Kind::Nowhere),
            ("::", Kind::Nowhere),
            ("::127.0.0.1", Kind::Nowhere),
            ("::ffff:0.0.0.0", Kind::Nowhere),
            ("224.0.0.1", Kind::Nowhere),
            ("ff02::1", Kind::Nowhere),
        ] {
            assert_eq!(Kind::written(plain(address.parse().unwrap())), kind, "{address}");
        }
    }

    #[test]
    fn the_machines_own_addresses_are_known_in_every_spelling() {
        for address in own().unwrap() {
            assert_eq!(Kind::of(address).unwrap(), Kind::Here, "{address}");
            if let IpAddr::V4(v4) = address {
                assert_eq!(Kind::of(v4.to_ipv6_mapped().into()).unwrap(), Kind::Here, "{address}");
            }
        }
        assert_eq!(Kind::of(IpAddr::from([127, 0, 0, 1])).unwrap(), Kind::Loopback);
    }
}
