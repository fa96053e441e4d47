//! Describes the Service of a job's shell. It has no selector: its Endpoints are the server that listens for the shell,
//! because nothing may call a job's pod. Pure: no I/O.
//!
//! ```text
//!  ssh ──▶ Service, port 22 ──▶ Endpoints: the server's address, the shell's port there ──▶ a line of the job's agent
//! ```

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::{
    api::core::v1::{
        EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Node, Service, ServicePort, ServiceSpec,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kiln_records::{JobId, shell::Address};

use crate::sandbox::ShellWay;

/// The port of every shell, as users of IMS expect it.
const PORT: u16 = 22;

/// The part of a configured text that stands for the job's id.
const JOB_ID: &str = "{job}";

/// The settings of a site for the Services of shells.
#[derive(Debug, Clone)]
pub struct ShellService {
    /// The type, as Kubernetes calls it.
    pub kind: ServiceKind,
    /// The host name that users are told, with `{job}` for the job's id.
    pub host: Option<String>,
    /// Annotations of the Service, with `{job}` for the job's id.
    pub annotations: BTreeMap<String, String>,
    /// The address at which the cluster reaches this server, if not the one that the server calls it from.
    pub endpoint: Option<IpAddr>,
}

/// The type of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceKind {
    /// It gets an address from a load balancer.
    LoadBalancer,
    /// It gets a port of every node.
    NodePort,
    /// It is reached from within the cluster.
    ClusterIp,
}

impl ServiceKind {
    const fn name(self) -> &'static str {
        match self {
            Self::LoadBalancer => "LoadBalancer",
            Self::NodePort => "NodePort",
            Self::ClusterIp => "ClusterIP",
        }
    }
}

/// A shell, and the server that listens for it.
#[derive(Debug)]
pub(super) struct Shell<'a> {
    pub(super) job: JobId,
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) owner: OwnerReference,
    pub(super) settings: &'a ShellService,
}

impl Shell<'_> {
    fn metadata(&self) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.name.clone()),
            labels: Some(self.labels.clone()),
            owner_references: Some(vec![self.owner.clone()]),
            ..ObjectMeta::default()
        }
    }

    fn filled(&self, text: &str) -> String {
        text.replace(JOB_ID, &self.job.to_string())
    }

    pub(super) fn service(&self) -> Service {
        let annotations = self.settings.annotations.iter();
        Service {
            metadata: ObjectMeta {
                annotations: Some(
                    annotations
                        .map(|(key, text)| (key.clone(), self.filled(text)))
                        .collect(),
                ),
                ..self.metadata()
            },
            spec: Some(ServiceSpec {
                type_: Some(self.settings.kind.name().to_owned()),
                ports: Some(vec![ServicePort {
                    port: i32::from(PORT),
                    protocol: Some("TCP".to_owned()),
                    ..ServicePort::default()
                }]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    }

    pub(super) fn endpoints(&self, server: IpAddr, port: u16) -> Endpoints {
        Endpoints {
            metadata: self.metadata(),
            subsets: Some(vec![EndpointSubset {
                addresses: Some(vec![EndpointAddress {
                    ip: server.to_string(),
                    ..EndpointAddress::default()
                }]),
                ports: Some(vec![EndpointPort {
                    port: i32::from(port),
                    protocol: Some("TCP".to_owned()),
                    ..EndpointPort::default()
                }]),
                ..EndpointSubset::default()
            }]),
        }
    }

    /// The addresses of a Service that the cluster has made, with these nodes.
    pub(super) fn way(&self, made: &Service, nodes: &[&Node]) -> ShellWay {
        let spec = made.spec.as_ref();
        let at = |host: String| Address { host, port: PORT };
        let named = self.settings.host.as_ref().map(|host| self.filled(host));
        let outside = match self.settings.kind {
            ServiceKind::LoadBalancer => named.or_else(|| given(made)).map(at),
            ServiceKind::ClusterIp => named.or_else(|| spec?.cluster_ip.clone()).map(at),
            ServiceKind::NodePort => {
                let port = spec.and_then(|spec| spec.ports.as_ref()?.first()?.node_port);
                let host = named.or_else(|| nodes.iter().find_map(|node| address(node)));
                host.zip(port.and_then(|port| u16::try_from(port).ok()))
                    .map(|(host, port)| Address { host, port })
            }
        };
        let namespace = made.metadata.namespace.as_deref().unwrap_or_default();
        ShellWay::Elsewhere {
            outside,
            inside: at(format!("{}.{namespace}.svc", self.name)),
        }
    }
}

/// The address that a load balancer gave.
fn given(made: &Service) -> Option<String> {
    let status = made.status.as_ref()?.load_balancer.as_ref()?;
    let first = status.ingress.as_ref()?.first()?;
    first.hostname.clone().or_else(|| first.ip.clone())
}

/// The address of a node: that for callers outside the cluster, if it has one.
fn address(node: &Node) -> Option<String> {
    let all = node.status.as_ref()?.addresses.as_ref()?;
    let of = |kind: &str| all.iter().find(|address| address.type_ == kind);
    Some(of("ExternalIP").or_else(|| of("InternalIP"))?.address.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(kind: ServiceKind, host: Option<&str>) -> ShellService {
        let dns = "external-dns.alpha.kubernetes.io/hostname".to_owned();
        ShellService {
            kind,
            host: host.map(str::to_owned),
            annotations: BTreeMap::from([(dns, "{job}.ims.example.com".to_owned())]),
            endpoint: None,
        }
    }

    fn shell(settings: &ShellService) -> Shell<'_> {
        let job: JobId = "00000000-0000-4000-8000-000000000001".parse().unwrap();
        Shell {
            job,
            name: format!("kiln-01234567-{job}"),
            labels: BTreeMap::from([("kiln.job".to_owned(), job.to_string())]),
            owner: OwnerReference::default(),
            settings,
        }
    }

    #[test]
    fn a_service_leads_to_the_server() {
        let settings = settings(ServiceKind::LoadBalancer, None);
        let shell = shell(&settings);
        let server = "10.0.0.7".parse().unwrap();
        insta::assert_json_snapshot!("shell", json!([shell.service(), shell.endpoints(server, 2201)]));
    }

    #[test]
    fn users_are_told_an_address_as_soon_as_there_is_one() {
        let ways = |kind, host, made| {
            let settings = settings(kind, host);
            let nodes = json!([
                {"status": {"addresses": [{"type": "Hostname", "address": "n0"}]}},
                {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}},
            ]);
            let nodes: Vec<Node> = serde_json::from_value(nodes).unwrap();
            let nodes: Vec<&Node> = nodes.iter().collect();
            let mut made: Service = serde_json::from_value(made).unwrap();
            made.metadata.namespace = Some("jobs".to_owned());
            let ShellWay::Elsewhere { outside, inside } = shell(&settings).way(&made, &nodes) else {
                panic!("there is a Service");
            };
            let name = "kiln-01234567-00000000-0000-4000-8000-000000000001.jobs.svc";
            assert_eq!((inside.host.as_str(), inside.port), (name, 22));
            outside.map(|at| format!("{}:{}", at.host, at.port))
        };
        let balanced = |ingress| json!({"status": {"loadBalancer": {"ingress": [ingress]}}});
        for (kind, host, made, expected) in [
            (ServiceKind::LoadBalancer, None, json!({}), None),
            (
                ServiceKind::LoadBalancer,
                None,
                balanced(json!({"ip": "198.51.100.4"})),
                Some("198.51.100.4:22"),
            ),
            (
                ServiceKind::LoadBalancer,
                None,
                balanced(json!({"ip": "198.51.100.4", "hostname": "lb.example.com"})),
                Some("lb.example.com:22"),
            ),
            (
                ServiceKind::LoadBalancer,
                Some("{job}.example.com"),
                json!({}),
                Some("00000000-0000-4000-8000-000000000001.example.com:22"),
            ),
            (
                ServiceKind::NodePort,
                None,
                json!({"spec": {"ports": [{"port": 22, "nodePort": 30022}]}}),
                Some("10.0.0.1:30022"),
            ),
            (
                ServiceKind::NodePort,
                Some("nodes.example.com"),
                json!({"spec": {"ports": [{"port": 22, "nodePort": 30022}]}}),
                Some("nodes.example.com:30022"),
            ),
            (
                ServiceKind::NodePort,
                Some("nodes.example.com"),
                json!({"spec": {"ports": [{"port": 22}]}}),
                None,
            ),
            (
                ServiceKind::ClusterIp,
                None,
                json!({"spec": {"clusterIP": "10.96.0.9"}}),
                Some("10.96.0.9:22"),
            ),
        ] {
            assert_eq!(ways(kind, host, made.clone()).as_deref(), expected, "{kind:?} {made}");
        }
    }
}
