//! Describes a sandbox's container for the engine; nothing about it is decided elsewhere. Pure: no I/O.

use std::{collections::HashMap, path::PathBuf};

use bollard::models::{ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, ResourcesUlimits};
use kiln_inside::room::order::{COMMAND, DOORS, ENTRANCE, PROGRAMS, VOLUME};
use kiln_records::JobId;

use crate::sandbox::{Kernel, Limits};

/// Labels of everything that Kiln makes at an engine: the installation that made it, and its job.
pub(super) const INSTALLATION: &str = "kiln.installation";
pub(super) const JOB: &str = "kiln.job";

/// The label with the directory of the server's sockets on the server's host.
pub(super) const DOORS_HERE: &str = "kiln.doors";

/// The label with a warning, set when the place could not give something that was asked for.
pub(super) const WARNING: &str = "kiln.warning";

/// Processes of the container's first process itself, in addition to the job's.
const OWN_PIDS: u32 = 8;

/// Docker's default for `/dev/shm`, which builds expect.
const SHM_BYTES: i64 = 64 << 20;

/// What containers on the engine's own kernel need from it.
#[derive(Debug, Clone, Default)]
pub(super) struct Options {
    /// Options of security.
    pub(super) security: Vec<String>,
    /// Limits of processes; none where the engine's defaults do.
    pub(super) ulimits: Option<Vec<ResourcesUlimits>>,
}

/// The properties in which containers differ.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) job: JobId,
    pub(super) labels: HashMap<String, String>,
    pub(super) image: &'a str,
    pub(super) kernel: Kernel,
    /// The runtime with virtual machines, if one is asked for.
    pub(super) runtime: Option<&'a str>,
    pub(super) limits: Limits,
    /// The volume with the agent and the disk space, if the container has one.
    pub(super) volume: Option<&'a str>,
    /// The directory with the server's sockets, on the engine's host.
    pub(super) doors: Option<PathBuf>,
    pub(super) network: &'a str,
    /// Whether the first process sets up routes.
    pub(super) sets_routes: bool,
    /// What the engine needs for a container on its own kernel.
    pub(super) options: Options,
    /// Arguments of the first process, after its subcommand.
    pub(super) arguments: Vec<String>,
}

/// The description of a container.
pub(super) fn body(wanted: &Wanted<'_>) -> ContainerCreateBody {
    let hostname = wanted.job.to_string();
    let entrance = match wanted.volume {
        Some(_) => format!("{VOLUME}/{PROGRAMS}/{ENTRANCE}"),
        None => format!("/{ENTRANCE}"),
    };
    let mut command = vec![entrance, COMMAND.to_owned()];
    command.extend(wanted.arguments.iter().cloned());
    ContainerCreateBody {
        hostname: Some(format!("kiln-{}", &hostname[..8])),
        user: Some("0:0".to_owned()),
        // The order arrives there, once; a first process without an order ends.
        open_stdin: Some(true),
        stdin_once: Some(true),
        attach_stdin: Some(true),
        env: Some(Vec::new()),
        image: Some(wanted.image.to_owned()),
        entrypoint: Some(command),
        cmd: Some(Vec::new()),
        labels: Some(wanted.labels.clone()),
        host_config: Some(host(wanted)),
        ..Default::default()
    }
}

fn host(wanted: &Wanted<'_>) -> HostConfig {
    let volume = wanted.volume.map(|name| Mount {
        typ: Some(MountType::VOLUME),
        target: Some(VOLUME.to_owned()),
        source: Some(name.to_owned()),
        ..Default::default()
    });
    let doors = wanted.doors.as_ref().map(|dir| Mount {
        typ: Some(MountType::BIND),
        target: Some(DOORS.to_owned()),
        source: Some(dir.display().to_string()),
        read_only: Some(true),
        ..Default::default()
    });
    let limits = &wanted.limits;
    let memory = limits.memory.and_then(|bytes| i64::try_from(bytes).ok());
    let common = HostConfig {
        mounts: Some(volume.into_iter().chain(doors).collect()),
        network_mode: Some(wanted.network.to_owned()),
        readonly_rootfs: Some(true),
        // The sandbox is assembled there.
        tmpfs: Some([("/tmp".to_owned(), "size=1m,mode=755".to_owned())].into()),
        memory,
        // The limit of memory and swap together equals that of memory: no swap.
        memory_swap: memory,
        nano_cpus: limits.cpus.map(|cpus| i64::from(cpus) * 1_000_000_000),
        pids_limit: Some(i64::from(limits.pids + OWN_PIDS)),
        // A user namespace cannot mount its own /proc beside one with covered parts. Only the first process sees this
        // /proc.
        masked_paths: Some(Vec::new()),
        readonly_paths: Some(Vec::new()),
        privileged: Some(false),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(
                [
                    ("max-size".to_owned(), "4m".to_owned()),
                    ("max-file".to_owned(), "2".to_owned()),
                ]
                .into(),
            ),
        }),
        ..Default::default()
    };
    match wanted.kernel {
        Kernel::Shared => HostConfig {
            cap_drop: Some(vec!["ALL".to_owned()]),
            cap_add: Some(capabilities(wanted.sets_routes)),
            security_opt: Some([&["no-new-privileges".to_owned()], &*wanted.options.security].concat()),
            ulimits: wanted.options.ulimits.clone(),
            ..common
        },
        // All rights, but only over the machine's own kernel. Never `privileged`: the engine would pass in every
        // device of the host.
        Kernel::Own => HostConfig {
            runtime: wanted.runtime.map(str::to_owned),
            cap_add: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["seccomp=unconfined".to_owned(), "apparmor=unconfined".to_owned()]),
            // Loop devices.
            device_cgroup_rules: Some(vec!["b 7:* rwm".to_owned(), "c 10:237 rwm".to_owned()]),
            shm_size: Some(SHM_BYTES),
            ..common
        },
    }
}

/// The rights to map ids, and to set up routes before anything else runs.
fn capabilities(sets_routes: bool) -> Vec<String> {
    let mut names = vec!["SETUID".to_owned(), "SETGID".to_owned()];
    if sets_routes {
        names.push("NET_ADMIN".to_owned());
    }
    names
}

#[cfg(test)]
mod tests {
    use kiln_inside::room::filter;

    use super::*;

    fn wanted(kernel: Kernel) -> Wanted<'static> {
        Wanted {
            job: "00000000-0000-4000-8000-000000000001".parse().unwrap(),
            labels: HashMap::new(),
            image: "kiln-toolbox:1",
            kernel,
            runtime: (kernel == Kernel::Own).then_some("kata"),
            limits: Limits {
                memory: Some(1 << 30),
                cpus: Some(2),
                pids: 500,
                disk: None,
            },
            volume: Some("kiln-volume"),
            doors: None,
            network: "kiln",
            sets_routes: true,
            options: Options::default(),
            arguments: Vec::new(),
        }
    }

    #[test]
    fn no_container_is_privileged_and_none_on_the_hosts_kernel_has_rights() {
        for kernel in [Kernel::Shared, Kernel::Own] {
            let host = body(&wanted(kernel)).host_config.unwrap();
            assert_eq!(host.privileged, Some(false));
            assert_eq!(host.readonly_rootfs, Some(true));
            assert_eq!((host.memory, host.memory_swap), (Some(1 << 30), Some(1 << 30)));
            assert!(host.devices.is_none() && host.binds.is_none());
            assert_eq!(host.runtime.is_some(), kernel == Kernel::Own);
        }
        let host = body(&wanted(Kernel::Shared)).host_config.unwrap();
        assert_eq!(host.cap_drop.unwrap(), ["ALL"]);
        assert_eq!(host.cap_add.unwrap(), ["SETUID", "SETGID", "NET_ADMIN"]);
        let security = host.security_opt.unwrap();
        assert_eq!(security[0], "no-new-privileges");
        assert_eq!(host.pids_limit, Some(508));
    }

    #[test]
    fn the_seccomp_profile_lets_nobody_reach_the_kernels_own_things() {
        let profile: serde_json::Value = serde_json::from_str(filter::PROFILE).unwrap();
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        let rules = profile["syscalls"].as_array().unwrap();
        let names = |action: &str| -> Vec<&str> {
            let of = rules.iter().filter(|rule| rule["action"] == action);
            of.flat_map(|rule| rule["names"].as_array().unwrap())
                .map(|name| name.as_str().unwrap())
                .collect()
        };
        let allowed = names("SCMP_ACT_ALLOW");
        for name in [
            "init_module",
            "kexec_load",
            "bpf",
            "keyctl",
            "perf_event_open",
            "setns",
            "reboot",
            "swapon",
        ] {
            assert!(!allowed.contains(&name), "{name}");
        }
        for name in [
            "mount",
            "umount2",
            "unshare",
            "clone",
            "pivot_root",
            "chroot",
            "ptrace",
            "mknodat",
            "execve",
        ] {
            assert!(allowed.contains(&name), "{name}");
        }
        assert!(
            names("SCMP_ACT_ERRNO").contains(&"clone3"),
            "its flags cannot be looked at"
        );
    }
}
