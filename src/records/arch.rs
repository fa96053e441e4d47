//! CPU architectures: one table of all their names. Pure: no I/O.
//!
//! IMS and the kernel say `aarch64`, Debian and OCI say `arm64`, Debian says `ppc64el` where the kernel says `ppc64le`.
//! All of Kiln uses this table for every property of an architecture, so that different spellings cannot diverge later.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A CPU architecture that Kiln builds for, under its kernel (`uname -m`) name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// 64-bit x86; `amd64` to Debian and OCI.
    #[serde(rename = "x86_64")]
    X86_64,
    /// 64-bit Arm; `arm64` to Debian and OCI.
    Aarch64,
    /// 64-bit little-endian POWER; `ppc64el` to Debian.
    Ppc64le,
    /// IBM Z.
    S390x,
    /// 64-bit RISC-V.
    Riscv64,
}

/// A name of no known architecture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an architecture Kiln knows; use one of {list}", list = Arch::list())]
pub struct UnknownArch(pub String);

impl Arch {
    /// Every architecture, in the order in which lists show them.
    pub const ALL: [Arch; 5] = [Arch::X86_64, Arch::Aarch64, Arch::Ppc64le, Arch::S390x, Arch::Riscv64];

    /// The architecture this program was compiled for, which is the host's.
    pub const fn host() -> Arch {
        #[cfg(target_arch = "x86_64")]
        return Arch::X86_64;
        #[cfg(target_arch = "aarch64")]
        return Arch::Aarch64;
        #[cfg(all(target_arch = "powerpc64", target_endian = "little"))]
        return Arch::Ppc64le;
        #[cfg(target_arch = "s390x")]
        return Arch::S390x;
        #[cfg(target_arch = "riscv64")]
        return Arch::Riscv64;
    }

    /// The kernel's name (`uname -m`), which IMS, kiwi and rpm use too.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
            Arch::Ppc64le => "ppc64le",
            Arch::S390x => "s390x",
            Arch::Riscv64 => "riscv64",
        }
    }

    /// Debian's name (`dpkg --print-architecture`).
    pub const fn debian(self) -> &'static str {
        match self {
            Arch::X86_64 => "amd64",
            Arch::Aarch64 => "arm64",
            Arch::Ppc64le => "ppc64el",
            Arch::S390x => "s390x",
            Arch::Riscv64 => "riscv64",
        }
    }

    /// Debian's name of directories for libraries of this architecture (multiarch), below `/usr/lib`.
    pub const fn multiarch(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64-linux-gnu",
            Arch::Aarch64 => "aarch64-linux-gnu",
            Arch::Ppc64le => "powerpc64le-linux-gnu",
            Arch::S390x => "s390x-linux-gnu",
            Arch::Riscv64 => "riscv64-linux-gnu",
        }
    }

    /// The OCI image specification's name, which is Go's `GOARCH`.
    pub const fn oci(self) -> &'static str {
        match self {
            Arch::X86_64 => "amd64",
            Arch::Aarch64 => "arm64",
            Arch::Ppc64le => "ppc64le",
            Arch::S390x => "s390x",
            Arch::Riscv64 => "riscv64",
        }
    }

    /// `e_machine` of this architecture's ELF files (System V ABI, `elf.h`).
    pub const fn elf_machine(self) -> u16 {
        match self {
            Arch::X86_64 => 62,
            Arch::Aarch64 => 183,
            Arch::Ppc64le => 21,
            Arch::S390x => 22,
            Arch::Riscv64 => 243,
        }
    }

    /// Whether the architecture stores the most significant byte first.
    pub const fn is_big_endian(self) -> bool {
        matches!(self, Arch::S390x)
    }

    /// The kernel's file name in `/boot` when a job names none (IMS: `Image` on aarch64, else `vmlinuz`).
    pub const fn kernel_file_name(self) -> &'static str {
        match self {
            Arch::Aarch64 => "Image",
            _ => "vmlinuz",
        }
    }

    /// The names accepted on input beside [`Arch::name`].
    pub const fn aliases(self) -> &'static [&'static str] {
        match self {
            Arch::X86_64 => &["amd64", "x86-64", "x64"],
            Arch::Aarch64 => &["arm64", "arm64v8"],
            Arch::Ppc64le => &["ppc64el", "powerpc64le"],
            Arch::S390x => &[],
            Arch::Riscv64 => &["rv64"],
        }
    }

    /// All names, as an error message lists them: `x86_64, aarch64, …`.
    pub fn list() -> String {
        Arch::ALL.map(Arch::name).join(", ")
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Arch {
    type Err = UnknownArch;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = text.trim().to_ascii_lowercase();
        Arch::ALL
            .into_iter()
            .find(|arch| arch.name() == wanted || arch.aliases().contains(&wanted.as_str()))
            .ok_or_else(|| UnknownArch(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_leads_to_one_arch() {
        for arch in Arch::ALL {
            for name in [arch.name(), arch.debian(), arch.oci()].iter().chain(arch.aliases()) {
                assert_eq!(name.parse(), Ok(arch), "{name}");
                assert_eq!(name.to_uppercase().parse(), Ok(arch), "{name}");
            }
        }
    }

    #[test]
    fn a_wrong_name_is_refused_with_the_list() {
        let error = "armv7".parse::<Arch>().unwrap_err().to_string();
        assert_eq!(
            error,
            "`armv7` is not an architecture Kiln knows; use one of x86_64, aarch64, ppc64le, s390x, riscv64"
        );
    }

    #[test]
    fn json_spelling_is_the_kernel_name() {
        for arch in Arch::ALL {
            assert_eq!(serde_json::to_string(&arch).unwrap(), format!("\"{arch}\""));
        }
    }
}
