//! The boot loader: GRUB for UEFI, made of the host's modules by grub-mkimage, and its configuration.

use std::{path::Path, process::Command};

use kiln_records::{Code, Failure, arch::Arch};

use super::run;

/// The configuration's path in the EFI system partition.
pub(super) const CONFIG: &str = "/grub/grub.cfg";

/// The kernel's path there.
pub(super) const KERNEL: &str = "/boot/vmlinuz";

/// The initrd's path there.
pub(super) const INITRD: &str = "/boot/initrd";

/// Stands in the configuration of a CD for the name of its volume, which the loader knows.
pub(super) const VOLUME: &str = "$kiln_volume";

/// The directory of GRUB's platforms.
const PLATFORMS: &str = "/usr/lib/grub";

/// What GRUB needs to read its configuration and the kernel from a FAT in a GPT, and to start it.
const MODULES: [&str; 11] = [
    "part_gpt", "fat", "normal", "linux", "gzio", "echo", "test", "sleep", "reboot", "halt", "efi_gop",
];

/// GRUB's names for an architecture.
struct Platform {
    name: &'static str,
    /// Where UEFI looks for the loader of a disk that it does not know.
    path: &'static str,
    package: &'static str,
}

const fn platform(arch: Arch) -> Option<Platform> {
    match arch {
        Arch::X86_64 => Some(Platform {
            name: "x86_64-efi",
            path: "/EFI/BOOT/BOOTX64.EFI",
            package: "grub-efi-amd64-bin",
        }),
        Arch::Aarch64 => Some(Platform {
            name: "arm64-efi",
            path: "/EFI/BOOT/BOOTAA64.EFI",
            package: "grub-efi-arm64-bin",
        }),
        Arch::Riscv64 => Some(Platform {
            name: "riscv64-efi",
            path: "/EFI/BOOT/BOOTRISCV64.EFI",
            package: "grub-efi-riscv64-bin",
        }),
        // POWER boots from a PReP partition by Open Firmware, IBM Z by zipl: neither is made here.
        Arch::Ppc64le | Arch::S390x => None,
    }
}

/// A boot loader.
pub(super) struct Loader {
    pub(super) path: &'static str,
    pub(super) program: Vec<u8>,
}

/// Succeeds if disks can be made for an architecture, as far as one can know without making one.
///
/// # Errors
///
/// `disk_unsupported`, `disk_tool_missing`.
pub(super) fn supported(arch: Arch) -> Result<(), Failure> {
    modules(arch).map(drop)
}

/// The platform of an architecture, and the directory of its modules.
fn modules(arch: Arch) -> Result<(Platform, std::path::PathBuf), Failure> {
    let platform = platform(arch).ok_or_else(|| {
        Failure::new(
            Code::DiskUnsupported,
            format!("disk images are not made for {arch}: it does not boot by UEFI"),
        )
        .hint("x86_64, aarch64 and riscv64 do; boot others over the network")
    })?;
    let dir = Path::new(PLATFORMS).join(platform.name);
    if dir.join("moddep.lst").exists() {
        return Ok((platform, dir));
    }
    let (package, debian) = (platform.package, arch.debian());
    let hint = if arch == Arch::host() {
        format!("install `{package}`")
    } else {
        format!("`dpkg --add-architecture {debian} && apt-get update && apt-get install {package}:{debian}`")
    };
    let detail = format!("GRUB for {arch} is not installed: {} is not there", dir.display());
    Err(Failure::new(Code::DiskToolMissing, detail).hint(hint))
}

/// Further modules for a CD, whose volume is searched for.
const CD_MODULES: [&str; 3] = ["iso9660", "search", "search_label"];

/// Makes the loader. Its files are in the partition that it was read from, or else in the volume of that name.
pub(super) fn loader(arch: Arch, volume: Option<&str>) -> Result<Loader, Failure> {
    let (platform, dir) = modules(arch)?;
    let failed = |error: std::io::Error| Failure::io("cannot make the boot loader", &error);
    let file = tempfile::NamedTempFile::new().map_err(failed)?;
    // Without a device in the prefix GRUB takes the partition that it was read from.
    let mut make = Command::new("grub-mkimage");
    make.args(["--format", platform.name, "--prefix", "/grub", "--directory"])
        .arg(dir)
        .arg("--output")
        .arg(file.path())
        .args(MODULES);
    // It is read while the program runs.
    let early;
    if let Some(volume) = volume {
        let find = format!(
            "search --no-floppy --set=root --label {volume}\nset prefix=($root)/grub\nset kiln_volume={volume}\n"
        );
        early = tempfile::NamedTempFile::new().map_err(failed)?;
        fs_err::write(early.path(), find).map_err(failed)?;
        make.args(CD_MODULES).arg("--config").arg(early.path());
    }
    run(&mut make)?;
    Ok(Loader {
        path: platform.path,
        program: fs_err::read(file.path()).map_err(failed)?,
    })
}

/// The configuration: one entry, which starts by itself.
pub(super) fn config(title: &str, parameters: &str) -> String {
    let words: Vec<_> = parameters.split_whitespace().map(quoted).collect();
    format!(
        "set timeout=2\nset default=0\nmenuentry {} {{\n  linux {KERNEL} {}\n  initrd {INITRD}\n}}\n",
        quoted(title),
        words.join(" ")
    )
}

/// A word of GRUB's language. Nothing within single quotes has a meaning, so the volume's name is left out of them.
fn quoted(word: &str) -> String {
    let plain: String = word.chars().filter(|c| !c.is_control() && *c != '\'').collect();
    format!("'{}'", plain.replace(VOLUME, &format!("'\"{VOLUME}\"'")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_volume_is_filled_in() {
        let config = config("t", &format!("root=live:CDLABEL={VOLUME} b"));
        assert!(
            config.contains(r#" 'root=live:CDLABEL='"$kiln_volume"'' 'b'"#),
            "{config}"
        );
    }

    #[test]
    fn no_title_and_no_parameter_ends_its_line() {
        insta::assert_snapshot!(config("it's {a}\nset x", "root=live:/dev/x a;b=$c 'd"), @r"
        set timeout=2
        set default=0
        menuentry 'its {a}set x' {
          linux /boot/vmlinuz 'root=live:/dev/x' 'a;b=$c' 'd'
          initrd /boot/initrd
        }
        ");
    }

    #[test]
    fn architectures_without_uefi_are_refused() {
        for arch in [Arch::S390x, Arch::Ppc64le] {
            assert_eq!(modules(arch).err().unwrap().code, Code::DiskUnsupported);
        }
    }
}
