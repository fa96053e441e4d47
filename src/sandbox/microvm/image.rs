//! The machine that boots an image as a node would: QEMU's names for machines of each architecture, and its command line.
//! Looks at the host's files.
//!
//! Other than the machines of jobs, it can be of any architecture, and everything in it is the image's own.

use std::{os::fd::RawFd, path::PathBuf};

use kiln_records::{Code, Failure, arch::Arch};
use serde::{Deserialize, Serialize};

use super::{
    Accelerator, MIB, OWN_MEMORY, OWN_THREADS, TRANSLATED_MIB,
    qemu::{INITRD, KERNEL, SANDBOX, find_below_usr},
};
use crate::sandbox::Limits;

/// The parts of a machine that boots an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageMachine {
    /// The emulator's program.
    pub qemu: PathBuf,
    /// The image's architecture.
    pub arch: Arch,
    /// Whether the host's own CPU executes the guest's instructions.
    pub(crate) accelerator: Accelerator,
    /// The kernel; readable for every user.
    pub kernel: PathBuf,
    /// The initrd; readable for every user.
    pub initrd: PathBuf,
    /// The root file system, a squashfs.
    pub root: PathBuf,
    /// The kernel's parameters, without those of the machine.
    pub parameters: String,
    /// Bytes of the guest's memory.
    pub memory: u64,
    /// CPUs.
    pub cpus: u32,
}

/// Open files that QEMU inherits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageWires {
    /// Takes the output of the console; open for writing only.
    pub(crate) console: RawFd,
    /// The root file system.
    pub(crate) root: RawFd,
}

/// QEMU's names for machines of an architecture.
struct Model {
    program: &'static str,
    packages: &'static str,
    machine: &'static str,
    console: &'static str,
    /// Parameters of the kernel that an emulated CPU needs.
    emulated: &'static str,
    /// The CPU with the most features, where there is one.
    cpu: Option<&'static str>,
    /// Whether its network card could boot, for which it would read a file.
    has_option_roms: bool,
}

const fn model(arch: Arch) -> Model {
    match arch {
        Arch::X86_64 => Model {
            program: "qemu-system-x86_64",
            packages: "`qemu-system-x86`",
            machine: "q35",
            console: "ttyS0",
            // Linux panics ("IO-APIC + timer doesn't work!") if the emulated CPU waits for the host's during its test.
            emulated: " no_timer_check",
            cpu: Some("max"),
            has_option_roms: true,
        },
        Arch::Aarch64 => Model {
            program: "qemu-system-aarch64",
            packages: "`qemu-system-arm`",
            machine: "virt,gic-version=max",
            console: "ttyAMA0",
            emulated: "",
            cpu: Some("max"),
            has_option_roms: true,
        },
        Arch::Ppc64le => Model {
            program: "qemu-system-ppc64",
            packages: "`qemu-system-ppc`",
            machine: "pseries",
            console: "hvc0",
            emulated: "",
            cpu: None,
            has_option_roms: true,
        },
        Arch::S390x => Model {
            program: "qemu-system-s390x",
            packages: "`qemu-system-misc` (from Debian 13 on `qemu-system-s390x`)",
            machine: "s390-ccw-virtio",
            console: "ttysclp0",
            emulated: "",
            cpu: Some("max"),
            has_option_roms: false,
        },
        Arch::Riscv64 => Model {
            program: "qemu-system-riscv64",
            packages: "`qemu-system-misc` (from Debian 13 on `qemu-system-riscv`) and `opensbi`",
            machine: "virt",
            console: "ttyS0",
            emulated: "",
            cpu: None,
            has_option_roms: true,
        },
    }
}

/// Finds the emulator for machines of an architecture.
///
/// # Errors
///
/// `no_emulator` when it is not installed, or not in a place that sandboxes see.
pub fn emulator(arch: Arch) -> Result<PathBuf, Failure> {
    let Model { program, packages, .. } = model(arch);
    find_below_usr(program).map_err(|failure| {
        let hint = format!("install {packages}");
        Failure::new(Code::NoEmulator, failure.detail).hint(hint)
    })
}

/// The most memory of the host that a machine with so many bytes of memory takes.
pub fn memory_of_host(memory: u64) -> u64 {
    memory + OWN_MEMORY + TRANSLATED_MIB * MIB
}

impl ImageMachine {
    /// The limits of the sandbox around the machine.
    pub(crate) fn host_limits(&self) -> Limits {
        let translated = match self.accelerator {
            Accelerator::Kvm => 0,
            Accelerator::Tcg => TRANSLATED_MIB * MIB,
        };
        // The pages of the root that QEMU reads count too, but the kernel takes them back.
        Limits {
            memory: Some(self.memory + OWN_MEMORY + translated),
            cpus: None,
            pids: OWN_THREADS + self.cpus,
            disk: None,
        }
    }

    /// What executes the guest's instructions, for users.
    pub fn how(&self) -> &'static str {
        match self.accelerator {
            Accelerator::Kvm => "KVM",
            Accelerator::Tcg => "an emulated CPU (TCG)",
        }
    }
}

/// The arguments of the program.
pub(crate) fn arguments(machine: &ImageMachine, wires: ImageWires) -> Vec<String> {
    let model = model(machine.arch);
    let mut arguments: Vec<String> = ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]
        .map(str::to_owned)
        .into();
    let mut add = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
    add("-sandbox", SANDBOX.to_owned());
    add("-machine", model.machine.to_owned());
    let (accelerator, cpu) = match machine.accelerator {
        Accelerator::Kvm => ("kvm".to_owned(), Some("host")),
        Accelerator::Tcg => (format!("tcg,tb-size={TRANSLATED_MIB}"), model.cpu),
    };
    add("-accel", accelerator);
    if let Some(cpu) = cpu {
        add("-cpu", cpu.to_owned());
    }
    add("-smp", machine.cpus.to_string());
    add("-m", format!("{}M", machine.memory.div_ceil(MIB)));
    add("-kernel", KERNEL.to_owned());
    add("-initrd", INITRD.to_owned());
    // `panic=-1` ends the machine at once. The last console is the one of user space.
    let emulated = match machine.accelerator {
        Accelerator::Kvm => "",
        Accelerator::Tcg => model.emulated,
    };
    add(
        "-append",
        format!(
            "{} panic=-1 console={}{emulated}",
            machine.parameters.trim(),
            model.console
        ),
    );
    // The output goes into a pipe, which cannot be truncated: `append`.
    add("-add-fd", format!("fd={},set=1", wires.console));
    add("-chardev", "file,id=console,path=/dev/fdset/1,append=on".to_owned());
    add("-serial", "chardev:console".to_owned());
    add("-add-fd", format!("fd={},set=2", wires.root));
    add(
        "-blockdev",
        "driver=file,node-name=root,filename=/dev/fdset/2,read-only=on,locking=off".to_owned(),
    );
    add("-device", "virtio-blk,drive=root".to_owned());
    // It gives the image an address, since services wait for one, and leads nowhere.
    add("-netdev", "user,id=net,restrict=on,ipv6=off".to_owned());
    let rom = if model.has_option_roms { ",romfile=" } else { "" };
    add("-device", format!("virtio-net,netdev=net{rom}"));
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_a_root_a_console_and_a_network_that_leads_nowhere() {
        let mut machine = ImageMachine {
            qemu: "/usr/bin/qemu".into(),
            arch: Arch::X86_64,
            accelerator: Accelerator::Tcg,
            kernel: "/k".into(),
            initrd: "/i".into(),
            root: "/r".into(),
            parameters: "root=/dev/vda".to_owned(),
            memory: 1 << 30,
            cpus: 2,
        };
        let wires = ImageWires { console: 10, root: 11 };
        insta::assert_snapshot!(arguments(&machine, wires).join("\n"));
        machine.accelerator = Accelerator::Kvm;
        let with_kvm = arguments(&machine, wires).join(" ");
        assert!(
            with_kvm.contains("-cpu host") && !with_kvm.contains("no_timer_check"),
            "{with_kvm}"
        );
        machine.arch = Arch::S390x;
        let s390x = arguments(&machine, wires).join(" ");
        assert!(
            s390x.contains("console=ttysclp0") && !s390x.contains("romfile"),
            "{s390x}"
        );
    }

    #[test]
    fn a_missing_emulator_is_named_with_its_package() {
        for arch in Arch::ALL {
            if let Err(failure) = emulator(arch) {
                assert_eq!(failure.code, Code::NoEmulator);
                assert!(failure.hint.unwrap().starts_with("install `qemu-system-"));
            }
        }
    }
}
