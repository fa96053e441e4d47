//! Judges a cluster's nodes: which can run sandboxes, and what they have. Pure: no I/O.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, Taint, Toleration},
    apimachinery::pkg::api::resource::Quantity,
};
use kiln_records::{Code, Failure, arch::Arch};

use super::wanted::PodSettings;
use crate::sandbox::Capacity;

/// The label with a node's own name, by which pods are tied to it.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The beginning of the taints by which a cluster says the state of a node.
const OF_STATE: &str = "node.kubernetes.io/";

/// The names of nodes that a message has at most.
const SOME: usize = 5;

/// The nodes of one architecture that take the site's jobs now: ready, not cordoned, with the labels and without taints
/// that are not tolerated.
pub(super) fn usable<'a>(nodes: &'a [Node], arch: Arch, settings: &PodSettings) -> Vec<&'a Node> {
    nodes
        .iter()
        .filter(|node| arch_of(node) == Some(arch) && is_ready(node) && takes(node, settings))
        .collect()
}

/// The nodes that would take such jobs if they were ready: they are away, or being restarted, or cordoned off.
pub(super) fn away<'a>(nodes: &'a [Node], arch: Arch, settings: &PodSettings) -> Vec<&'a Node> {
    let would_take = |node: &&Node| {
        let mut node = (*node).clone();
        if let Some(spec) = &mut node.spec {
            spec.unschedulable = None;
            // The cluster's own words for the state of a node.
            let taints = spec.taints.iter_mut();
            taints.for_each(|taints| taints.retain(|taint| !taint.key.starts_with(OF_STATE)));
        }
        takes(&node, settings)
    };
    let of_arch = nodes.iter().filter(|node| arch_of(node) == Some(arch));
    of_arch
        .filter(|node| !(is_ready(node) && takes(node, settings)))
        .filter(would_take)
        .collect()
}

/// The names of nodes, for people.
pub(super) fn some_names(nodes: &[&Node]) -> String {
    let mut names: Vec<_> = nodes.iter().filter_map(|node| node.metadata.name.as_deref()).collect();
    let more = names.len().saturating_sub(SOME);
    names.truncate(SOME);
    let names = names.join(", ");
    match more {
        0 => names,
        _ => format!("{names} and {more} more"),
    }
}

/// The CPU of a node, if there are toolboxes for it.
fn arch_of(node: &Node) -> Option<Arch> {
    let labels = node.metadata.labels.as_ref()?;
    let is_linux = labels.get("kubernetes.io/os").is_none_or(|os| os == "linux");
    let name = labels.get("kubernetes.io/arch")?;
    Arch::ALL.into_iter().find(|arch| is_linux && arch.oci() == name)
}

fn is_ready(node: &Node) -> bool {
    ready(node).is_some_and(|condition| condition.status == "True")
}

fn ready(node: &Node) -> Option<&NodeCondition> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.find(|condition| condition.type_ == "Ready")
}

/// Why nothing more will be heard of what runs on the node of this name, if so: the cluster does not hear it, or does not
/// have it any more.
pub(super) fn why_lost(nodes: &[Node], name: &str) -> Option<Failure> {
    let lost = |why: String| {
        let detail = format!("the pod's node went away: {why}");
        Some(Failure::new(Code::NodeLost, detail).hint(format!("`kubectl describe node {name}` shows more")))
    };
    let Some(node) = nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name)) else {
        return lost(format!("the cluster has no node {name}"));
    };
    // A node that says itself that it is not ready answers.
    let unheard = ready(node).filter(|condition| condition.status == "Unknown")?;
    let message = unheard.message.as_deref().unwrap_or("it does not answer");
    lost(format!("{name}: {message}"))
}

fn takes(node: &Node, settings: &PodSettings) -> bool {
    let Some(spec) = &node.spec else { return true };
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let mut taints = spec.taints.iter().flatten();
    spec.unschedulable != Some(true)
        && settings
            .node_selector
            .iter()
            .all(|(name, value)| labels.get(name) == Some(value))
        && taints.all(|taint| {
            taint.effect == "PreferNoSchedule"
                || settings
                    .tolerations
                    .iter()
                    .any(|toleration| tolerates(toleration, taint))
        })
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_any = toleration.operator.as_deref() == Some("Exists");
    toleration.key.as_ref() == Some(&taint.key)
        && toleration.effect.as_ref().is_none_or(|effect| *effect == taint.effect)
        && (is_any || toleration.value == taint.value)
}

/// The nodes whose usual runtime gives pods user namespaces: it says so itself.
///
/// # Errors
///
/// `no_user_namespace` when none does.
pub(super) fn with_user_namespaces<'a>(usable: &[&'a Node], arch: Arch) -> Result<Vec<&'a Node>, Failure> {
    let says_so = |node: &&&Node| {
        let handlers = node.status.as_ref().and_then(|status| status.runtime_handlers.as_ref());
        let mut handlers = handlers.into_iter().flatten();
        handlers.any(|handler| {
            let can = handler.features.as_ref().and_then(|features| features.user_namespaces);
            handler.name.as_deref().unwrap_or_default().is_empty() && can == Some(true)
        })
    };
    let able: Vec<_> = usable.iter().filter(says_so).copied().collect();
    if able.is_empty() {
        let detail = format!(
            "no {arch} node of the cluster says that its runtime gives pods user namespaces ({} looked at)",
            usable.len()
        );
        return Err(Failure::new(Code::NoUserNamespace, detail).hint(
            "nodes need Kubernetes 1.33, containerd 2 and runc 1.2 or newer, or CRI-O; otherwise `vm_runtime` in \
             [kubernetes] names a RuntimeClass of Kata Containers",
        ));
    }
    Ok(able)
}

/// The names of the usable nodes that say in which boot they are, unless all nodes do. On another one a pod could not tell
/// whether it is in a virtual machine, so none may go there.
///
/// # Errors
///
/// `not_isolated` when no usable node says it, or one that does not has the name by which pods are tied to another.
pub(super) fn only_with_boot(all: &[Node], usable: &[&Node], arch: Arch) -> Result<Option<Vec<String>>, Failure> {
    let silent: Vec<_> = all.iter().filter(|node| boot(node).is_none()).collect();
    if silent.is_empty() {
        return Ok(None);
    }
    let able = usable.iter().filter(|node| boot(node).is_some());
    let able: Vec<_> = able.filter_map(|node| name(node)).collect();
    if able.is_empty()
        || silent
            .iter()
            .any(|node| name(node).is_some_and(|name| able.contains(&name)))
    {
        let detail = format!(
            "no {arch} node of the cluster says which boot it is in, so a pod cannot tell whether it is in a virtual machine \
             ({} looked at)",
            usable.len()
        );
        return Err(Failure::new(Code::NotIsolated, detail)
            .hint("`kubectl get nodes --output yaml` shows `status.nodeInfo.bootID`, which the kubelet notes"));
    }
    Ok(Some(able))
}

/// The names of the nodes that can, unless all usable nodes can.
pub(super) fn only(able: &[&Node], usable: &[&Node]) -> Option<Vec<String>> {
    (able.len() < usable.len()).then(|| able.iter().filter_map(|node| name(node)).collect())
}

/// The name by which pods are tied to a node.
fn name(node: &Node) -> Option<String> {
    let labels = node.metadata.labels.as_ref();
    let own = labels.and_then(|labels| labels.get(HOSTNAME));
    own.or(node.metadata.name.as_ref()).cloned()
}

/// Whether a node has all of these labels, as a RuntimeClass may ask for.
pub(super) fn has_labels(node: &Node, wanted: &BTreeMap<String, String>) -> bool {
    let labels = node.metadata.labels.as_ref();
    wanted
        .iter()
        .all(|(name, value)| labels.and_then(|labels| labels.get(name)) == Some(value))
}

/// The boots of all nodes: a pod in a virtual machine has another kernel than any of them.
pub(super) fn boots(nodes: &[Node]) -> Vec<String> {
    nodes.iter().filter_map(boot).collect()
}

fn boot(node: &Node) -> Option<String> {
    let boot = node.status.as_ref()?.node_info.as_ref()?.boot_id.trim();
    (!boot.is_empty()).then(|| boot.to_owned())
}

/// The resources of these nodes together. Kubernetes itself counts what is left on each.
pub(super) fn capacity(usable: &[&Node]) -> Capacity {
    let sum = |resource: &str| -> u64 {
        let of = |node: &&Node| {
            node.status
                .as_ref()?
                .allocatable
                .as_ref()?
                .get(resource)
                .and_then(millis)
        };
        let total: u128 = usable.iter().filter_map(of).sum();
        u64::try_from(total / 1000).unwrap_or(u64::MAX)
    };
    let disk = sum("ephemeral-storage");
    Capacity {
        cpus: u32::try_from(sum("cpu")).unwrap_or(u32::MAX),
        memory: sum("memory"),
        disk_free: disk,
        disk_total: disk,
        inodes_free: 0,
        inodes_total: 0,
    }
}

/// The amount that a quantity of Kubernetes says, rounded down.
pub(super) fn amount(quantity: &Quantity) -> Option<u64> {
    millis(quantity).map(|millis| u64::try_from(millis / 1000).unwrap_or(u64::MAX))
}

/// A thousand times the amount that a quantity of Kubernetes says.
fn millis(quantity: &Quantity) -> Option<u128> {
    const SUFFIXES: [(&str, u128); 13] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("Pi", 1 << 50),
        ("Ei", 1 << 60),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("P", 1_000_000_000_000_000),
        ("E", 1_000_000_000_000_000_000),
        ("", 1),
    ];
    let text = quantity.0.trim();
    if let Some(number) = text.strip_suffix('m') {
        return number.parse().ok();
    }
    if let Some((number, exponent)) = text.split_once(['e', 'E'])
        && let Ok(exponent) = exponent.parse::<u32>()
    {
        return number
            .parse::<u128>()
            .ok()?
            .checked_mul(10_u128.checked_pow(exponent)?)?
            .checked_mul(1000);
    }
    let (suffix, factor) = SUFFIXES.iter().find(|(suffix, _)| text.ends_with(suffix))?;
    let number = text.strip_suffix(suffix)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let thousandths: u128 = format!("{part:0<3}").get(..3)?.parse().ok()?;
    (whole.parse::<u128>().ok()?.checked_mul(1000)? + thousandths).checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, arch: &str, change: impl FnOnce(&mut Value)) -> Node {
        let mut node = json!({
            "metadata": {"name": name, "labels": {
                "kubernetes.io/arch": arch, "kubernetes.io/os": "linux", "kubernetes.io/hostname": name
            }},
            "spec": {},
            "status": {
                "allocatable": {"cpu": "3920m", "memory": "16Gi", "ephemeral-storage": "47093746742", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {
                    "architecture": arch, "bootID": format!("boot-of-{name}"), "containerRuntimeVersion": "containerd://2.1.9",
                    "kernelVersion": "6.18", "kubeProxyVersion": "", "kubeletVersion": "v1.36.2", "machineID": "",
                    "operatingSystem": "linux", "osImage": "", "systemUUID": ""
                },
                "runtimeHandlers": [
                    {"name": "", "features": {"userNamespaces": true}},
                    {"name": "kata-qemu", "features": {"userNamespaces": false}}
                ]
            }
        });
        change(&mut node);
        serde_json::from_value(node).unwrap()
    }

    fn names(nodes: &[&Node]) -> Vec<String> {
        nodes.iter().map(|node| node.metadata.name.clone().unwrap()).collect()
    }

    #[test]
    fn nodes_that_are_only_away_are_told_from_those_that_never_take_jobs() {
        let settings = PodSettings {
            node_selector: BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]),
            ..PodSettings::default()
        };
        let taint = |node: &mut Value, key: &str| {
            node["spec"]["taints"] = json!([{"key": key, "effect": "NoSchedule"}]);
        };
        let nodes = [
            node("ready", "amd64", |_| {}),
            node("silent", "amd64", |node| {
                node["status"]["conditions"][0]["status"] = json!("Unknown");
                taint(node, "node.kubernetes.io/unreachable");
            }),
            node("cordoned", "amd64", |node| {
                node["spec"]["unschedulable"] = json!(true);
                taint(node, "node.kubernetes.io/unschedulable");
            }),
            node("of-others", "amd64", |node| taint(node, "dedicated")),
            node("windows", "amd64", |node| {
                node["metadata"]["labels"]["kubernetes.io/os"] = json!("windows");
            }),
            node("arm", "arm64", |node| node["status"]["conditions"] = json!([])),
        ];
        let found = away(&nodes, Arch::X86_64, &settings);
        assert_eq!(names(&found), ["silent", "cordoned"]);
        assert_eq!(some_names(&found), "silent, cordoned");
        assert_eq!(names(&away(&nodes, Arch::Aarch64, &settings)), ["arm"]);
        let many = vec![&nodes[0]; 7];
        assert!(some_names(&many).ends_with("ready and 2 more"));
    }

    #[test]
    fn only_nodes_that_take_jobs_count() {
        let tainted = |node: &mut Value| {
            node["spec"]["taints"] = json!([{"key": "dedicated", "value": "kiln", "effect": "NoSchedule"}]);
        };
        let nodes = [
            node("one", "amd64", |_| ()),
            node("away", "amd64", |node| {
                node["status"]["conditions"][0]["status"] = "Unknown".into();
            }),
            node("cordoned", "amd64", |node| node["spec"]["unschedulable"] = true.into()),
            node("tainted", "amd64", tainted),
            node("arm", "arm64", |_| ()),
            node("windows", "amd64", |node| {
                node["metadata"]["labels"]["kubernetes.io/os"] = "windows".into();
            }),
        ];
        let mut settings = PodSettings::default();
        assert_eq!(names(&usable(&nodes, Arch::X86_64, &settings)), ["one"]);
        assert_eq!(names(&usable(&nodes, Arch::Aarch64, &settings)), ["arm"]);
        assert!(usable(&nodes, Arch::Riscv64, &settings).is_empty());
        settings.tolerations = vec![Toleration {
            key: Some("dedicated".to_owned()),
            operator: Some("Equal".to_owned()),
            value: Some("kiln".to_owned()),
            ..Default::default()
        }];
        assert_eq!(names(&usable(&nodes, Arch::X86_64, &settings)), ["one", "tainted"]);
        settings.node_selector = BTreeMap::from([("pool".to_owned(), "build".to_owned())]);
        assert!(usable(&nodes, Arch::X86_64, &settings).is_empty());
        assert_eq!(boots(&nodes).len(), 6);
    }

    #[test]
    fn user_namespaces_are_there_where_the_usual_runtime_says_so() {
        let without =
            |node: &mut Value| node["status"]["runtimeHandlers"][0]["features"]["userNamespaces"] = false.into();
        let silent = |node: &mut Value| {
            node["status"].as_object_mut().unwrap().remove("runtimeHandlers");
        };
        let kata_only = |node: &mut Value| {
            node["status"]["runtimeHandlers"] = json!([{"name": "kata", "features": {"userNamespaces": true}}]);
        };
        let nodes = [
            node("new", "amd64", |_| ()),
            node("old", "amd64", silent),
            node("runc", "amd64", without),
            node("kata", "amd64", kata_only),
        ];
        let usable = usable(&nodes, Arch::X86_64, &PodSettings::default());
        let able = with_user_namespaces(&usable, Arch::X86_64).unwrap();
        assert_eq!(only(&able, &usable), Some(vec!["new".to_owned()]));
        assert_eq!(only(&usable, &usable), None);
        let failure = with_user_namespaces(&usable[1..], Arch::X86_64).unwrap_err();
        assert_eq!(failure.code, Code::NoUserNamespace);
        assert!(failure.detail.contains("3 looked at"), "{failure}");
    }

    #[test]
    fn resources_are_added_up() {
        let nodes = [node("one", "amd64", |_| ()), node("two", "amd64", |_| ())];
        let usable = usable(&nodes, Arch::X86_64, &PodSettings::default());
        let capacity = capacity(&usable);
        assert_eq!((capacity.cpus, capacity.memory), (7, 32 << 30));
        assert_eq!(
            (capacity.disk_total, capacity.disk_free),
            (94_187_493_484, 94_187_493_484)
        );
    }

    #[test]
    fn quantities_are_read_in_all_their_forms() {
        for (text, thousandths) in [
            ("2", 2000),
            ("1500m", 1500),
            ("1.5", 1500),
            ("4k", 4_000_000),
            ("1Ki", 1_024_000),
            ("2e3", 2_000_000),
            ("0.5Gi", 512 * 1024 * 1024 * 1000),
        ] {
            assert_eq!(millis(&Quantity(text.to_owned())), Some(thousandths), "{text}");
        }
        for text in ["", "x", "1.x", "Ki"] {
            assert_eq!(millis(&Quantity(text.to_owned())), None, "{text}");
        }
    }
    #[test]
    fn a_node_that_does_not_say_its_boot_takes_no_pod_of_a_machine() {
        let node = |name: &str, boot: &str| -> Node {
            let info = json!({
                "architecture": "", "bootID": boot, "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""
            });
            let labels = json!({"kubernetes.io/hostname": name});
            let node = json!({"metadata": {"name": name, "labels": labels}, "status": {"nodeInfo": info}});
            serde_json::from_value(node).unwrap()
        };
        let only = |all: &[Node], usable: &[&Node]| only_with_boot(all, usable, Arch::X86_64);
        let all = [node("one", "1"), node("two", "2"), node("three", "")];
        assert_eq!(only(&all[..2], &[&all[0], &all[1]]), Ok(None));
        let names = vec!["one".to_owned(), "two".to_owned()];
        assert_eq!(only(&all, &[&all[0], &all[1], &all[2]]), Ok(Some(names.clone())));
        // A node that is away now may be back before the pod has a node.
        assert_eq!(only(&all, &[&all[0], &all[1]]), Ok(Some(names)));
        assert_eq!(only(&all, &[&all[2]]).unwrap_err().code, Code::NotIsolated);
        // Two of one name cannot be told apart.
        let twins = [node("one", "1"), node("one", " ")];
        assert_eq!(only(&twins, &[&twins[0]]).unwrap_err().code, Code::NotIsolated);
    }
}
