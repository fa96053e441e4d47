//! The section `[kubernetes]`: a cluster for jobs. Pure: no I/O.

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{settings, settings::Period};

settings! {
    /// A Kubernetes cluster for jobs: one Job and one pod for each, on nodes of every architecture that the cluster has.
    /// See docs/kubernetes.md.
    ["kubernetes"]
    pub struct KubernetesSettings {
        /// Whether jobs run in the cluster.
        enabled: bool = false;
        /// The file with the cluster's address and the credentials. Default: the service account of this server's own
        /// pod or, outside a cluster, the files in `KUBECONFIG` or `~/.kube/config`.
        kubeconfig: Option<PathBuf> = None, like "\"/etc/kiln/kubeconfig\"";
        /// The context in that file. Default: its current one.
        context: Option<String> = None, like "\"build\"";
        /// The namespace of jobs. Default: that of the service account or of the context.
        namespace: Option<String> = None, like "\"kiln\"";
        /// The repository of the toolbox's images, without a tag. `kiln toolbox push` puts there what belongs there; the tag
        /// is derived from the content.
        image: Option<String> = None, like "\"registry.example.org/kiln-toolbox\"";
        /// An image with the agent of this version as `/usr/bin/kiln-agent`, such as that of the server, with its tag. Pods start
        /// from it, and fetch the toolbox from S3, where `kiln toolbox push` puts it. In place of `image`, for sites whose
        /// registry takes no images of the toolbox.
        base_image: Option<String> = None, like "\"registry.example.org/kiln:0.1.0\"";
        /// When nodes fetch the image: `IfNotPresent`, `Always` or `Never`.
        image_pull_policy: PullPolicy = PullPolicy::IfNotPresent;
        /// The names of secrets with the registry's credentials.
        image_pull_secrets: Vec<String> = Vec::new();
        /// The RuntimeClass that runs each pod in a virtual machine, such as `kata-qemu`. See kata/runtimeclass.yaml.
        vm_runtime: Option<String> = None, like "\"kata-qemu\"";
        /// Labels that nodes must have, beside those of the system and the architecture.
        node_selector: BTreeMap<String, String> = BTreeMap::new();
        /// Taints of nodes that jobs tolerate, as `kubectl taint` writes them: `KEY=VALUE:EFFECT`, `KEY:EFFECT`, `KEY`.
        tolerations: Vec<Toleration> = Vec::new();
        /// The priority class of pods. Default: that of the cluster.
        priority_class: Option<String> = None, like "\"batch\"";
        /// More labels of Jobs and pods.
        labels: BTreeMap<String, String> = BTreeMap::new();
        /// Annotations of pods, such as those of Kata Containers.
        annotations: BTreeMap<String, String> = BTreeMap::new();
        /// The number of CPUs that the scheduler reserves for each job. A job may use more, up to `cpus_per_job` in
        /// `[capacity]`. With 0 only the overhead of the RuntimeClass is reserved, so that a job fits a node with 2 CPUs.
        /// Memory and disk space are reserved up to the job's limits.
        request_cpus: u32 = 1;
        /// The storage class of volumes for the disk space of jobs. Default: none, so it is on the node's own disk.
        storage_class: Option<String> = None, like "\"fast\"";
        /// Labels of this server's own pods, if it runs in the same namespace: network plugins that do not count pods
        /// among addresses let jobs reach it by these.
        server_labels: BTreeMap<String, String> = BTreeMap::new();
        /// The time that a pod may wait for a node, its image and its start. Other limits count from its start.
        start: Period = Period::seconds(15 * 60);
        /// The type of the Service that each job with a shell gets: `LoadBalancer`, `NodePort` or `ClusterIP`. It leads to the
        /// server that carries the job out. Default: none, so users reach that server itself, at `host` in `[shell]`.
        shell_service: Option<ServiceType> = None, like "\"LoadBalancer\"";
        /// The name of the host that users of a shell are told; `{job}` in it stands for the job's id. Default: the address
        /// that the cluster gives the Service.
        shell_host: Option<String> = None, like "\"{job}.ims.example.com\"";
        /// Annotations of such Services; `{job}` in a value stands for the job's id.
        shell_annotations: BTreeMap<String, String> = BTreeMap::new();
        /// The IP address at which the cluster's nodes reach this server's shells. Default: the address from which this
        /// server calls the cluster's API, which is that of its pod.
        shell_endpoint: Option<IpAddr> = None, like "\"10.0.0.7\"";
    }
}

/// The type of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceType {
    /// With an address of a load balancer.
    LoadBalancer,
    /// With a port of every node.
    NodePort,
    /// With an address within the cluster.
    #[serde(rename = "ClusterIP")]
    ClusterIp,
}

/// When nodes fetch an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullPolicy {
    /// If they do not have it.
    IfNotPresent,
    /// Before each start.
    Always,
    /// Never: it was put there.
    Never,
}

impl PullPolicy {
    /// Its name in Kubernetes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::IfNotPresent => "IfNotPresent",
            Self::Always => "Always",
            Self::Never => "Never",
        }
    }
}

/// A taint that jobs tolerate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toleration {
    /// The taint's key.
    pub key: String,
    /// Its value; any, if none.
    pub value: Option<String>,
    /// Its effect; any, if none.
    pub effect: Option<String>,
}

impl FromStr for Toleration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        let (taint, effect) = match text.split_once(':') {
            Some((taint, effect)) if EFFECTS.contains(&effect) => (taint, Some(effect.to_owned())),
            Some((_, effect)) => return Err(format!("`{effect}` is none of {}", EFFECTS.join(", "))),
            None => (text, None),
        };
        let (key, value) = match taint.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (taint, None),
        };
        if key.is_empty() {
            return Err(format!("`{text}` names no taint such as dedicated=kiln:NoSchedule"));
        }
        Ok(Self {
            key: key.to_owned(),
            value,
            effect,
        })
    }
}

impl fmt::Display for Toleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if let Some(value) = &self.value {
            write!(f, "={value}")?;
        }
        match &self.effect {
            Some(effect) => write!(f, ":{effect}"),
            None => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for Toleration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Toleration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_are_written_as_taints() {
        for text in ["dedicated=kiln:NoSchedule", "dedicated:NoExecute", "dedicated", "a=b"] {
            assert_eq!(text.parse::<Toleration>().unwrap().to_string(), text);
        }
        for text in ["", ":NoSchedule", "a:Never"] {
            assert!(text.parse::<Toleration>().is_err(), "{text}");
        }
    }
}
