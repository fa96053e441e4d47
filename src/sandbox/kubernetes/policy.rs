//! Describes the NetworkPolicy of a sandbox: what its pod may reach, and that nothing reaches it. The first process sets
//! routes that say the same for IPv4; without a network plugin for policies they are all there is. Pure: no I/O.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::IpNet;
use k8s_openapi::{
    api::networking::v1::{
        IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};

use super::wanted::{JOB, Wanted};
use crate::sandbox::Reach;

/// The address at which nodes answer name queries where NodeLocal DNSCache is installed.
const NODE_LOCAL_DNS: Ipv4Addr = Ipv4Addr::new(169, 254, 20, 10);

/// The policy for a sandbox that may reach these networks, and the server at this address.
pub(super) fn policy(
    wanted: &Wanted<'_>,
    owner: OwnerReference,
    reach: &Reach,
    server: Option<IpAddr>,
) -> NetworkPolicy {
    let pods = BTreeMap::from([(JOB.to_owned(), wanted.job.to_string())]);
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(wanted.name.clone()),
            labels: Some(wanted.labels()),
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector {
                match_labels: Some(pods),
                ..Default::default()
            }),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            // Nothing may come in.
            ingress: None,
            egress: Some(egress(wanted, reach, server)),
        }),
    }
}

fn egress(wanted: &Wanted<'_>, reach: &Reach, server: Option<IpAddr>) -> Vec<NetworkPolicyEgressRule> {
    let to = |to: Vec<NetworkPolicyPeer>| NetworkPolicyEgressRule {
        to: Some(to),
        ports: None,
    };
    let everything = [IpNet::from(ipnet::Ipv4Net::default())];
    let reached: &[IpNet] = if reach.allow.is_empty() {
        &everything
    } else {
        &reach.allow
    };
    let is_denied = |net: &IpNet| reach.deny.iter().any(|deny| deny.contains(net));
    let reached: Vec<_> = reached
        .iter()
        .filter(|net| !is_denied(net))
        .map(|net| block(net, &reach.deny))
        .collect();
    // A rule without destinations would allow all of them.
    let mut rules = if reached.is_empty() {
        Vec::new()
    } else {
        vec![to(reached)]
    };
    let mut servers: Vec<_> = server.map(|address| block(&address.into(), &[])).into_iter().collect();
    if !wanted.settings.server_labels.is_empty() {
        servers.push(NetworkPolicyPeer {
            pod_selector: Some(LabelSelector {
                match_labels: Some(wanted.settings.server_labels.clone()),
                ..Default::default()
            }),
            ..Default::default()
        });
    }
    if !servers.is_empty() {
        rules.push(to(servers));
    }
    // Wherever the cluster's name servers are: policies see their pods, their nodes or their service.
    let port = |protocol: &str| NetworkPolicyPort {
        port: Some(IntOrString::Int(53)),
        protocol: Some(protocol.to_owned()),
        ..Default::default()
    };
    let cluster = NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector::default()),
        ..Default::default()
    };
    rules.push(NetworkPolicyEgressRule {
        to: Some(vec![
            cluster,
            block(&everything[0], &reach.deny),
            block(&IpAddr::from(NODE_LOCAL_DNS).into(), &[]),
        ]),
        ports: Some(vec![port("UDP"), port("TCP")]),
    });
    rules
}

/// A network without the parts that are denied.
fn block(net: &IpNet, deny: &[IpNet]) -> NetworkPolicyPeer {
    let except: Vec<String> = deny
        .iter()
        .filter(|deny| net.contains(*deny) && *deny != net)
        .map(IpNet::to_string)
        .collect();
    NetworkPolicyPeer {
        ip_block: Some(IPBlock {
            cidr: net.to_string(),
            except: (!except.is_empty()).then_some(except),
        }),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::{
        Kernel,
        kubernetes::pod::{
            self,
            tests::{plain, wanted},
        },
    };

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn what_jobs_may_reach() {
        let settings = plain();
        let mut with_labels = plain();
        with_labels.server_labels = BTreeMap::from([("app".to_owned(), "kiln".to_owned())]);
        let deny = nets(&["169.254.0.0/16", "10.0.0.7/32", "fd00:ec2::254/128"]);
        let server = Some("10.0.0.7".parse().unwrap());
        let made = |settings, allow: &[&str]| {
            let wanted = wanted(Kernel::Shared, settings);
            let reach = Reach {
                allow: nets(allow),
                deny: deny.clone(),
            };
            policy(&wanted, pod::owner(&pod::job(&wanted)), &reach, server)
        };
        insta::assert_json_snapshot!("everything_else", made(&settings, &[]).spec);
        // A network within a denied one stays denied.
        let some = made(&with_labels, &["10.0.0.0/24", "198.51.100.0/24", "169.254.1.0/24"]);
        insta::assert_json_snapshot!("some_networks", some.spec);
        // Where all that is allowed is denied, the rules for the server and for name servers are left.
        let nothing = made(&settings, &["169.254.1.0/24"]).spec.unwrap().egress.unwrap();
        assert_eq!(nothing.len(), 2);
        assert!(nothing.iter().all(|rule| !rule.to.as_ref().unwrap().is_empty()));
    }
}
