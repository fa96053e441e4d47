//! Describes a sandbox's Job, its pod and the secret with its order for the API; nothing about them is decided elsewhere.
//! Pure: no I/O.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::{
        batch::v1::{Job, JobSpec},
        core::v1::{
            Affinity, AppArmorProfile, Capabilities, Container, LocalObjectReference, NodeAffinity, NodeSelector,
            NodeSelectorRequirement, NodeSelectorTerm, PodSpec, PodTemplateSpec, SeccompProfile, Secret,
            SecurityContext,
        },
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kiln_inside::room::order::{COMMAND, ENTRANCE, FETCH, FETCHER, FROM, ORDER, ORDER_DIR, PROGRAMS_OF_IMAGE};

use super::{
    resources::{fetching_mounts, mounts, resources, volumes},
    wanted::Wanted,
};
use crate::sandbox::Kernel;

/// The pod's only container.
pub(super) const CONTAINER: &str = "sandbox";

/// The container that fetches the toolbox before that one starts.
pub(super) const FETCHING: &str = "toolbox";

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
        init_containers: wanted.fetches.then(|| vec![fetching(wanted)]),
        containers: vec![container(wanted)],
        volumes: Some(volumes(wanted)),
        ..Default::default()
    }
}

fn container(wanted: &Wanted<'_>) -> Container {
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
        command: Some(strings(&entrance)),
        resources: Some(resources(wanted)),
        security_context: Some(security(wanted)),
        volume_mounts: Some(mounts(wanted)),
        ..Default::default()
    }
}

/// The container that unpacks the toolbox. Its program is Kiln's own, and needs no right but to give files to their owners.
fn fetching(wanted: &Wanted<'_>) -> Container {
    let program = [FETCHER, COMMAND, FETCH, &format!("{ORDER_DIR}/{ORDER}")];
    Container {
        name: FETCHING.to_owned(),
        command: Some(strings(&program)),
        security_context: Some(SecurityContext {
            privileged: Some(false),
            allow_privilege_escalation: Some(false),
            run_as_user: Some(0),
            run_as_group: Some(0),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(strings(&["ALL"])),
                add: Some(strings(&["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"])),
            }),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        volume_mounts: Some(fetching_mounts()),
        ..container(wanted)
    }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// On a node's own kernel the container may only map ids, in a user namespace of its pod. In a virtual machine it has all
/// rights, but only over the machine's own kernel. Never `privileged`: that would pass in every device of the node.
fn security(wanted: &Wanted<'_>) -> SecurityContext {
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
                drop: Some(strings(&["ALL"])),
                add: Some(strings(if wanted.sets_routes {
                    &["SETUID", "SETGID", "NET_ADMIN"]
                } else {
                    &["SETUID", "SETGID"]
                })),
            }),
            ..common
        },
        Kernel::Own => SecurityContext {
            capabilities: Some(Capabilities {
                add: Some(strings(&["ALL"])),
                drop: None,
            }),
            ..common
        },
    }
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
    use k8s_openapi::api::core::v1::Toleration;
    use kiln_records::arch::Arch;

    use super::*;
    use crate::sandbox::{
        DiskLimit, Limits,
        kubernetes::wanted::{JOB, PodImage, PodSettings},
    };

    pub(crate) fn wanted(kernel: Kernel, settings: &PodSettings) -> Wanted<'_> {
        Wanted {
            job: "00000000-0000-4000-8000-000000000001".parse().unwrap(),
            name: "kiln-0a1b2c3d-00000000-0000-4000-8000-000000000001".to_owned(),
            installation: "here",
            arch: Arch::Aarch64,
            kernel,
            image: "registry.example.org/kiln-toolbox:abc-1".to_owned(),
            fetches: false,
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
            image: PodImage::WithToolbox("registry.example.org/kiln-toolbox".to_owned()),
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
            "that_fetches_its_toolbox",
            job(&Wanted {
                image: "registry.example.org/kiln:0.1.0".to_owned(),
                fetches: true,
                ..wanted(Kernel::Shared, &plain)
            })
        );
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
        for (kernel, fetches) in [
            (Kernel::Shared, false),
            (Kernel::Own, false),
            (Kernel::Shared, true),
            (Kernel::Own, true),
        ] {
            let wanted = Wanted {
                fetches,
                ..wanted(kernel, &full)
            };
            let pod = job(&wanted).spec.unwrap().template.spec.unwrap();
            assert_eq!(pod.automount_service_account_token, Some(false));
            assert_eq!(pod.host_users, (kernel == Kernel::Shared).then_some(false));
            assert!(pod.host_network.is_none() && pod.host_pid.is_none() && pod.host_ipc.is_none());
            let volumes = pod.volumes.unwrap();
            assert!(volumes.iter().all(|volume| volume.host_path.is_none()));
            let of_fetching = pod.init_containers.unwrap_or_default();
            assert_eq!(of_fetching.len(), usize::from(fetches));
            for container in of_fetching.iter().chain(&pod.containers) {
                let security = container.security_context.clone().unwrap();
                assert_eq!(security.privileged, Some(false));
                assert!(container.env.is_none());
            }
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
