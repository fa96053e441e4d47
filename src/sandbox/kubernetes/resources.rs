//! Describes what a pod gets of its node: CPUs, memory, and the volumes with its disk space and its order. Pure: no I/O.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        EmptyDirVolumeSource, EphemeralVolumeSource, PersistentVolumeClaimSpec, PersistentVolumeClaimTemplate,
        ResourceRequirements, SecretVolumeSource, Volume, VolumeMount, VolumeResourceRequirements,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kiln_inside::room::order::{FETCHED, ORDER_DIR, PROGRAMS_OF_IMAGE, TOOLBOX, VOLUME};

use super::wanted::Wanted;
use crate::sandbox::Limits;

/// The names of the volumes: disk space, the order, where the sandbox is assembled, and a toolbox that is fetched.
const DISK: &str = "volume";
const ORDER: &str = "order";
const STAGE: &str = "stage";
const TOOLBOX_VOLUME: &str = "toolbox";

/// The part of the disk limit by which the volume is larger: Kiln itself ends a job at its limit, with a better reason
/// than the eviction of a pod.
const SLACK: u64 = 10;

/// Room on the node's disk for what is not on the volume: the output of the pod, and its container's own files.
const BESIDE_VOLUME: u64 = 256 << 20;

/// Room on the node's disk for a toolbox that is fetched, packed and unpacked: `kiln toolbox push` refuses larger ones.
pub(super) const TOOLBOX_ROOM: u64 = 3 << 30;

/// Where the container has its volumes.
pub(super) fn mounts(wanted: &Wanted<'_>) -> Vec<VolumeMount> {
    let mut mounts = vec![
        mount(DISK, VOLUME, false),
        mount(ORDER, ORDER_DIR, true),
        mount(STAGE, "/tmp", false),
    ];
    if wanted.fetches {
        // Where an image of its own would have them.
        mounts.extend([TOOLBOX, PROGRAMS_OF_IMAGE].map(|path| VolumeMount {
            sub_path: Some(path.trim_start_matches('/').to_owned()),
            ..mount(TOOLBOX_VOLUME, path, true)
        }));
    }
    mounts
}

/// Where the container that fetches the toolbox has its volumes.
pub(super) fn fetching_mounts() -> Vec<VolumeMount> {
    vec![mount(TOOLBOX_VOLUME, FETCHED, false), mount(ORDER, ORDER_DIR, true)]
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..Default::default()
    }
}

/// Memory and disk space are reserved in full: a node that has promised too much of them evicts pods. CPUs are shared.
pub(super) fn resources(wanted: &Wanted<'_>) -> ResourceRequirements {
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
    let of_toolbox = if wanted.fetches { TOOLBOX_ROOM } else { 0 };
    add("ephemeral-storage", on_node.map(|size| size + of_toolbox));
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

pub(super) fn volumes(wanted: &Wanted<'_>) -> Vec<Volume> {
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
            ..named(DISK)
        },
        None => Volume {
            empty_dir: Some(EmptyDirVolumeSource {
                size_limit: size.map(|size| Quantity(size.to_string())),
                ..Default::default()
            }),
            ..named(DISK)
        },
    };
    let order = Volume {
        secret: Some(SecretVolumeSource {
            secret_name: Some(wanted.name.clone()),
            default_mode: Some(0o400),
            ..Default::default()
        }),
        ..named(ORDER)
    };
    let stage = Volume {
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(Quantity("1Mi".to_owned())),
        }),
        ..named(STAGE)
    };
    let toolbox = wanted.fetches.then(|| Volume {
        empty_dir: Some(EmptyDirVolumeSource {
            size_limit: Some(Quantity(TOOLBOX_ROOM.to_string())),
            ..Default::default()
        }),
        ..named(TOOLBOX_VOLUME)
    });
    [disk, order, stage].into_iter().chain(toolbox).collect()
}
