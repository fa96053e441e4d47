//! Finds QEMU and builds its command line. Looks at the host's files, and runs `--version`.

use std::{
    os::fd::RawFd,
    path::{Path, PathBuf},
};

use super::{Accelerator, MIB, TRANSLATED_MIB, VmSpec};
use kiln_records::{
    Code, Failure,
    arch::Arch,
    guest::{CONTROL_PORT, SCRATCH_DISK, TOOLBOX_DISK, WORDS_PORT},
};

/// The kernel's path in QEMU's root.
pub(crate) const KERNEL: &str = "/vm/kernel";

/// The initrd's path in QEMU's root.
pub(crate) const INITRD: &str = "/vm/initrd";

/// A guest that breaks out of its machine is in a process that may start no other and cannot change its user.
pub(super) const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// The address at which a machine reaches its sandbox's doors (QEMU's user-mode network).
pub(crate) const GATEWAY: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 0, 2, 2);

/// Open files that QEMU inherits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wires {
    /// A socket: the errand in, messages out.
    pub(crate) control: RawFd,
    /// Takes the output of console and agent; open for writing only.
    pub(crate) words: RawFd,
    /// The toolbox and the job's disk; `None` when the machine only has to boot.
    pub(crate) disks: Option<(RawFd, RawFd)>,
}

/// QEMU's names for machines of an architecture.
struct Model {
    program: &'static str,
    machine: &'static str,
    console: &'static str,
    /// Options of the kernel that only this architecture has, with a space before each.
    kernel: &'static str,
}

fn model(arch: Arch) -> Option<Model> {
    match arch {
        // Without devices that Kiln's guests never use.
        Arch::X86_64 => Some(Model {
            program: "qemu-system-x86_64",
            machine: "q35,vmport=off,hpet=off,sata=off,smbus=off,usb=off",
            console: "ttyS0",
            // Linux counts ticks of the timer for some milliseconds of CPU time, and panics ("IO-APIC + timer doesn't
            // work!") if the emulated CPU had to wait for the host's during these. KVM's guests skip the test anyway.
            kernel: " no_timer_check",
        }),
        Arch::Aarch64 => Some(Model {
            program: "qemu-system-aarch64",
            machine: "virt,gic-version=max",
            console: "ttyAMA0",
            kernel: "",
        }),
        _ => None,
    }
}

/// Finds the emulator for machines of the host's architecture.
///
/// # Errors
///
/// `no_vm` when it is not installed, or not in a place that sandboxes see.
pub(crate) fn find() -> Result<PathBuf, Failure> {
    let arch = Arch::host();
    let Some(Model { program, .. }) = model(arch) else {
        return Err(Failure::new(
            Code::NoVm,
            format!("Kiln knows no virtual machines on {arch}"),
        ));
    };
    find_below_usr(program).map_err(|failure| {
        failure.hint(match arch {
            Arch::Aarch64 => "install the package `qemu-system-arm`",
            _ => "install the package `qemu-system-x86`",
        })
    })
}

/// Finds a program for sandboxes, which see no other directory of the host than `/usr`.
pub(super) fn find_below_usr(program: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).find_map(|dir| fs_err::canonicalize(dir.join(program)).ok());
    match found {
        Some(path) if path.starts_with("/usr") => Ok(path),
        Some(path) => Err(Failure::new(
            Code::NoVm,
            format!(
                "{} is not below /usr, the only directory of the host that sandboxes see",
                path.display()
            ),
        )),
        None => Err(Failure::new(Code::NoVm, format!("{program} is not installed"))),
    }
}

/// The arguments of the program.
pub(crate) fn arguments(arch: Arch, machine: &VmSpec, wires: Wires) -> Vec<String> {
    let Some(model) = model(arch) else { return Vec::new() };
    let mut arguments = Vec::new();
    let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
    for option in ["-nodefaults", "-no-user-config", "-no-reboot"] {
        add(option, String::new());
    }
    add("-display", "none".to_owned());
    add("-sandbox", SANDBOX.to_owned());
    add("-machine", model.machine.to_owned());
    let (accelerator, cpu) = match machine.accelerator {
        Accelerator::Kvm => ("kvm".to_owned(), "host"),
        Accelerator::Tcg => (format!("tcg,tb-size={TRANSLATED_MIB}"), "max"),
    };
    add("-accel", accelerator);
    add("-cpu", cpu.to_owned());
    add("-smp", machine.cpus.to_string());
    add("-m", format!("{}M", machine.memory.div_ceil(MIB)));
    add("-kernel", KERNEL.to_owned());
    add("-initrd", INITRD.to_owned());
    // A machine belongs to one job, so protection of its processes from each other only costs time. `panic=-1` ends it
    // at once, with the kernel's last messages on the console. A CPU that waits for the host's is no fault of the guest's:
    // without `nowatchdog` the kernel takes it for one ("soft lockup"), among the last words of the job.
    let Model { console, kernel, .. } = model;
    add(
        "-append",
        format!("console={console} quiet loglevel=1 panic=-1 random.trust_cpu=on mitigations=off nowatchdog{kernel}"),
    );

    // The output goes into a pipe, which cannot be truncated: `append`.
    let file = |number: usize, fd: RawFd| format!("fd={fd},set={number}");
    add("-add-fd", file(1, wires.words));
    add("-add-fd", file(2, wires.words));
    add("-chardev", "file,id=console,path=/dev/fdset/1,append=on".to_owned());
    add("-serial", "chardev:console".to_owned());
    add("-device", "virtio-serial-pci".to_owned());
    add("-chardev", format!("socket,id=control,fd={}", wires.control));
    add("-device", format!("virtserialport,chardev=control,name={CONTROL_PORT}"));
    add("-chardev", "file,id=words,path=/dev/fdset/2,append=on".to_owned());
    add("-device", format!("virtserialport,chardev=words,name={WORDS_PORT}"));
    if let Some((toolbox, scratch)) = wires.disks {
        add("-add-fd", file(3, toolbox));
        add(
            "-blockdev",
            format!("driver=file,node-name={TOOLBOX_DISK},filename=/dev/fdset/3,read-only=on,locking=off"),
        );
        add(
            "-device",
            format!("virtio-blk-pci,drive={TOOLBOX_DISK},serial={TOOLBOX_DISK}"),
        );
        add("-add-fd", file(4, scratch));
        // Nothing in a sandbox survives a crash of the host, so nothing is synced; deleted space is returned.
        add(
            "-blockdev",
            format!(
                "driver=file,node-name={SCRATCH_DISK},filename=/dev/fdset/4,locking=off,discard=unmap,cache.no-flush=on"
            ),
        );
        add(
            "-device",
            format!("virtio-blk-pci,drive={SCRATCH_DISK},serial={SCRATCH_DISK}"),
        );
        add("-netdev", "user,id=net,ipv6=off".to_owned());
        // It does not boot from the network.
        add("-device", "virtio-net-pci,netdev=net,romfile=".to_owned());
    }
    arguments.retain(|argument| !argument.is_empty());
    arguments
}

/// The emulator's version for users: `QEMU 7.2.22`.
pub(crate) async fn version(program: &Path) -> Result<String, Failure> {
    let output = tokio::process::Command::new(program).arg("--version").output().await;
    let output =
        output.map_err(|error| Failure::new(Code::NoVm, format!("cannot run {}: {error}", program.display())))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let number = said.split_whitespace().skip_while(|word| *word != "version").nth(1);
    Ok(format!("QEMU {}", number.unwrap_or("of an unknown version")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_these_devices_and_no_others() {
        let mut machine = VmSpec {
            qemu: "/usr/bin/qemu".into(),
            accelerator: Accelerator::Tcg,
            kernel: "/k".into(),
            initrd: "/i".into(),
            toolbox: Some("/t".into()),
            memory: 1 << 30,
            cpus: 3,
            relays: Vec::new(),
        };
        let wires = Wires {
            control: 10,
            words: 11,
            disks: Some((12, 13)),
        };
        insta::assert_snapshot!(arguments(Arch::X86_64, &machine, wires).join("\n"));
        machine.accelerator = Accelerator::Kvm;
        let of_probe = arguments(Arch::Aarch64, &machine, Wires { disks: None, ..wires });
        insta::assert_snapshot!(of_probe.join("\n"));
        assert!(arguments(Arch::S390x, &machine, wires).is_empty());
    }
}
