//! Reads the properties of an ELF file that matter for twins: whether it is executed or loaded, its name and its
//! libraries. Reads from the given file only, which may be hostile.

use std::io::{Read, Seek};

use object::{
    LittleEndian, Object, ObjectSymbol, ReadCache, ReadRef,
    elf::{self, FileHeader64},
    read::elf::{ElfFile, FileHeader, ProgramHeader},
};

type Header = FileHeader64<LittleEndian>;

/// Why an ELF file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The structure is wrong.
    #[error("{0}")]
    Structure(#[from] object::Error),
    /// What is looked for in it cannot be found out.
    #[error("{0}")]
    Untold(String),
    /// A name in it is not UTF-8.
    #[error("a name in it is not text")]
    Name,
}

/// How a dynamically linked file is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The kernel starts it: it names a loader.
    Program,
    /// Other programs load it.
    Shared,
}

/// A dynamically linked file of the host's architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// Whether it is executed or loaded.
    pub kind: Kind,
    /// The name by which linked files refer to it (`DT_SONAME`).
    pub soname: Option<String>,
    /// The names of the libraries that it needs (`DT_NEEDED`).
    pub needed: Vec<String>,
}

impl Elf {
    /// Reads the headers of `file`. `None` unless it is a dynamically linked ELF file of `machine`.
    ///
    /// # Errors
    ///
    /// The file begins as such an ELF file and is malformed further on.
    pub fn read(file: impl Read + Seek, machine: u16) -> Result<Option<Self>, Broken> {
        let cache = ReadCache::new(file);
        let Some(header) = header_of(&cache, machine) else {
            return Ok(None);
        };
        let Some(has_loader) = has_loader(header, &cache)? else {
            return Ok(None);
        };
        let table = header
            .sections(LittleEndian, &cache)?
            .dynamic_table(LittleEndian, &cache)?;
        let (mut soname, mut needed, mut is_program) = (None, Vec::new(), false);
        for entry in &table {
            match entry.tag {
                elf::DT_SONAME => soname = Some(name(table.string(entry)?)?),
                elf::DT_NEEDED => needed.push(name(table.string(entry)?)?),
                elf::DT_FLAGS_1 => is_program = entry.val & elf::DF_1_PIE.0 != 0,
                _ => {}
            }
        }
        // libc names a loader, since it can be started to print its version, and is still a library.
        let kind = if has_loader && soname.is_none() {
            Kind::Program
        } else {
            Kind::Shared
        };
        // A static position-independent program relocates itself.
        if is_program && !has_loader {
            return Ok(None);
        }
        Ok(Some(Self { kind, soname, needed }))
    }
}

/// Whether `head`, the first bytes of a file, belongs to a dynamically linked file of `machine`.
pub fn is_dynamic(head: &[u8], machine: u16) -> bool {
    header_of(head, machine).is_some_and(|header| matches!(has_loader(header, head), Ok(Some(_))))
}

/// Whether `file` defines `symbol` for other files.
///
/// # Errors
///
/// The file is malformed.
pub fn defines(file: impl Read + Seek, symbol: &str) -> Result<bool, Broken> {
    let cache = ReadCache::new(file);
    let elf = ElfFile::<Header, _>::parse(&cache)?;
    Ok(elf
        .dynamic_symbols()
        .any(|found| found.is_definition() && found.name_bytes() == Ok(symbol.as_bytes())))
}

/// The header of a 64-bit little-endian program or library of `machine`; `None` for any other file.
fn header_of<'data>(data: impl ReadRef<'data>, machine: u16) -> Option<&'data Header> {
    let header = Header::parse(data).ok()?;
    let is_linked = [elf::ET_EXEC, elf::ET_DYN].contains(&header.e_type(LittleEndian));
    (header.is_little_endian() && is_linked && header.e_machine(LittleEndian).0 == machine).then_some(header)
}

/// Whether the file names a loader for the kernel. `None` when it is not linked dynamically.
fn has_loader<'data>(header: &'data Header, data: impl ReadRef<'data>) -> object::Result<Option<bool>> {
    let segments = header.program_headers(LittleEndian, data)?;
    let has = |kind| segments.iter().any(|segment| segment.p_type(LittleEndian) == kind);
    Ok(has(elf::PT_DYNAMIC).then(|| has(elf::PT_INTERP)))
}

fn name(bytes: &[u8]) -> Result<String, Broken> {
    String::from_utf8(bytes.to_owned()).map_err(|_| Broken::Name)
}

#[cfg(test)]
mod tests {
    use std::{io::Cursor, sync::LazyLock};

    use kiln_inside::emulation::probe::tiny_program;
    use kiln_records::arch::Arch;
    use proptest::prelude::*;

    use super::*;

    /// A program that every system has, unchanged.
    static PROGRAM: LazyLock<Vec<u8>> = LazyLock::new(|| fs_err::read("/bin/true").unwrap());

    fn machine() -> u16 {
        Arch::host().elf_machine()
    }

    fn read(bytes: &[u8]) -> Result<Option<Elf>, Broken> {
        Elf::read(Cursor::new(bytes), machine())
    }

    /// Runs every function of this module on the bytes.
    fn survive(bytes: &[u8]) {
        let _ = read(bytes);
        let _ = is_dynamic(&bytes[..bytes.len().min(4096)], machine());
        let _ = defines(Cursor::new(bytes), "dlsym");
    }

    #[test]
    fn a_program_says_what_it_needs() {
        let elf = read(&PROGRAM).unwrap().unwrap();
        assert_eq!((elf.kind, &elf.soname), (Kind::Program, &None));
        assert!(elf.needed.contains(&"libc.so.6".to_owned()), "{elf:?}");
        assert!(is_dynamic(&PROGRAM[..4096], machine()));
        assert!(!defines(Cursor::new(PROGRAM.as_slice()), "dlsym").unwrap());
    }

    #[test]
    fn others_are_none() {
        let other = if Arch::host() == Arch::X86_64 {
            Arch::Aarch64
        } else {
            Arch::X86_64
        };
        assert!(matches!(
            Elf::read(Cursor::new(PROGRAM.as_slice()), other.elf_machine()),
            Ok(None)
        ));
        assert!(!is_dynamic(&PROGRAM[..4096], other.elf_machine()));
        for bytes in [tiny_program(Arch::host()), b"#!/bin/sh\n".to_vec(), Vec::new()] {
            assert!(matches!(read(&bytes), Ok(None)), "{bytes:?}");
            assert!(!is_dynamic(&bytes, machine()));
        }
    }

    #[test]
    fn files_that_break_off_are_survived() {
        for length in (0..PROGRAM.len()).step_by(61) {
            survive(&PROGRAM[..length]);
        }
    }

    #[test]
    fn every_number_of_the_headers_may_be_a_lie() {
        // The header, and the table of segments after it.
        for at in 16..64 + 13 * 56 {
            for lie in [0, 1, 0x7f, 0xff] {
                let mut bytes = PROGRAM.clone();
                bytes[at..at + 8].fill(lie);
                survive(&bytes);
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_in_a_file_can_harm(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..200)) {
            let mut bytes = PROGRAM.clone();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            survive(&bytes);
        }

        #[test]
        fn names_can_be_anything(at in 0_usize..4096, bytes in prop::collection::vec(any::<u8>(), 1..64)) {
            let mut program = PROGRAM.clone();
            let place = at.min(program.len() - bytes.len());
            program[place..place + bytes.len()].copy_from_slice(&bytes);
            survive(&program);
        }
    }
}
