//! What the directory of twins must know of an ELF file: whether it is started or loaded, its name, what it needs.

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
    /// Its structure is wrong.
    #[error("{0}")]
    Structure(#[from] object::Error),
    /// It names something in bytes that are no UTF-8.
    #[error("a name in it is no text")]
    Name,
}

/// How a dynamically linked file comes to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The kernel starts it: it names a loader.
    Program,
    /// Programs load it.
    Shared,
}

/// A dynamically linked file of the host's architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// Whether it is started or loaded.
    pub kind: Kind,
    /// The name that files which were linked with it ask for (`DT_SONAME`).
    pub soname: Option<String>,
    /// The names of the libraries that it asks for (`DT_NEEDED`).
    pub needed: Vec<String>,
}

impl Elf {
    /// Reads what `file` says of itself. None when it is no ELF file of `machine`, or linked statically.
    ///
    /// # Errors
    ///
    /// When it begins as such a file and is broken further on.
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
        // libc names a loader, since it can be started to tell its version, and is a library all the same.
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

/// Whether the file whose first bytes are `head` is a dynamically linked one of `machine`.
pub fn is_dynamic(head: &[u8], machine: u16) -> bool {
    header_of(head, machine).is_some_and(|header| matches!(has_loader(header, head), Ok(Some(_))))
}

/// Whether `file` defines `symbol` for others.
///
/// # Errors
///
/// When the file is broken.
pub fn defines(file: impl Read + Seek, symbol: &str) -> Result<bool, Broken> {
    let cache = ReadCache::new(file);
    let elf = ElfFile::<Header, _>::parse(&cache)?;
    Ok(elf
        .dynamic_symbols()
        .any(|found| found.is_definition() && found.name_bytes() == Ok(symbol.as_bytes())))
}

/// The header, when it is one of a 64-bit little-endian program or library of `machine`.
fn header_of<'data>(data: impl ReadRef<'data>, machine: u16) -> Option<&'data Header> {
    let header = Header::parse(data).ok()?;
    let is_linked = [elf::ET_EXEC, elf::ET_DYN].contains(&header.e_type(LittleEndian));
    (header.is_little_endian() && is_linked && header.e_machine(LittleEndian).0 == machine).then_some(header)
}

/// Whether the kernel finds the name of a loader in the file. None when the file is not linked dynamically.
fn has_loader<'data>(header: &'data Header, data: impl ReadRef<'data>) -> object::Result<Option<bool>> {
    let segments = header.program_headers(LittleEndian, data)?;
    let has = |kind| segments.iter().any(|segment| segment.p_type(LittleEndian) == kind);
    Ok(has(elf::PT_DYNAMIC).then(|| has(elf::PT_INTERP)))
}

fn name(bytes: &[u8]) -> Result<String, Broken> {
    String::from_utf8(bytes.to_owned()).map_err(|_| Broken::Name)
}
