//! Examines the Kubernetes cluster of the configuration: its API, the rights of Kiln's account, what its nodes can do, and
//! whether their pods find a toolbox in S3. Asks the API and S3, and changes nothing.

use std::sync::Arc;

use kiln_records::{Code, Failure, arch::Arch, run::Kernel};

use crate::{
    artifacts::ArtifactStore,
    config::Config,
    doctor::Finding,
    sandbox::{
        Driver,
        kubernetes::{Cluster, KubernetesDriver},
        toolboxes::Toolboxes,
    },
    site,
};

const AREA: &str = "cluster";

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    const WHAT: &str = "Kubernetes API";
    let cluster = match site::cluster(config, "doctor") {
        // Most sites have none.
        Ok(None) => return Vec::new(),
        Ok(Some(cluster)) => Arc::new(cluster),
        Err(failure) => return vec![broken(WHAT, &failure)],
    };
    let (version, namespace) = match cluster.version().await {
        Ok(found) => found,
        Err(failure) => return vec![broken(WHAT, &failure)],
    };
    let mut findings = vec![Finding::ok(
        AREA,
        WHAT,
        format!("{version}; jobs run in namespace {namespace}"),
    )];
    findings.push(rights(&cluster).await);
    let mut has_nodes = false;
    for arch in Arch::ALL {
        let driver = KubernetesDriver::new(Arc::clone(&cluster), arch);
        if driver.arch().await.is_err() {
            continue;
        }
        has_nodes = true;
        let shared = driver.shared_kernel().await;
        let has_shared = shared.is_ok();
        findings.push(match shared {
            Ok(()) => Finding::ok(AREA, "native pods", format!("{arch}: nodes give pods user namespaces")),
            // A site may want virtual machines only.
            Err(failure) => Finding::missing(AREA, "native pods", &failure, next(&failure)),
        });
        if has_shared {
            findings.extend(toolbox(config, arch, Kernel::Shared).await);
        }
        if config.kubernetes.vm_runtime.is_some() {
            const MACHINES: &str = "pods in virtual machines";
            findings.push(match driver.own_kernel().await {
                Ok(machine) => Finding::ok(AREA, MACHINES, format!("{arch}: {}", machine.what)),
                Err(failure) => broken(MACHINES, &failure),
            });
            findings.extend(toolbox(config, arch, Kernel::Own).await);
        }
    }
    if !has_nodes {
        findings.push(Finding::broken(
            AREA,
            "nodes",
            "no node is ready and takes jobs",
            "see `kubectl get nodes`, and `node_selector` and `tolerations` in [kubernetes]",
        ));
    }
    findings
}

/// Whether pods find their toolbox where they fetch it from S3.
async fn toolbox(config: &Config, arch: Arch, kernel: Kernel) -> Option<Finding> {
    const WHAT: &str = "toolbox of pods";
    let (true, Some(s3)) = (config.kubernetes.base_image.is_some(), &config.s3) else {
        return None;
    };
    let found = async {
        let toolbox = Toolboxes::named(arch);
        let (image, _) = site::image_of(config, &toolbox, kernel)?;
        let store = ArtifactStore::open(s3).await?;
        let (address, is_there) = store.find_layers(&image.toolbox_name()).await?;
        if is_there {
            return Ok(address);
        }
        let vm = if kernel == Kernel::Own { " --vm" } else { "" };
        Err(
            Failure::new(Code::ImageMissing, format!("{arch}: there is no {address}"))
                .hint(format!("kiln toolbox push{vm} --arch {arch}")),
        )
    };
    Some(match found.await {
        Ok(address) => Finding::ok(AREA, WHAT, format!("{arch}: {address}")),
        Err(failure) => broken(WHAT, &failure),
    })
}

async fn rights(cluster: &Cluster) -> Finding {
    const WHAT: &str = "rights in the cluster";
    match cluster.missing_rights().await {
        Ok(missing) if missing.is_empty() => Finding::ok(AREA, WHAT, "all that jobs need"),
        Ok(missing) => Finding::broken(
            AREA,
            WHAT,
            format!("missing: {}", missing.join(", ")),
            "kubectl apply -f examples/kubernetes/rbac.yaml",
        ),
        Err(failure) => broken(WHAT, &failure),
    }
}

fn broken(what: &'static str, failure: &Failure) -> Finding {
    Finding::broken(AREA, what, failure, next(failure))
}

fn next(failure: &Failure) -> String {
    let usual = || "see [kubernetes] in `kiln config show`".to_owned();
    failure.hint.clone().unwrap_or_else(usual)
}
