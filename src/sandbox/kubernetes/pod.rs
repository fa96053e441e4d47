//! Describes a sandbox's Job, its pod and the secret with its order for the API; nothing about them is decided elsewhere.
//! Pure: no I/O.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::{
        batch::v1::{Job, JobSpec},
        core::v1::{
            Affinity, AppArmorProfile, Capabilities, Container, EmptyDirVolumeSource, EphemeralVolumeSource,
            LocalObjectReference, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
            PersistentVolumeClaimSpec, PersistentVolumeClaimTemplate, PodSpec, PodTemplateSpec, ResourceRequirements,
            SeccompProfile, Secret, SecretVolumeSource, SecurityContext, Toleration, Volume, VolumeMount,
            VolumeResourceRequirements,
        },
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, OwnerReference},
    },
};
use kiln_inside::room::order::{COMMAND, ENTRANCE, FROM, ORDER, ORDER_DIR, PROGRAMS_OF_IMAGE, VOLUME};
use kiln_records::{JobId, arch::Arch};

use crate::sandbox::{Kernel, Limits};

/// Labels of everything that Kiln makes in a cluster: the installation that made it, its job, and the architecture of its
/// place.
pub(super) const INSTALLATION: &str = "kiln.installation";
pub(super) const JOB: &str = "kiln.job";
pub(super) const ARCH: &str = "kiln.arch";

/// The label that every system for clusters shows, and its value.
const NAME: (&str, &str) = ("app.kubernetes.io/name", "kiln-job");

/// The pod's only container.
pub(super) const CONTAINER: &str = "sandbox";

/// The label of nodes with the architecture, the system, and the node's own name.
const NODE_ARCH: &str = "kubernetes.io/arch";
const NODE_OS: &str = "kubernetes.io/os";
const NODE_NAME: &str = "kubernetes.io/hostname";

/// A net behind Kiln's own deletion: the cluster deletes a Job that ended a day ago.
const TTL_S: i32 = 86_400;

/// A net far behind Kiln's own clocks: the deadline deletes the pod, and with it all that it could still say.
const DEADLINE_S: i64 = 30 * 86_400;

/// How long the agent may take to end its tools and tell its server.
const GRACE_S: i64 = 10;

/// The part of the disk limit by which the volume is larger: Kiln itself ends a job at its limit, with a better reason
/// than the eviction of a pod.
const SLACK: u64 = 10;

/// Room on the node's disk for what is not on the volume: the output of the pod, and its container's own files.
const BESIDE_VOLUME: u64 = 256 << 20;

/// The settings of a site that go into every pod.
#[derive(Debug, Clone, Default)]
pub struct PodSettings {
    /// The repository of the toolbox's images.
    pub image: String,
    /// When nodes fetch it, as Kubernetes calls that.
    pub pull_policy: String,
    /// Secrets with the registry's credentials.
    pub pull_secrets: Vec<String>,
    /// The RuntimeClass that runs pods in virtual machines.
    pub vm_runtime: Option<String>,
    /// Labels that nodes must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that are tolerated.
    pub tolerations: Vec<Toleration>,
    /// The priority class.
    pub priority_class: Option<String>,
    /// More labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations of pods.
    pub annotations: BTreeMap<String, String>,
    /// CPUs that are reserved.
    pub request_cpus: u32,
    /// The storage class of disk space, if it is not on the node's own disk.
    pub storage_class: Option<String>,
    /// Labels of the server's own pods.
    pub server_labels: BTreeMap<String, String>,
}

/// The properties in which the Jobs of sandboxes differ.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) job: JobId,
    pub(super) name: String,
    pub(super) installation: &'a str,
    pub(super) arch: Arch,
    pub(super) kernel: Kernel,
    /// With its tag.
    pub(super) image: String,
    pub(super) limits: Limits,
    /// Whether the first process sets up routes.
    pub(super) sets_routes: bool,
    /// The only nodes that can run it, if not all of its architecture can.
    pub(super) nodes: Option<Vec<String>>,
    pub(super) settings: &'a PodSettings,
}

impl Wanted<'_> {
    /// The labels of everything that belongs to the sandbox.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.settings.labels.clone();
        let own = [
            (NAME.0, NAME.1.to_owned()),
            (INSTALLATION, self.installation.to_owned()),
            (JOB, self.job.to_string()),
            (ARCH, self.arch.name().to_owned()),
        ];
        labels.extend(own.map(|(name, value)| (name.to_owned(), value)));
        labels
    }
}

/// The selector of a sandbox's pods.
pub(super) fn selector(installation: &str, job: JobId) -> String {
    format!("{INSTALLATION}={installation},{JOB}={job}")
}

/// The description of a sandbox's Job.
pub(super) fn job(wanted: &Wanted<'_>) -> Job {
    Job {
        metadata: ObjectMeta {
            name: Some(wanted.name.clone()),
            labels: Some(wanted.labels()),
            ..Default::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            active_deadline_seconds: Some(DEADLINE_S),
            ttl_seconds_after_finished: Some(TTL_S),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(wanted.labels()),
                    annotations: some(&wanted.settings.annotations),
                    ..Default::default()
                }),
                spec: Some(pod(wanted)),
            },
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn pod(wanted: &Wanted<'_>) -> PodSpec {
    let settings = wanted.settings;
    let is_shared = wanted.kernel == Kernel::Shared;
    let secrets = settings.pull_secrets.iter();
    PodSpec {
        restart_policy: Some("Never".to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        // In a virtual machine, ids of the host mean nothing, and Kata cannot do without them.
        host_users: is_shared.then_some(false),
        runtime_class_name: settings.vm_runtime.clone().filter(|_| !is_shared),
        termination_grace_period_seconds: Some(GRACE_S),
        affinity: Some(affinity(wanted)),
        node_selector: some(&settings.node_selector),
        tolerations: (!settings.tolerations.is_empty()).then(|| settings.tolerations.clone()),
        priority_class_name: settings.priority_class.clone(),
        image_pull_secrets: (!settings.pull_secrets.is_empty()).then(|| {
            secrets
                .map(|name| LocalObjectReference { name: name.clone() })
                .collect()
        }),
        containers: vec![container(wanted)],
        volumes: Some(volumes(wanted)),
        ..Default::default()
    }
}

fn container(wanted: &Wanted<'_>) -> Container {
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..Default::default()
    };
    let entrance = [
        &format!("{PROGRAMS_OF_IMAGE}/{ENTRANCE}"),
        COMMAND,
        FROM,
        &format!("{ORDER_DIR}/{ORDER}"),
    ];
    Container {
        name: CONTAINER.to_owned(),
        image: Some(wanted.image.clone()),
        image_pull_policy: Some(wanted.settings.pull_policy.clone()),
        command: Some(entrance.map(str::to_owned).to_vec()),
        resources: Some(resources(wanted)),
        security_context: Some(security(wanted)),
        volume_mounts: Some(vec![
            mount("volume", VOLUME, false),
            mount("order", ORDER_DIR, true),
            mount("stage", "/tmp", false),
        ]),
        ..Default::default()
    }
}

/// On a node's own kernel the container may only map ids, in a user namespace of its pod. In a virtual machine it has all
/// rights, but only over the machine's own kernel. Never `privileged`: that would pass in every device of the node.
fn security(wanted: &Wanted<'_>) -> SecurityContext {
    let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    let unconfined = "Unconfined".to_owned();
    let common = SecurityContext {
        privileged: Some(false),
        run_as_user: Some(0),
        run_as_group: Some(0),
        read_only_root_filesystem: Some(true),
        // The first process filters calls itself where that matters: the default profile forbids every mount, even to
        // root of a user namespace.
        seccomp_profile: Some(SeccompProfile {
            type_: unconfined.clone(),
            ..Default::default()
        }),
        ..Default::default()
    };
    match wanted.kernel {
        Kernel::Shared => SecurityContext {
            allow_privilege_escalation: Some(false),
            // The default profile forbids every mount, too.
            app_armor_profile: Some(AppArmorProfile {
                type_: unconfined,
                ..Default::default()
            }),
            // A user namespace cannot mount its own /proc beside one with covered parts.
            proc_mount: Some("Unmasked".to_owned()),
            capabilities: Some(Capabilities {
                drop: names(&["ALL"]),
                add: names(if wanted.sets_routes {
                    &["SETUID", "SETGID", "NET_ADMIN"]
                } else {
                    &["SETUID", "SETGID"]
                }),
            }),
            ..common
        },
        Kernel::Own => SecurityContext {
            capabilities: Some(Capabilities {
                add: names(&["ALL"]),
                drop: None,
            }),
            ..common
        },
    }
}

/// Memory and disk space are reserved in full: a node that has promised too much of them evicts pods. CPUs are shared.
fn resources(wanted: &Wanted<'_>) -> ResourceRequirements {
    let limits = &wanted.limits;
    let mut most = BTreeMap::new();
    let mut add = |name: &str, amount: Option<u64>| {
        if let Some(amount) = amount {
            most.insert(name.to_owned(), Quantity(amount.to_string()));
        }
    };
    add("cpu", limits.cpus.map(u64::from));
    add("memory", limits.memory);
    let on_node = match wanted.settings.storage_class {
        Some(_) => Some(BESIDE_VOLUME),
        None => volume_size(limits).map(|size| size + BESIDE_VOLUME),
    };
    add("ephemeral-storage", on_node);
    let mut reserved = most.clone();
    let cpus = limits.cpus.map_or(wanted.settings.request_cpus, |most| {
        most.min(wanted.settings.request_cpus)
    });
    reserved.insert("cpu".to_owned(), Quantity(cpus.to_string()));
    ResourceRequirements {
        limits: Some(most),
        requests: Some(reserved),
        ..Default::default()
    }
}

fn volume_size(limits: &Limits) -> Option<u64> {
    limits.disk.map(|disk| disk.bytes + disk.bytes / SLACK)
}

fn volumes(wanted: &Wanted<'_>) -> Vec<Volume> {
    let size = volume_size(&wanted.limits);
    let named = |name: &str| Volume {
        name: name.to_owned(),
        ..Default::default()
    };
    let disk = match &wanted.settings.storage_class {
        Some(class) => Volume {
            ephemeral: Some(EphemeralVolumeSource {
                volume_claim_template: Some(PersistentVolumeClaimTemplate {
                    metadata: Some(ObjectMeta {
                        labels: Some(wanted.labels()),
                        ..Default::default()
                    }),
                    spec: PersistentVolumeClaimSpec {
                        access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
                        storage_class_name: Some(class.clone()),
                        resources: Some(VolumeResourceRequirements {
                            requests: size
                                .map(|size| BTreeMap::from([("storage".to_owned(), Quantity(size.to_string()))])),
                            ..Default::default()
                        }),
                        ..Default::default()
                    },
                }),
            }),
            ..named("volume")
        },
        None => Volume {
            empty_dir: Some(EmptyDirVolumeSource {
                size_limit: size.map(|size| Quantity(size.to_string())),
                ..Default::default()
            }),
            ..named("volume")
        },
    };
    let order = Volume {
        secret: Some(SecretVolumeSource {
            secret_name: Some(wanted.name.clone()),
            default_mode: Some(0o400),
            ..Default::default()
        }),
        ..named("order")
    };
    let stage = Volume {
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(Quantity("1Mi".to_owned())),
        }),
        ..named("stage")
    };
    vec![disk, order, stage]
}

fn affinity(wanted: &Wanted<'_>) -> Affinity {
    let one_of = |key: &str, values: Vec<String>| NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: Some(values),
    };
    let mut of_nodes = vec![
        one_of(NODE_ARCH, vec![wanted.arch.oci().to_owned()]),
        one_of(NODE_OS, vec!["linux".to_owned()]),
    ];
    of_nodes.extend(wanted.nodes.clone().map(|nodes| one_of(NODE_NAME, nodes)));
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![NodeSelectorTerm {
                    match_expressions: Some(of_nodes),
                    ..Default::default()
                }],
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The reference by which an object goes with its Job.
pub(super) fn owner(job: &Job) -> OwnerReference {
    OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: "Job".to_owned(),
        name: job.metadata.name.clone().unwrap_or_default(),
        uid: job.metadata.uid.clone().unwrap_or_default(),
        controller: None,
        // Some clusters would ask for the right to change finalizers of Jobs.
        block_owner_deletion: Some(false),
    }
}

/// The order's secret. Its pod does not start before it is there.
pub(super) fn secret(wanted: &Wanted<'_>, owner: OwnerReference, order: Vec<u8>) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(wanted.name.clone()),
            labels: Some(wanted.labels()),
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        immutable: Some(true),
        type_: Some("kiln/order".to_owned()),
        data: Some(BTreeMap::from([(ORDER.to_owned(), ByteString(order))])),
        ..Default::default()
    }
}

fn some(map: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    (!map.is_empty()).then(|| map.clone())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sandbox::DiskLimit;

    pub(crate) fn wanted(kernel: Kernel, settings: &PodSettings) -> Wanted<'_> {
        Wanted {
            job: "00000000-0000-4000-8000-000000000001".parse().unwrap(),
            name: "kiln-0a1b2c3d-00000000-0000-4000-8000-000000000001".to_owned(),
            installation: "here",
            arch: Arch::Aarch64,
            kernel,
            image: "registry.example.org/kiln-toolbox:abc-1".to_owned(),
            limits: Limits {
                memory: Some(8 << 30),
                cpus: Some(4),
                pids: 500,
                disk: Some(DiskLimit {
                    bytes: 60 << 30,
                    inodes: 1_000_000,
                }),
            },
            sets_routes: true,
            nodes: None,
            settings,
        }
    }

    pub(crate) fn plain() -> PodSettings {
        PodSettings {
            image: "registry.example.org/kiln-toolbox".to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
            vm_runtime: Some("kata-qemu".to_owned()),
            request_cpus: 1,
            ..PodSettings::default()
        }
    }

    fn full() -> PodSettings {
        let pairs = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        PodSettings {
            pull_policy: "Always".to_owned(),
            pull_secrets: vec!["registry".to_owned()],
            node_selector: pairs("pool", "build"),
            tolerations: vec![Toleration {
                key: Some("dedicated".to_owned()),
                operator: Some("Exists".to_owned()),
                ..Default::default()
            }],
            priority_class: Some("batch".to_owned()),
            // Kiln's own labels win.
            labels: BTreeMap::from([
                ("team".to_owned(), "images".to_owned()),
                (JOB.to_owned(), "mine".to_owned()),
            ]),
            annotations: pairs("io.katacontainers.config.hypervisor.default_memory", "2048"),
            storage_class: Some("fast".to_owned()),
            ..plain()
        }
    }

    #[test]
    fn the_job_of_each_kind_of_sandbox() {
        let (plain, full) = (plain(), full());
        insta::assert_json_snapshot!("native", job(&wanted(Kernel::Shared, &plain)));
        insta::assert_json_snapshot!("vm", job(&wanted(Kernel::Own, &plain)));
        insta::assert_json_snapshot!(
            "with_settings",
            job(&Wanted {
                nodes: Some(vec!["one".to_owned(), "two".to_owned()]),
                ..wanted(Kernel::Shared, &full)
            })
        );
        let unlimited = Limits {
            memory: None,
            cpus: None,
            pids: 500,
            disk: None,
        };
        insta::assert_json_snapshot!(
            "without_limits",
            job(&Wanted {
                limits: unlimited,
                sets_routes: false,
                ..wanted(Kernel::Shared, &plain)
            })
        );
    }

    #[test]
    fn no_pod_is_privileged_and_none_gets_a_token_or_a_path_of_its_node() {
        let full = full();
        for kernel in [Kernel::Shared, Kernel::Own] {
            let pod = job(&wanted(kernel, &full)).spec.unwrap().template.spec.unwrap();
            assert_eq!(pod.automount_service_account_token, Some(false));
            assert_eq!(pod.host_users, (kernel == Kernel::Shared).then_some(false));
            assert!(pod.host_network.is_none() && pod.host_pid.is_none() && pod.host_ipc.is_none());
            let volumes = pod.volumes.unwrap();
            assert!(volumes.iter().all(|volume| volume.host_path.is_none()));
            let security = pod.containers[0].security_context.clone().unwrap();
            assert_eq!(security.privileged, Some(false));
            assert!(pod.containers[0].env.is_none());
        }
    }

    #[test]
    fn an_order_is_in_its_secret_only_which_goes_with_the_job() {
        let plain = plain();
        let wanted = wanted(Kernel::Shared, &plain);
        let mut made = job(&wanted);
        made.metadata.uid = Some("uid-of-the-job".to_owned());
        let secret = secret(&wanted, owner(&made), b"token".to_vec());
        insta::assert_json_snapshot!("secret", secret);
        assert!(!serde_json::to_string(&made).unwrap().contains("token\""));
    }
}
