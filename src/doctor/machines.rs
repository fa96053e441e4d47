//! Examines virtual machines on this host: QEMU, and whether KVM really runs one. Boots a test machine.

use std::path::Path;

use kiln_records::arch::Arch;

use crate::{
    config::Config,
    doctor::{Finding, ask},
    sandbox::{Driver, Machine},
    site,
};

const AREA: &str = "machines";

/// The device through which the CPU runs virtual machines.
const KVM: &str = "/dev/kvm";

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let program = format!("qemu-system-{}", Arch::host().name());
    let mut findings = vec![match ask(&program, &["--version"]).await {
        Ok(said) => Finding::ok(AREA, "QEMU", said.lines().next().unwrap_or_default()),
        Err(why) => {
            let package = match Arch::host() {
                Arch::X86_64 => "qemu-system-x86",
                Arch::Aarch64 => "qemu-system-arm",
                _ => "qemu-system",
            };
            Finding::missing(AREA, "QEMU", why, format!("apt install {package}"))
        }
    }];
    let Ok(driver) = site::namespace_driver(config) else {
        return findings;
    };
    let there = Path::new(KVM).exists();
    match driver.own_kernel().await {
        Ok(Machine { what, accelerated }) => {
            findings.push(if accelerated {
                Finding::ok(AREA, "KVM", "a kernel was started with it")
            } else if there {
                let detail = format!("{KVM} exists, but no kernel boots with it");
                Finding::broken(
                    AREA,
                    "KVM",
                    detail,
                    "on a virtual host: enable nested virtualisation where it runs",
                )
            } else {
                Finding::missing(
                    AREA,
                    "KVM",
                    format!("there is no {KVM}"),
                    "modprobe kvm_intel || modprobe kvm_amd",
                )
            });
            findings.push(Finding::ok(AREA, "virtual machines", what));
        }
        Err(failure) => {
            let next = failure.hint.clone().unwrap_or_default();
            findings.push(Finding::missing(AREA, "virtual machines", failure, next));
        }
    }
    findings
}
