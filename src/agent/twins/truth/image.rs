//! Locates the parts of an ELF file that can contain strings and references to them. Works on bytes in memory: no I/O.

use std::ops::Range;

use object::{
    LittleEndian, U32, U64, elf,
    read::elf::{ElfFile, FileHeader, ProgramHeader, SectionHeader, Sym},
};

use super::Untold;

type Header = elf::FileHeader64<LittleEndian>;
type Segment = elf::ProgramHeader64<LittleEndian>;

/// Pages of the host. Segments of larger alignment are not needed for a few strings.
const PAGE: u64 = 4096;

/// A section that is mapped when the program runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::twins) struct Part {
    /// Address at which it is mapped.
    pub address: u64,
    /// Its range in the file.
    pub bytes: Range<usize>,
}

/// The relevant parts of a file.
#[derive(Debug)]
pub(in crate::twins) struct Image {
    /// Constants.
    pub constants: Vec<Part>,
    /// Code.
    pub code: Vec<Part>,
    /// Variables and tables of pointers.
    pub data: Vec<Part>,
    /// File ranges of relocations with addends, 24 bytes each.
    pub relocations: Vec<Range<usize>>,
    /// Whether the file has fixed addresses, so that instructions and data may hold them.
    pub fixed: bool,
}

impl Image {
    /// Reads the section headers of `file`, a 64-bit little-endian ELF file.
    pub fn read(file: &[u8]) -> Result<Self, Untold> {
        let broken = |error: object::read::Error| Untold::new(format!("not a whole ELF file: {error}"));
        let header = Header::parse(file).map_err(broken)?;
        let sections = header.sections(LittleEndian, file).map_err(broken)?;
        let mut image = Self {
            constants: Vec::new(),
            code: Vec::new(),
            data: Vec::new(),
            relocations: Vec::new(),
            fixed: header.e_type(LittleEndian) == elf::ET_EXEC,
        };
        for section in sections.iter() {
            let flags = section.sh_flags(LittleEndian);
            let kind = section.sh_type(LittleEndian);
            let has = |flag: elf::SectionFlags| flags.0 & flag.0 != 0;
            if !has(elf::SHF_ALLOC) || kind == elf::SHT_NOBITS {
                continue;
            }
            let (offset, size) = section.file_range(LittleEndian).unwrap_or_default();
            let bytes = range_in(file, offset, size).ok_or_else(|| Untold::new("a section lies outside the file"))?;
            let part = Part {
                address: section.sh_addr(LittleEndian),
                bytes,
            };
            if kind == elf::SHT_RELA {
                image.relocations.push(part.bytes);
            } else if has(elf::SHF_EXECINSTR) {
                image.code.push(part);
            } else if has(elf::SHF_WRITE) {
                image.data.push(part);
            } else if sections
                .section_name(LittleEndian, section)
                .is_ok_and(|name| name.starts_with(b".rodata"))
            {
                image.constants.push(part);
            }
        }
        Ok(image)
    }
}

/// The addresses of the exported functions of these names.
///
/// # Errors
///
/// The file cannot be read.
pub(super) fn exported(file: &[u8], names: &[String]) -> Result<Vec<Range<u64>>, Untold> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let broken = |error: object::read::Error| Untold::new(format!("not a whole ELF file: {error}"));
    let parsed = ElfFile::<Header>::parse(file).map_err(broken)?;
    let sections = parsed.elf_header().sections(LittleEndian, file).map_err(broken)?;
    let symbols = sections.symbols(LittleEndian, file, elf::SHT_DYNSYM).map_err(broken)?;
    let mut found = Vec::new();
    for symbol in symbols.iter().filter(|symbol| !symbol.is_undefined(LittleEndian)) {
        let name = symbol.name(LittleEndian, symbols.strings()).map_err(broken)?;
        if names.iter().any(|wanted| wanted.as_bytes() == name) {
            let begin = symbol.st_value(LittleEndian);
            found.push(begin..begin.saturating_add(symbol.st_size(LittleEndian)));
        }
    }
    Ok(found)
}

fn range_in(file: &[u8], offset: u64, size: u64) -> Option<Range<usize>> {
    let begin = usize::try_from(offset).ok()?;
    let end = begin.checked_add(usize::try_from(size).ok()?)?;
    (end <= file.len()).then_some(begin..end)
}

/// Appends `content` to `file` as a read-only segment. Returns the address at which it is mapped.
///
/// The program header is taken from a note, which no program needs to run. Headers of loaded segments are sorted by
/// address, as loaders demand.
pub(super) fn append_segment(file: &mut Vec<u8>, content: &[u8]) -> Result<u64, Untold> {
    let broken = |error: object::read::Error| Untold::new(format!("not a whole ELF file: {error}"));
    let header = Header::parse(file.as_slice()).map_err(broken)?;
    let mut segments = header
        .program_headers(LittleEndian, file.as_slice())
        .map_err(broken)?
        .to_vec();
    let table = range_in(
        file,
        header.e_phoff(LittleEndian),
        size_of_val(segments.as_slice()) as u64,
    )
    .ok_or_else(|| Untold::new("the program headers lie outside the file"))?;
    let is = |kind: elf::ProgramType| move |segment: &Segment| segment.p_type(LittleEndian) == kind;
    let note = segments
        .iter()
        .position(is(elf::PT_NOTE))
        .ok_or_else(|| Untold::new("no note to give up"))?;
    segments.remove(note);
    let last = segments
        .iter()
        .rposition(is(elf::PT_LOAD))
        .ok_or_else(|| Untold::new("nothing is loaded"))?;
    let end = segments
        .iter()
        .filter(|segment| is(elf::PT_LOAD)(segment))
        .map(|segment| {
            segment
                .p_vaddr(LittleEndian)
                .saturating_add(segment.p_memsz(LittleEndian))
        });
    let end = end.max().unwrap_or_default();

    file.resize(file.len().next_multiple_of(16), 0);
    let offset = file.len() as u64;
    let size = content.len() as u64;
    let address = end
        .checked_next_multiple_of(PAGE)
        .and_then(|page| page.checked_add(offset % PAGE))
        .filter(|address| *address < i32::MAX as u64)
        .ok_or_else(|| Untold::new("the file fills its address space"))?;
    let segment = Segment {
        p_type: U32::new(LittleEndian, elf::PT_LOAD),
        p_flags: U32::new(LittleEndian, elf::PF_R),
        p_offset: U64::new(LittleEndian, offset),
        p_vaddr: U64::new(LittleEndian, address),
        p_paddr: U64::new(LittleEndian, address),
        p_filesz: U64::new(LittleEndian, size),
        p_memsz: U64::new(LittleEndian, size),
        p_align: U64::new(LittleEndian, PAGE),
    };
    segments.insert(last + 1, segment);
    file[table].copy_from_slice(object::pod::bytes_of_slice(&segments));
    file.extend_from_slice(content);
    Ok(address)
}
