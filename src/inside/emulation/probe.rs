//! Proves that the sandbox runs programs of an architecture: writes a tiny program, runs it and checks its exit code.
//! Touches one file in the given directory.
//!
//! Reading the binfmt table would only show the registration; running a program shows that it works.

use std::{os::unix::fs::PermissionsExt, path::Path, process::Command};

use kiln_records::{Code, Failure, arch::Arch};

/// The exit code of the tiny program. No shell or emulator fails with this code by itself.
const EXIT_CODE: u8 = 42;

/// The program's load address; any page-aligned address above `mmap_min_addr` works.
const LOAD_ADDRESS: u64 = 0x40_0000;

/// Size of the ELF header and of one program header, 64-bit.
const HEADERS: u64 = 64 + 56;

/// `exit(42)` in machine code.
const fn exit_code(arch: Arch) -> &'static [u8] {
    match arch {
        // mov edi, 42; mov eax, 60; syscall
        Arch::X86_64 => &[0xbf, EXIT_CODE, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05],
        // mov x0, #42; mov x8, #93; svc #0
        Arch::Aarch64 => &[0x40, 0x05, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4],
        // li r3, 42; li r0, 1; sc
        Arch::Ppc64le => &[EXIT_CODE, 0, 0x60, 0x38, 1, 0, 0, 0x38, 0x02, 0, 0, 0x44],
        // lghi %r2, 42; svc 1
        Arch::S390x => &[0xa7, 0x29, 0, EXIT_CODE, 0x0a, 0x01],
        // li a0, 42; li a7, 93; ecall
        Arch::Riscv64 => &[0x13, 0x05, 0xa0, 0x02, 0x93, 0x08, 0xd0, 0x05, 0x73, 0, 0, 0],
    }
}

/// A static ELF program of `arch`, about 130 bytes, that does nothing but exit with code 42.
pub fn tiny_program(arch: Arch) -> Vec<u8> {
    let code = exit_code(arch);
    let big = arch.is_big_endian();
    let mut elf = Vec::with_capacity(160);
    let u16 = |elf: &mut Vec<u8>, value: u16| elf.extend(if big { value.to_be_bytes() } else { value.to_le_bytes() });
    let u32 = |elf: &mut Vec<u8>, value: u32| elf.extend(if big { value.to_be_bytes() } else { value.to_le_bytes() });
    let u64 = |elf: &mut Vec<u8>, value: u64| elf.extend(if big { value.to_be_bytes() } else { value.to_le_bytes() });

    elf.extend([0x7f, b'E', b'L', b'F', 2, if big { 2 } else { 1 }, 1, 0]);
    elf.extend([0; 8]);
    u16(&mut elf, 2); // e_type: EXEC
    u16(&mut elf, arch.elf_machine());
    u32(&mut elf, 1); // e_version
    u64(&mut elf, LOAD_ADDRESS + HEADERS); // e_entry
    u64(&mut elf, 64); // e_phoff
    u64(&mut elf, 0); // e_shoff
    u32(&mut elf, if arch == Arch::Ppc64le { 2 } else { 0 }); // e_flags: ppc64 ELFv2
    for value in [64, 56, 1, 64, 0, 0] {
        u16(&mut elf, value); // e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx
    }
    let size = HEADERS + code.len() as u64;
    u32(&mut elf, 1); // p_type: LOAD
    u32(&mut elf, 5); // p_flags: read, execute
    u64(&mut elf, 0); // p_offset
    u64(&mut elf, LOAD_ADDRESS); // p_vaddr
    u64(&mut elf, LOAD_ADDRESS); // p_paddr
    u64(&mut elf, size); // p_filesz
    u64(&mut elf, size); // p_memsz
    u64(&mut elf, 0x1_0000); // p_align: 64 KiB suits every page size
    elf.extend(code);
    elf
}

/// Runs a tiny program of `arch` in `dir`.
///
/// # Errors
///
/// `emulator_broken` when the program does not run or exits with another code.
pub fn probe(arch: Arch, dir: &Path) -> Result<(), Failure> {
    let path = dir.join(format!("kiln-probe-{arch}"));
    let failed = |why: String| {
        Failure::new(
            Code::EmulatorBroken,
            format!("a small {arch} program does not run in the sandbox: {why}"),
        )
        .hint("the emulator was registered but does not work; try another version of qemu in the toolbox")
    };
    let write = || -> std::io::Result<()> {
        fs_err::write(&path, tiny_program(arch))?;
        fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
    };
    write().map_err(|error| Failure::io("cannot write the probe program", &error))?;
    let outcome = Command::new(&path).env_clear().status();
    // The probe is in the sandbox's own scratch space, where a leftover is harmless, so the outcome matters more.
    let _ = fs_err::remove_file(&path);
    match outcome {
        Ok(status) if status.code() == Some(i32::from(EXIT_CODE)) => Ok(()),
        Ok(status) => Err(failed(status.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulation::binfmt::emulation_of;

    #[test]
    fn the_host_runs_its_own_tiny_program() {
        let dir = tempfile::tempdir().unwrap();
        probe(Arch::host(), dir.path()).unwrap();
    }

    #[test]
    fn the_table_recognises_every_tiny_program() {
        for arch in Arch::ALL {
            let program = tiny_program(arch);
            for table in Arch::ALL {
                let entry = emulation_of(table).unwrap().entry;
                let hit = program
                    .iter()
                    .zip(&entry.magic)
                    .zip(&entry.mask)
                    .all(|((a, b), m)| a & m == b & m);
                assert_eq!(hit, arch == table, "{arch} program, {table} entry");
            }
        }
    }
}
