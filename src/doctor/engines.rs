//! Examines container engines, Kata and Kubernetes. Runs their programs, reads their files, and talks to the engine.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{
    config::{Config, DEFAULT_SOCKET},
    doctor::{Finding, State, ask, broken},
    sandbox::Driver,
    site,
};

const AREA: &str = "engines";

/// What to look at where a failure has no hint.
const CONFIGURED: &str = "see [docker] in `kiln config show`";

/// The machines of the engine, which are tried.
const MACHINES: &str = "its virtual machines";

/// Directories of Kata's shim besides PATH: where Kata 4 has it, and Kata 3. Then the places of its configuration (in
/// Kata's own order, most specific first).
const SHIM_DIRS: [&str; 3] = ["/opt/kata/runtime-rs/bin", "/opt/kata/bin", "/usr/local/bin"];
const KATA_CONFIGURATIONS: [&str; 6] = [
    "/etc/kata-containers/configuration.toml",
    "/opt/kata/share/defaults/kata-containers/runtime-rs/configuration-qemu-runtime-rs.toml",
    "/opt/kata/share/defaults/kata-containers/runtime-rs/configuration.toml",
    "/opt/kata/share/defaults/kata-containers/configuration.toml",
    "/usr/share/defaults/kata-containers/configuration.toml",
    "/usr/share/kata-containers/defaults/configuration.toml",
];

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = engine(config).await;
    let has_run = findings
        .iter()
        .any(|finding| finding.what == MACHINES && finding.state == State::Ok);
    findings.push(podman().await);
    findings.extend(kata(has_run));
    findings.extend(runtime_classes().await);
    findings
}

/// Tests the engine of the configuration.
async fn engine(config: &Config) -> Vec<Finding> {
    const WHAT: &str = "container engine";
    let (url, driver) = match (
        &config.docker.engine,
        site::docker_driver(config, |_| "doctor".to_owned()),
    ) {
        (None, _) | (_, Ok(None)) => {
            let there = Path::new(DEFAULT_SOCKET).exists();
            let detail = if there {
                "there is one, but Kiln does not use it"
            } else {
                "none is configured"
            };
            let next = format!("to run jobs there: `engine = \"unix://{DEFAULT_SOCKET}\"` in [docker]");
            return vec![Finding::missing(AREA, WHAT, detail, next)];
        }
        (Some(url), Ok(Some(driver))) => (url, driver),
        (Some(_), Err(failure)) => return vec![broken(AREA, WHAT, &failure, CONFIGURED)],
    };
    let arch = match driver.arch().await {
        Ok(arch) => arch,
        Err(failure) => return vec![broken(AREA, WHAT, &failure, CONFIGURED)],
    };
    let mut findings = vec![match driver.shared_kernel().await {
        Ok(()) => Finding::ok(AREA, WHAT, format!("{url}, {arch}: a container ran")),
        Err(failure) => broken(AREA, WHAT, &failure, CONFIGURED),
    }];
    if config.docker.vm_runtime.is_some() {
        findings.push(match driver.own_kernel().await {
            Ok(machine) => Finding::ok(AREA, MACHINES, format!("{}: one ran", machine.what)),
            Err(failure) => broken(AREA, MACHINES, &failure, CONFIGURED),
        });
    }
    findings
}

async fn podman() -> Finding {
    const WHAT: &str = "Podman";
    match ask("podman", &["--version"]).await {
        Ok(said) => Finding::ok(AREA, WHAT, format!("{said}; it cannot run Kata")),
        Err(why) => Finding::missing(
            AREA,
            WHAT,
            why,
            "apt install podman, where remote build nodes have no Docker",
        ),
    }
}

/// Looks at Kata's files. Whether a machine of the engine `has_run` says more than they do.
fn kata(has_run: bool) -> Vec<Finding> {
    const SHIM: &str = "containerd-shim-kata-v2";
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(SHIM_DIRS.map(PathBuf::from));
    let Some(shim) = dirs.map(|dir| dir.join(SHIM)).find(|file| file.exists()) else {
        let next = "install Kata Containers as kata/README.md shows";
        return vec![Finding::missing(AREA, "Kata", format!("no {SHIM}"), next)];
    };
    let mut findings = vec![Finding::ok(AREA, "Kata", shim.display())];
    let Some(file) = KATA_CONFIGURATIONS
        .into_iter()
        .map(Path::new)
        .find(|file| file.exists())
    else {
        let next = "copy the configuration from kata/ to /etc/kata-containers/";
        findings.push(Finding::missing(AREA, "Kata configuration", "there is none", next));
        return findings;
    };
    findings.push(Finding::ok(AREA, "Kata configuration", file.display()));
    findings.push(guest_kernel(file, has_run));
    findings
}

/// Whether Kata's kernel has the features for foreign builds. Its build configuration lies beside it.
fn guest_kernel(configuration: &Path, has_run: bool) -> Finding {
    const WHAT: &str = "Kata guest kernel";
    let next = "build the guest kernel with kata/kernel.conf";
    let text = fs_err::read_to_string(configuration).unwrap_or_default();
    let Some(kernel) = kernel_of(&text) else {
        return Finding::broken(AREA, WHAT, format!("{} names none", configuration.display()), next);
    };
    let kernel = fs_err::canonicalize(&kernel).unwrap_or(kernel);
    let name = kernel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let version = name.trim_start_matches("vmlinux-").trim_start_matches("vmlinuz-");
    let built_with = fs_err::read_to_string(kernel.with_file_name(format!("config-{version}"))).unwrap_or_default();
    if built_with.is_empty() {
        let next = "run a foreign job: its failure names a missing feature";
        if has_run {
            let detail = format!("{name}: a machine ran, and whether it has binfmt_misc is not known");
            return Finding::ok(AREA, WHAT, detail);
        }
        let detail = format!("{name}: its build configuration is missing");
        return Finding::missing(AREA, WHAT, detail, next);
    }
    let lacks: Vec<_> = ["CONFIG_BINFMT_MISC", "CONFIG_OVERLAY_FS", "CONFIG_SQUASHFS"]
        .into_iter()
        .filter(|option| {
            !["=y", "=m"]
                .iter()
                .any(|set| built_with.lines().any(|line| line == format!("{option}{set}")))
        })
        .collect();
    if lacks.is_empty() {
        Finding::ok(AREA, WHAT, format!("{name} has binfmt_misc"))
    } else {
        Finding::broken(AREA, WHAT, format!("{name} lacks {}", lacks.join(", ")), next)
    }
}

/// The kernel in a configuration of Kata.
fn kernel_of(configuration: &str) -> Option<PathBuf> {
    let table: toml::Table = configuration.parse().ok()?;
    let hypervisors = table.get("hypervisor")?.as_table()?;
    let kernel = hypervisors
        .values()
        .find_map(|hypervisor| hypervisor.get("kernel")?.as_str())?;
    Some(PathBuf::from(kernel))
}

/// The names of Kata in Kubernetes, if a client is configured.
async fn runtime_classes() -> Option<Finding> {
    const WHAT: &str = "Kubernetes RuntimeClass";
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
    let configured = std::env::var_os("KUBECONFIG").is_some() || home.is_some_and(|file| file.exists());
    if !configured {
        return None;
    }
    let said = match ask(
        "kubectl",
        &["get", "runtimeclasses", "--output=json", "--request-timeout=5s"],
    )
    .await
    {
        Ok(said) => said,
        Err(why) => return Some(Finding::broken(AREA, WHAT, why, "kubectl get runtimeclasses")),
    };
    let names = kata_classes(&said);
    Some(if names.is_empty() {
        Finding::missing(
            AREA,
            WHAT,
            "none with a Kata handler",
            "kubectl apply -f kata/runtimeclass.yaml",
        )
    } else {
        Finding::ok(AREA, WHAT, names.join(", "))
    })
}

fn kata_classes(json: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(json).unwrap_or_default();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let kata = items
        .iter()
        .filter(|item| item["handler"].as_str().is_some_and(|handler| handler.contains("kata")));
    kata.filter_map(|item| Some(item["metadata"]["name"].as_str()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_kernel_is_judged_by_how_it_was_built() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = dir.path().join("vmlinux-6.12.13-151");
        fs_err::write(&kernel, "").unwrap();
        let configuration = dir.path().join("configuration.toml");
        fs_err::write(
            &configuration,
            format!("[hypervisor.qemu]\nkernel = {:?}\n", kernel.display().to_string()),
        )
        .unwrap();
        let state = || guest_kernel(&configuration, false).state;
        assert_eq!(state(), crate::doctor::State::Missing);
        let built_with = dir.path().join("config-6.12.13-151");
        let lines = "CONFIG_OVERLAY_FS=y\nCONFIG_SQUASHFS=y\n";
        fs_err::write(&built_with, format!("{lines}# CONFIG_BINFMT_MISC is not set\n")).unwrap();
        assert_eq!(state(), crate::doctor::State::Broken);
        fs_err::write(&built_with, format!("{lines}CONFIG_BINFMT_MISC=m\n")).unwrap();
        assert_eq!(state(), crate::doctor::State::Ok);
    }

    #[test]
    fn kubernetes_classes_are_kata_by_their_handler() {
        let json = r#"{"items": [
            {"metadata": {"name": "kata-qemu"}, "handler": "kata-qemu"},
            {"metadata": {"name": "gvisor"}, "handler": "runsc"},
            {"metadata": {"name": "vm"}, "handler": "kata-qemu-runtime-rs"}]}"#;
        assert_eq!(kata_classes(json), ["kata-qemu", "vm"]);
        assert!(kata_classes("no json").is_empty());
    }
}
