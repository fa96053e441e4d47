//! Describes the sandbox from inside, as proof of the kernel on which a job ran. Reads system files, and runs the
//! emulator with `--version`.

use std::process::Command;

use kiln_records::protocol::{Emulator, SandboxFacts};

/// Examines the kernel, the signs of a virtual machine in firmware and CPU, and the emulator.
pub fn gather(emulator: Option<&Emulator>) -> SandboxFacts {
    let read = |path: &str| {
        let text = fs_err::read_to_string(path).unwrap_or_default();
        text.trim().to_owned()
    };
    SandboxFacts {
        kernel: read("/proc/sys/kernel/osrelease"),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        hypervisor: hypervisor(
            &read("/sys/class/dmi/id/sys_vendor"),
            &read("/proc/cpuinfo"),
            &read("/proc/device-tree/compatible"),
        ),
        emulator: emulator.map(|emulator| version_of(&emulator.binfmt.interpreter)),
    }
}

/// The hypervisor, according to the firmware's tables, the CPU's flags or the device tree; `None` on bare metal.
fn hypervisor(vendor: &str, cpuinfo: &str, compatible: &str) -> Option<String> {
    /// Firmware vendors that only occur in virtual machines.
    const VENDORS: [&str; 7] = [
        "QEMU",
        "Cloud Hypervisor",
        "Amazon EC2",
        "Google",
        "innotek GmbH",
        "VMware",
        "Xen",
    ];
    if let Some(known) = VENDORS.iter().find(|known| vendor.starts_with(**known)) {
        return Some((*known).to_owned());
    }
    if compatible.contains("dummy-virt") {
        return Some("QEMU".to_owned());
    }
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    let set = flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
    set.then(|| "the CPU says that it is virtual".to_owned())
}

/// Name and version of an emulator, such as `qemu-aarch64 version 10.0.2`.
fn version_of(interpreter: &str) -> String {
    let said = Command::new(interpreter).arg("--version").output();
    let first = said.ok().filter(|output| output.status.success()).and_then(|output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().map(str::to_owned)
    });
    first.unwrap_or_else(|| interpreter.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_machines_are_told_from_bare_metal() {
        let of = |vendor: &str, cpuinfo: &str, tree: &str| hypervisor(vendor, cpuinfo, tree).is_some();
        assert!(of("QEMU", "", ""));
        assert!(of("", "processor: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n", ""));
        assert!(of("", "", "linux,dummy-virt"));
        assert!(!of(
            "HPE",
            "flags\t\t: fpu vme\nmodel name: hypervisor 2000\n",
            "nvidia,tegra"
        ));
    }

    #[test]
    fn the_kernel_is_named() {
        let found = gather(None);
        assert!(found.kernel.contains('.') && found.boot_id.len() == 36, "{found:?}");
    }
}
