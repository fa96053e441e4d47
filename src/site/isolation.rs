//! Chooses how a command that carries out jobs without a server isolates them. Asks the drivers for virtual machines,
//! which may boot one for a trial.

use std::path::Path;

use super::sandboxes::{docker_driver, namespace_driver};
use kiln_records::{
    Failure,
    arch::Arch,
    run::{DriverKind, Kernel},
};

use crate::{
    config::{Config, ForeignIsolation},
    orchestrate::runner::server_id,
    sandbox::Driver,
};

/// The device by which a CPU runs guests.
const KVM: &str = "/dev/kvm";

/// How jobs are isolated from this host, as a user asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// In a virtual machine each.
    Vm,
    /// In sandboxes on this host's kernel.
    Namespace,
    /// In a virtual machine if this host runs them fast, else on its kernel.
    Auto,
}

/// The choice, and the reason for it.
#[derive(Debug)]
pub struct Chosen {
    /// Whether jobs get a kernel of their own.
    pub kernel: Kernel,
    /// One sentence for the user.
    pub why: String,
}

impl Isolation {
    /// Chooses for this host, and sets the configuration accordingly.
    ///
    /// # Errors
    ///
    /// When this host cannot make sandboxes at all.
    pub async fn choose(self, config: &mut Config) -> Result<Chosen, Failure> {
        let chosen = match self {
            Self::Vm => Chosen::of(Kernel::Own, "as asked for"),
            Self::Namespace => Chosen::of(Kernel::Shared, "as asked for"),
            Self::Auto => automatic(config).await?,
        };
        config.isolation.foreign = match chosen.kernel {
            Kernel::Own => ForeignIsolation::Vm,
            Kernel::Shared => ForeignIsolation::Namespace,
        };
        config.jobs.enable_dkms = chosen.kernel == Kernel::Own;
        Ok(chosen)
    }
}

impl Chosen {
    fn of(kernel: Kernel, why: &str) -> Self {
        let kind = match kernel {
            Kernel::Own => "a virtual machine for each job",
            Kernel::Shared => "namespaces on this host's kernel",
        };
        let why = format!("isolation: {kind}, {why}");
        Self { kernel, why }
    }
}

/// A container engine with virtual machines first, then machines of this host that its CPU runs. A machine with an
/// emulated CPU takes tens of times as long, so a user, or `drivers` in `[isolation]`, has to ask for it.
async fn automatic(config: &Config) -> Result<Chosen, Failure> {
    if let Some((first, others)) = config.isolation.drivers.split_first()
        && others.iter().all(|driver| driver.kernel() == first.kernel())
    {
        return Ok(Chosen::of(
            first.kernel(),
            "since `drivers` in [isolation] names no other",
        ));
    }
    let installation = server_id(&config.data_dir)?.to_string();
    if config.docker.vm_runtime.is_some()
        && config.isolation.allows(DriverKind::Kata)
        && let Some(engine) = docker_driver(config, |_| installation)?
        && let Ok(machine) = engine.own_kernel().await
    {
        return Ok(Chosen::of(
            Kernel::Own,
            &format!("since the container engine has {}", machine.what),
        ));
    }
    if !Path::new(KVM).exists() {
        return Ok(Chosen::of(Kernel::Shared, &format!("since this host has no {KVM}")));
    }
    let driver = namespace_driver(config)?;
    let toolboxes = super::toolboxes(config)?;
    let why = match toolboxes.find(Arch::host()) {
        // The kernel of machines comes with the toolbox.
        None => "since there is no toolbox yet".to_owned(),
        Some(_) if !config.isolation.allows(DriverKind::Microvm) => {
            "since `drivers` in [isolation] does not name `microvm`".to_owned()
        }
        Some(_) => match driver.own_kernel().await {
            Ok(machine) if machine.accelerated => {
                return Ok(Chosen::of(
                    Kernel::Own,
                    &format!("since this host has {}", machine.what),
                ));
            }
            Ok(_) => format!("since machines do not boot with {KVM} here"),
            Err(failure) => format!("since this host has no virtual machines ({failure})"),
        },
    };
    Ok(Chosen::of(Kernel::Shared, &why))
}
