//! Sets routes in the network namespace of this process: they keep sandboxes from forbidden networks, and give the only
//! card of a virtual machine its address. Uses netlink.

use std::net::{IpAddr, Ipv4Addr};

use futures::TryStreamExt;
use ipnet::{IpNet, Ipv4Net};
use kiln_records::{Code, Failure};
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec, RouteMessageBuilder,
    packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
};

/// The effect of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Packets go through the gateway.
    Through,
    /// Packets go nowhere: the sender gets `EACCES`.
    Prohibited,
}

/// Limits this network to the networks of `allow`, if any are named, and excludes those of `deny` in any case. The
/// gateway's own network stays reachable, since it has the name server. Only IPv4 matters: sandboxes have no IPv6.
///
/// A process under these limits must not have `CAP_NET_ADMIN`, which allows changing routes, nor `CAP_NET_RAW`, which
/// allows bypassing them.
/// sends past them.
///
/// # Errors
///
/// `no_network` when the kernel refuses a route.
pub fn restrict(allow: &[IpNet], deny: &[IpNet]) -> Result<(), Failure> {
    let ways = ways(allow, deny);
    if ways.is_empty() {
        return Ok(());
    }
    with_netlink(async |handle| {
        let old = default_route(handle).await?;
        let gateway = old.as_ref().and_then(gateway_of);
        for (net, way) in ways {
            let route = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(net.network(), net.prefix_len());
            let route = match (way, gateway) {
                (Way::Prohibited, _) => route.kind(RouteType::Prohibit),
                (Way::Through, Some(gateway)) => route.gateway(gateway),
                // Without a way out there is nothing to allow.
                (Way::Through, None) => continue,
            };
            handle.route().add(route.build()).replace().execute().await?;
        }
        Ok(())
    })
}

/// Gives the network card `name` its address, brings it and the loopback up, and routes everything else through
/// `gateway`.
///
/// # Errors
///
/// `no_network` when the card does not exist, or the kernel refuses.
pub fn configure(name: &str, address: Ipv4Addr, prefix: u8, gateway: Ipv4Addr) -> Result<(), Failure> {
    with_netlink(async |handle| {
        for (link, address) in [("lo", None), (name, Some(address))] {
            let mut found = handle.link().get().match_name(link.to_owned()).execute();
            let index = found
                .try_next()
                .await?
                .map(|link| link.header.index)
                .ok_or(rtnetlink::Error::RequestFailed)?;
            if let Some(address) = address {
                let added = handle.address().add(index, IpAddr::V4(address), prefix);
                added.execute().await?;
            }
            let up = LinkMessageBuilder::<LinkUnspec>::new().index(index).up().build();
            handle.link().set(up).execute().await?;
        }
        let out = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build();
        handle.route().add(out).execute().await
    })
}

/// The routes to set. The kernel prefers more specific ones, and two networks are either nested or disjoint. So it only
/// remains to leave out allowed networks within denied ones.
fn ways(allow: &[IpNet], deny: &[IpNet]) -> Vec<(Ipv4Net, Way)> {
    let of_ipv4 = |nets: &[IpNet]| -> Vec<Ipv4Net> {
        let ipv4 = nets.iter().filter_map(|net| match net {
            IpNet::V4(net) => Some(net.trunc()),
            IpNet::V6(_) => None,
        });
        ipv4.collect()
    };
    let denied = of_ipv4(deny);
    let allowed = of_ipv4(allow)
        .into_iter()
        .filter(|net| !denied.iter().any(|deny| deny.contains(net)));
    let mut ways: Vec<_> = allowed.map(|net| (net, Way::Through)).collect();
    ways.extend(denied.iter().map(|net| (*net, Way::Prohibited)));
    let everything = Ipv4Net::default();
    if !allow.is_empty() && !ways.iter().any(|(net, _)| *net == everything) {
        ways.push((everything, Way::Prohibited));
    }
    // Routes through the gateway come first: the last route may remove the one to the gateway.
    ways.sort_by_key(|(net, way)| (*way == Way::Prohibited, std::cmp::Reverse(net.prefix_len())));
    ways.dedup();
    ways
}

async fn default_route(handle: &Handle) -> Result<Option<RouteMessage>, rtnetlink::Error> {
    let any = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let mut routes = handle.route().get(any).execute();
    while let Some(route) = routes.try_next().await? {
        if route.header.destination_prefix_length == 0 && gateway_of(&route).is_some() {
            return Ok(Some(route));
        }
    }
    Ok(None)
}

fn gateway_of(route: &RouteMessage) -> Option<Ipv4Addr> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(gateway)) => Some(*gateway),
        _ => None,
    })
}

/// Runs `work` with a netlink socket of this thread's network namespace. Blocks.
fn with_netlink<T>(work: impl AsyncFnOnce(&Handle) -> Result<T, rtnetlink::Error>) -> Result<T, Failure> {
    let failed = |error: std::io::Error| Failure::io("cannot set up the network", &error);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(failed)?;
        let connection = tokio::spawn(connection);
        let done = work(&handle).await;
        connection.abort();
        done.map_err(|error| {
            Failure::new(
                Code::NoNetwork,
                format!("the kernel refuses the sandbox's network: {error}"),
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(allow: &[&str], deny: &[&str]) -> Vec<String> {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let ways = ways(&nets(allow), &nets(deny));
        ways.iter().map(|(net, way)| format!("{way:?} {net}")).collect()
    }

    #[test]
    fn what_is_denied_wins_over_what_is_allowed_wherever_they_meet() {
        assert_eq!(of(&[], &[]), [""; 0]);
        assert_eq!(
            of(&[], &["169.254.169.254/32", "fd00::/8"]),
            ["Prohibited 169.254.169.254/32"]
        );
        assert_eq!(
            of(&["10.1.0.0/16", "192.0.2.7/24"], &["10.0.0.0/8"]),
            ["Through 192.0.2.0/24", "Prohibited 10.0.0.0/8", "Prohibited 0.0.0.0/0"]
        );
        assert_eq!(
            of(&["10.0.0.0/8"], &["10.1.0.0/16"]),
            ["Through 10.0.0.0/8", "Prohibited 10.1.0.0/16", "Prohibited 0.0.0.0/0"]
        );
        assert_eq!(of(&["10.0.0.0/8"], &["10.0.0.0/8"])[0], "Prohibited 10.0.0.0/8");
        // An allow list without any IPv4 network allows nothing.
        assert_eq!(of(&["fd00::/8"], &[]), ["Prohibited 0.0.0.0/0"]);
        assert_eq!(
            of(&["0.0.0.0/0"], &["10.0.0.0/8"]),
            ["Through 0.0.0.0/0", "Prohibited 10.0.0.0/8"]
        );
    }
}
