//! Entries of `binfmt_misc`: read from `qemu/binfmt.toml`, and registered with the sandbox's own instance, which this
//! mounts. Never touches the host's instance.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::Path,
};

use flate2::read::GzDecoder;
use kiln_records::{Code, Failure, arch::Arch, protocol::BinfmtEntry};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
};
use serde::Deserialize;

/// The mount point that the kernel expects for `binfmt_misc`.
pub const MOUNT_POINT: &str = "/proc/sys/fs/binfmt_misc";

/// The table's entry for one architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emulation {
    /// The `binfmt_misc` entry to register.
    pub entry: BinfmtEntry,
    /// Value of `QEMU_CPU`.
    pub cpu: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    magic: String,
    mask: String,
    interpreter: String,
    flags: String,
    cpu: String,
}

/// The table compiled into this program.
const TABLE: &str = include_str!("../../../qemu/binfmt.toml");

/// How programs of `arch` are emulated.
///
/// # Errors
///
/// A `binfmt_table` failure when the table is malformed or has no entry for `arch`; a test checks the built-in table.
pub fn emulation_of(arch: Arch) -> Result<Emulation, Failure> {
    let broken = |why: String| Failure::new(Code::BinfmtTable, format!("qemu/binfmt.toml, {arch}: {why}"));
    let mut rows: BTreeMap<Arch, Row> = toml::from_str(TABLE).map_err(|error| broken(error.to_string()))?;
    let row = rows.remove(&arch).ok_or_else(|| broken("no such table".to_owned()))?;
    let bytes = |text: &str| hex::decode(text.replace(' ', "")).map_err(|error| broken(error.to_string()));
    let (magic, mask) = (bytes(&row.magic)?, bytes(&row.mask)?);
    if magic.len() != mask.len() {
        return Err(broken("magic and mask differ in length".to_owned()));
    }
    Ok(Emulation {
        entry: BinfmtEntry {
            name: format!("kiln-{arch}"),
            magic,
            mask,
            interpreter: row.interpreter,
            flags: row.flags,
        },
        cpu: row.cpu,
    })
}

/// Mounts this namespace's own `binfmt_misc` and registers `entry` with it.
///
/// Must run with `CAP_SYS_ADMIN` in a user namespace other than the host's, or in a VM.
///
/// # Errors
///
/// `binfmt_unavailable` when the kernel offers no instance of its own, `emulator_missing` when the interpreter cannot
/// be opened, `binfmt_refused` when the kernel rejects the entry. Each message names the cause.
pub fn register(entry: &BinfmtEntry) -> Result<(), Failure> {
    mount(
        Some("binfmt_misc"),
        MOUNT_POINT,
        Some("binfmt_misc"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        None::<&str>,
    )
    .map_err(|errno| mount_failure(errno, &built_with()))?;
    let register = Path::new(MOUNT_POINT).join("register");
    match fs_err::write(&register, entry.registration()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::new(
            Code::EmulatorMissing,
            format!("the emulator {} is not in the toolbox", entry.interpreter),
        )
        .hint("run `kiln toolbox build`; qemu/binfmt.toml and kata/toolbox/toolbox.toml must agree")),
        Err(error) => Err(Failure::new(
            Code::BinfmtRefused,
            format!("the kernel refused the binfmt_misc entry {}: {error}", entry.name),
        )),
    }
}

/// How this kernel was built, if it says so.
fn built_with() -> String {
    let mut text = String::new();
    if let Ok(file) = fs_err::File::open("/proc/config.gz") {
        // A kernel that does not say it to the end says nothing.
        let _ = GzDecoder::new(file).read_to_string(&mut text);
    }
    text
}

fn mount_failure(errno: Errno, built_with: &str) -> Failure {
    let is = |how: &str| {
        built_with
            .lines()
            .any(|line| line == format!("CONFIG_BINFMT_MISC={how}"))
    };
    let failure = Failure::new(
        Code::BinfmtUnavailable,
        format!("cannot mount binfmt_misc inside the sandbox: {errno}"),
    );
    match errno {
        Errno::ENODEV if is("m") || built_with.is_empty() => failure.hint(
            "the kernel has not loaded the module binfmt_misc: run `modprobe binfmt_misc` on the host once; in a machine \
             of Kata, whose guest has modprobe, set `kernel_modules = [\"binfmt_misc\"]` in [agent.kata] of its \
             configuration",
        ),
        Errno::ENODEV => failure.hint(
            "this kernel was built without binfmt_misc: use another one, or build that of Kata's guest with \
             kata/kernel.conf",
        ),
        Errno::EPERM | Errno::EINVAL => {
            failure.hint("a private binfmt_misc needs Linux 6.7 or newer and a security module that allows the mount")
        }
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_knows_every_architecture_and_its_elf_machine() {
        for arch in Arch::ALL {
            let entry = emulation_of(arch).unwrap().entry;
            assert_eq!((entry.magic.len(), entry.mask.len()), (20, 20), "{arch}");
            let machine = [entry.magic[18], entry.magic[19]];
            let read = if arch.is_big_endian() {
                u16::from_be_bytes(machine)
            } else {
                u16::from_le_bytes(machine)
            };
            assert_eq!(read, arch.elf_machine(), "{arch}");
            assert!(entry.flags.contains('F') && entry.flags.contains('C'), "{arch}");
        }
    }

    #[test]
    fn a_kernel_without_binfmt_misc_is_told_from_one_that_has_not_loaded_it() {
        let hint = |built_with: &str| mount_failure(Errno::ENODEV, built_with).hint.unwrap();
        assert!(hint("CONFIG_BINFMT_MISC=m\n").contains("kernel_modules"));
        assert!(hint("").contains("kernel_modules"));
        assert!(hint("# CONFIG_BINFMT_MISC is not set\n").contains("kernel.conf"));
    }

    #[test]
    fn the_table_matches_exec_and_dyn_files_only() {
        for arch in Arch::ALL {
            let entry = emulation_of(arch).unwrap().entry;
            for (elf_type, matches) in [(1_u8, false), (2, true), (3, true), (4, false)] {
                let mut head = entry.magic.clone();
                head[if arch.is_big_endian() { 17 } else { 16 }] = elf_type;
                let hit = head
                    .iter()
                    .zip(&entry.magic)
                    .zip(&entry.mask)
                    .all(|((a, b), mask)| a & mask == b & mask);
                assert_eq!(hit, matches, "{arch} type {elf_type}");
            }
        }
    }

    #[test]
    fn registration_line() {
        let entry = emulation_of(Arch::Aarch64).unwrap().entry;
        insta::assert_snapshot!(entry.registration(), @r":kiln-aarch64:M:0:\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64:POCF");
    }
}
