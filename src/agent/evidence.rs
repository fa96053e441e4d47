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
        hypervisor: hypervisor(&Signs {
            vendor: read("/sys/class/dmi/id/sys_vendor"),
            cpuinfo: read("/proc/cpuinfo"),
            compatible: read("/proc/device-tree/compatible"),
            devices: read("/proc/bus/pci/devices"),
        }),
        emulator: emulator.map(|emulator| version_of(&emulator.binfmt.interpreter)),
    }
}

/// The signs by which a virtual machine is recognised, as texts of system files.
#[derive(Debug, Default)]
struct Signs {
    /// The vendor in the firmware's tables.
    vendor: String,
    /// The CPUs' names and flags.
    cpuinfo: String,
    /// The device tree's names of the machine.
    compatible: String,
    /// The PCI devices: in the second column, the ids of vendor and device.
    devices: String,
}

/// The hypervisor, by its name where that is known; `None` on bare metal. A machine of Kata has no firmware tables, and a
/// CPU that KVM runs has the host's name: then QEMU is known by the PCI devices that only it has.
fn hypervisor(signs: &Signs) -> Option<String> {
    /// The ids of QEMU's own PCI devices, and of the bridge of its machine `q35`, which no server has any more.
    const OF_QEMU: [&str; 2] = ["1b36", "808629c0"];
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
    if let Some(known) = VENDORS.iter().find(|known| signs.vendor.starts_with(**known)) {
        return Some((*known).to_owned());
    }
    let line = |name: &str| signs.cpuinfo.lines().find(|line| line.starts_with(name));
    let mut ids = signs.devices.lines().filter_map(|line| line.split_whitespace().nth(1));
    if signs.compatible.contains("dummy-virt")
        || line("model name").is_some_and(|name| name.contains("QEMU"))
        || ids.any(|id| OF_QEMU.iter().any(|known| id.starts_with(known)))
    {
        return Some("QEMU".to_owned());
    }
    let flags = line("flags");
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
        let of = |vendor: &str, cpuinfo: &str, tree: &str, devices: &str| {
            hypervisor(&Signs {
                vendor: vendor.to_owned(),
                cpuinfo: cpuinfo.to_owned(),
                compatible: tree.to_owned(),
                devices: devices.to_owned(),
            })
        };
        let flags = "processor: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n";
        assert_eq!(of("QEMU", "", "", "").as_deref(), Some("QEMU"));
        assert_eq!(of("", "", "linux,dummy-virt", "").as_deref(), Some("QEMU"));
        // Machines of Kata have no firmware tables.
        let emulated = format!("model name\t: QEMU TCG CPU version 2.5+\n{flags}");
        assert_eq!(of("", &emulated, "", "").as_deref(), Some("QEMU"));
        let of_q35 = "0000\t808629c0\t0\n0008\t1af41041\tb\n";
        let by_kvm = format!("model name\t: AMD EPYC 9654\n{flags}");
        assert_eq!(of("", &by_kvm, "", of_q35).as_deref(), Some("QEMU"));
        assert_eq!(
            of("", &by_kvm, "", "0000\t80860d57\t0\n").as_deref(),
            Some("the CPU says that it is virtual")
        );
        let metal = "flags\t\t: fpu vme\nmodel name: hypervisor 2000\n";
        assert_eq!(of("HPE", metal, "nvidia,tegra", "0000\t80862020\t0\n"), None);
    }

    #[test]
    fn the_kernel_is_named() {
        let found = gather(None);
        assert!(found.kernel.contains('.') && found.boot_id.len() == 36, "{found:?}");
    }
}
