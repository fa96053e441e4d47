//! What the first bytes of a program say: its machine, and what it is started by. Pure: no I/O.

use kiln_records::arch::Arch;
use object::{
    Endianness, elf,
    read::elf::{FileHeader, ProgramHeader},
};

/// How many bytes of a program are looked at. Headers and the name of the loader lie in front.
pub const HEAD: usize = 64 << 10;

/// A program, or a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// `e_machine`.
    pub machine: u16,
    /// The path of its loader, if it has one.
    pub loader: Option<Vec<u8>>,
    bits: u8,
    is_big_endian: bool,
}

impl Program {
    /// Reads the head of a file; none if it is no ELF file.
    pub fn parse(head: &[u8]) -> Option<Self> {
        match head.get(..5)? {
            [0x7f, b'E', b'L', b'F', 2] => Self::of(elf::FileHeader64::<Endianness>::parse(head).ok()?, head, 64),
            [0x7f, b'E', b'L', b'F', 1] => Self::of(elf::FileHeader32::<Endianness>::parse(head).ok()?, head, 32),
            _ => None,
        }
    }

    fn of<H: FileHeader<Endian = Endianness>>(header: &H, head: &[u8], bits: u8) -> Option<Self> {
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, head).unwrap_or_default();
        let loader = segments
            .iter()
            .find_map(|segment| segment.interpreter(endian, head).ok().flatten());
        Some(Self {
            machine: header.e_machine(endian).0,
            loader: loader.map(<[u8]>::to_vec),
            bits,
            is_big_endian: endian == Endianness::Big,
        })
    }

    /// Its architecture, if Kiln knows it.
    pub fn arch(&self) -> Option<Arch> {
        Arch::ALL.into_iter().find(|arch| {
            arch.elf_machine() == self.machine && self.bits == 64 && arch.is_big_endian() == self.is_big_endian
        })
    }

    /// A name of its machine for people.
    pub fn machine_name(&self) -> String {
        match self.arch() {
            Some(arch) => arch.name().to_owned(),
            None => format!("ELF machine {} ({} bits)", self.machine, self.bits),
        }
    }
}

/// The interpreter of a script.
pub fn script(head: &[u8]) -> Option<Vec<u8>> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.trim_ascii().split(u8::is_ascii_whitespace).next()?;
    (!word.is_empty()).then(|| word.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_of_this_machine() {
        let head = fs_err::read("/proc/self/exe").unwrap();
        let program = Program::parse(&head[..HEAD]).unwrap();
        assert_eq!(program.arch().unwrap().name(), std::env::consts::ARCH);
        assert!(program.loader.unwrap().starts_with(b"/lib"));
        assert_eq!(Program::parse(&head[..20]), None);
        assert_eq!(Program::parse(b"\x7fELF"), None);
    }

    #[test]
    fn scripts_name_their_interpreters() {
        assert_eq!(script(b"#! /bin/sh -e\nx").unwrap(), b"/bin/sh");
        assert_eq!(script(b"#!/usr/bin/env python3").unwrap(), b"/usr/bin/env");
        assert_eq!(script(b"#!\n/bin/sh"), None);
        assert_eq!(script(b"/bin/sh"), None);
    }
}
