//! The properties by which OpenStack chooses hosts and virtual hardware for an image. Pure: no I/O.

use std::collections::BTreeMap;

use crate::{LinuxDistribution, arch::Arch};

/// The properties of an image, in the words of Glance and Nova.
pub fn properties(arch: Arch, distribution: Option<LinuxDistribution>) -> BTreeMap<&'static str, &'static str> {
    let mut properties = BTreeMap::from([("architecture", architecture(arch)), ("os_type", "linux")]);
    properties.insert("hw_machine_type", machine_type(arch));
    // POWER and Z have firmware of their own, which has no property.
    if matches!(arch, Arch::X86_64 | Arch::Aarch64 | Arch::Riscv64) {
        properties.insert("hw_firmware_type", "uefi");
    }
    if let Some(distribution) = distribution {
        properties.insert("os_distro", os_distro(distribution));
    }
    properties
}

/// Nova's name of an architecture.
const fn architecture(arch: Arch) -> &'static str {
    arch.name()
}

/// QEMU's machine.
const fn machine_type(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "q35",
        Arch::Aarch64 | Arch::Riscv64 => "virt",
        Arch::Ppc64le => "pseries",
        Arch::S390x => "s390-ccw-virtio",
    }
}

/// The short id of a distribution in libosinfo, which OpenStack uses.
const fn os_distro(distribution: LinuxDistribution) -> &'static str {
    match distribution {
        LinuxDistribution::Sles12 | LinuxDistribution::Sles15 => "sles",
        LinuxDistribution::Centos7 => "centos",
        LinuxDistribution::Debian => "debian",
        LinuxDistribution::Opensuse => "opensuse",
        LinuxDistribution::Rhel => "rhel",
        LinuxDistribution::Rocky => "rocky",
        LinuxDistribution::Ubuntu => "ubuntu",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_has_its_machine() {
        for arch in Arch::ALL {
            let found = properties(arch, Some(LinuxDistribution::Sles15));
            assert_eq!(found["architecture"], arch.name());
            assert_eq!(found["os_distro"], "sles");
            let has_uefi = found.contains_key("hw_firmware_type");
            assert_eq!(has_uefi, !matches!(arch, Arch::Ppc64le | Arch::S390x), "{arch}");
        }
        assert!(!properties(Arch::X86_64, None).contains_key("os_distro"));
    }
}
