//! Decides whether glibc's loader would load a file, as `ld.so --verify` says. Reads the file.
//!
//! It is certain only of files as linkers make them: what is not known here is not decided. What the loader looks at is
//! from the sources of glibc 2.36 and 2.41 (`elf/dl-load.c`, `elf/rtld.c`, `elf/get-dynamic-info.h`).

use core::mem::MaybeUninit;

use rustix::fd::BorrowedFd;

use crate::{
    kernel::read_at,
    key::{u16_at, u32_at, u64_at},
};

/// What is read of the beginning: the headers and the notes.
const HEAD: usize = 4096;
/// The longest dynamic section, in bytes.
const LONGEST_DYNAMIC: usize = 2048;
/// The most bytes of memory that a file may want.
const LARGEST: u64 = 1 << 30;
const PAGE: u64 = 4096;

const FILE_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const MOST_SEGMENTS: usize = 32;
const SHARED: u16 = 3;
const X86_64: u16 = 62;
/// System V and GNU.
const SYSTEMS: [u8; 2] = [0, 3];

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const PT_PHDR: u32 = 6;
const PT_TLS: u32 = 7;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PT_GNU_STACK: u32 = 0x6474_e551;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PT_GNU_PROPERTY: u32 = 0x6474_e553;
const PT_RISCV_ATTRIBUTES: u32 = 0x7000_0003;
const EXECUTABLE: u32 = 1;

const NT_GNU_ABI_TAG: u32 = 1;
const NT_GNU_PROPERTY: u32 = 5;
/// Kiln's sandboxes need a newer kernel than this.
const NEWEST_KERNEL: u32 = 5;

const DT_NULL: u64 = 0;
const DT_PLTRELSZ: u64 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_RELAENT: u64 = 9;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_SONAME: u64 = 14;
const DT_REL: u64 = 17;
const DT_RELENT: u64 = 19;
const DT_PLTREL: u64 = 20;
const DT_JMPREL: u64 = 23;
const DT_RELRSZ: u64 = 35;
const DT_RELR: u64 = 36;
const DT_RELRENT: u64 = 37;
/// Entries that the loader takes for granted if it has found the first of them.
const TOGETHER: [(u64, [u64; 2]); 4] = [
    (DT_STRTAB, [DT_STRSZ, DT_SYMTAB]),
    (DT_RELA, [DT_RELASZ, DT_RELAENT]),
    (DT_JMPREL, [DT_PLTREL, DT_PLTRELSZ]),
    (DT_RELR, [DT_RELRSZ, DT_RELRENT]),
];
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// All others that are known, none of which the loader follows before it has answered.
const OTHER_TAGS: [core::ops::RangeInclusive<u64>; 8] = [
    1..=37,
    0x6fff_fff0..=0x6fff_fff0, // versions of symbols
    0x6fff_fff9..=0x6fff_fff9, // the number of relative relocations
    0x6fff_fffb..=0x6fff_ffff, // flags, and definitions and needs of versions
    0x7000_0000..=0x7000_0000, // ppc64le: its linkage table
    0x7000_0001..=0x7000_0001, // aarch64, riscv64: a linkage table of theirs
    0x7000_0003..=0x7000_0003, // ppc64le, aarch64
    0x7000_0005..=0x7000_0005, // aarch64: functions with another way of passing arguments
];

/// A program header; sizes in bytes.
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    in_file: u64,
    in_memory: u64,
    align: u64,
}

impl Segment {
    fn read(entry: &[u8]) -> Option<Self> {
        Some(Self {
            kind: u32_at(entry, 0)?,
            flags: u32_at(entry, 4)?,
            offset: u64_at(entry, 8)?,
            address: u64_at(entry, 16)?,
            in_file: u64_at(entry, 32)?,
            in_memory: u64_at(entry, 40)?,
            align: u64_at(entry, 48)?,
        })
    }

    /// Whether all of it is at the addresses where the loaded part of the file has it.
    fn is_loaded(&self, segments: Segments<'_>) -> bool {
        segments.place(self.address, self.in_file) == Some(self.offset)
    }
}

/// The program headers.
#[derive(Clone, Copy)]
struct Segments<'a>(&'a [u8]);

impl Segments<'_> {
    fn all(&self) -> impl Iterator<Item = Segment> {
        self.0
            .as_chunks::<PROGRAM_HEADER>()
            .0
            .iter()
            .filter_map(|entry| Segment::read(entry))
    }

    fn only(&self, kind: u32) -> Option<Segment> {
        let mut found = self.all().filter(|segment| segment.kind == kind);
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// The offset in the file of what is loaded at an address.
    fn place(&self, address: u64, size: u64) -> Option<u64> {
        self.all()
            .filter(|segment| segment.kind == PT_LOAD)
            .find_map(|segment| {
                let distance = address.checked_sub(segment.address)?;
                (distance.checked_add(size)? <= segment.in_file).then_some(segment.offset.checked_add(distance)?)
            })
    }
}

/// Whether a file of this `size`, which the loader whose file begins with `loader` would load, names an interpreter:
/// whether it is a program. `None` if it is not certain that it would load it.
pub fn has_interpreter(file: BorrowedFd<'_>, size: u64, loader: &[u8]) -> Option<bool> {
    let mut room = [MaybeUninit::uninit(); HEAD];
    let head = read_at(file, 0, &mut room)?;
    let machine = is_of_loader(head, loader)?;
    let count = usize::from(u16_at(head, 56)?);
    let table = head.get(FILE_HEADER..FILE_HEADER + count.min(MOST_SEGMENTS) * PROGRAM_HEADER)?;
    let segments = Segments(table);
    let is_usual = count <= MOST_SEGMENTS
        && are_loadable(segments, size)
        && segments.place(FILE_HEADER as u64, table.len() as u64) == Some(FILE_HEADER as u64)
        && segments
            .all()
            .all(|segment| is_known(&segment, segments, head, machine).is_some());
    if !is_usual {
        return None;
    }
    // Without it, the stack would have to be executable.
    segments.only(PT_GNU_STACK)?;
    is_dynamic(file, segments, segments.only(PT_DYNAMIC)?)?;
    match segments.all().filter(|segment| segment.kind == PT_INTERP).count() {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Whether a file is for the machine of the loader, by its header; returns which that is.
fn is_of_loader(head: &[u8], loader: &[u8]) -> Option<u16> {
    let same = |from: usize, to: usize| head.get(from..to) == loader.get(from..to);
    // Magic, class and byte order; machine and version; flags, such as that of the calling convention.
    let is_same = same(0, 7) && same(18, 24) && same(48, 52);
    let is_usual = SYSTEMS.contains(head.get(7)?)
        && head.get(8..16)? == [0; 8]
        && u16_at(head, 16)? == SHARED
        && u64_at(head, 32)? == FILE_HEADER as u64
        && usize::from(u16_at(head, 54)?) == PROGRAM_HEADER;
    (is_same && is_usual).then_some(u16_at(head, 18)?)
}

/// Whether the parts to be loaded are in order, aligned and in the file.
fn are_loadable(segments: Segments<'_>, size: u64) -> bool {
    let mut end = 0;
    for segment in segments.all().filter(|segment| segment.kind == PT_LOAD) {
        let Segment {
            offset,
            address,
            in_file,
            in_memory,
            align,
            ..
        } = segment;
        let is_aligned =
            align.is_power_of_two() && align >= PAGE && address.wrapping_sub(offset) & align.wrapping_sub(1) == 0;
        let is_next = if end == 0 {
            (offset, address) == (0, 0)
        } else {
            address >= end
        };
        let is_there = offset.checked_add(in_file).is_some_and(|end| end <= size);
        if !(is_aligned && is_next && is_there && in_memory > 0 && in_file <= in_memory) {
            return false;
        }
        end = address.saturating_add(in_memory);
    }
    0 < end && end <= LARGEST
}

/// Whether it is certain what the loader makes of a segment.
fn is_known(segment: &Segment, segments: Segments<'_>, head: &[u8], machine: u16) -> Option<()> {
    let is_known = match segment.kind {
        PT_LOAD | PT_GNU_EH_FRAME | PT_GNU_RELRO | PT_RISCV_ATTRIBUTES => true,
        PT_DYNAMIC | PT_INTERP => segment.in_file > 0 && segment.is_loaded(segments),
        PT_PHDR => segment.address == FILE_HEADER as u64 && segment.is_loaded(segments),
        PT_TLS => segment.align.is_power_of_two() && segment.is_loaded(segments),
        PT_GNU_STACK => segment.flags & EXECUTABLE == 0,
        // On x86_64 it may demand a newer CPU.
        PT_GNU_PROPERTY => machine != X86_64 && segment.is_loaded(segments),
        PT_NOTE => {
            let begin = usize::try_from(segment.offset).ok()?;
            let length = usize::try_from(segment.in_file).ok()?;
            let notes = head.get(begin..begin.checked_add(length)?)?;
            segment.is_loaded(segments) && demand_nothing(notes, segment.align, machine).is_some()
        }
        _ => false,
    };
    is_known.then_some(())
}

/// Whether notes want no system, kernel or CPU that might not be there.
fn demand_nothing(mut notes: &[u8], align: u64, machine: u16) -> Option<()> {
    let below = match align {
        4 | 8 => usize::try_from(align).ok()? - 1,
        _ => return None,
    };
    let aligned = |at: usize| Some(at.checked_add(below)? & !below);
    while !notes.is_empty() {
        let name = usize::try_from(u32_at(notes, 0)?).ok()?;
        let size = usize::try_from(u32_at(notes, 4)?).ok()?;
        let begin = aligned(name.checked_add(12)?)?;
        let end = begin.checked_add(size)?;
        let content = notes.get(begin..end)?;
        if notes.get(12..16)? == b"GNU\0" {
            let demands = match u32_at(notes, 8)? {
                // The system, of which 0 is Linux, and the three numbers of its version.
                NT_GNU_ABI_TAG => u32_at(content, 0)? != 0 || u32_at(content, 4)? > NEWEST_KERNEL,
                NT_GNU_PROPERTY => machine == X86_64,
                _ => false,
            };
            if demands {
                return None;
            }
        }
        // Nothing need follow the last one.
        notes = notes.get(aligned(end)?..).unwrap_or_default();
    }
    Some(())
}

/// Whether the loader would take what the dynamic section says.
fn is_dynamic(file: BorrowedFd<'_>, segments: Segments<'_>, section: Segment) -> Option<()> {
    let size = usize::try_from(section.in_file).ok()?;
    let mut room = [MaybeUninit::uninit(); LONGEST_DYNAMIC];
    let entries = read_at(file, section.offset, room.get_mut(..size)?)?;
    if entries.len() != size {
        return None;
    }
    let (mut table, mut gnu_table, mut strings, mut strings_size, mut name) = (None, None, None, 0, None);
    let mut is_ended = false;
    let mut seen = 0_u64;
    for entry in entries.as_chunks::<16>().0 {
        let (tag, value) = (u64_at(entry, 0)?, u64_at(entry, 8)?);
        let is_known = match tag {
            DT_NULL => {
                is_ended = true;
                break;
            }
            DT_RELAENT | DT_SYMENT => value == 24,
            DT_RELRENT => value == 8,
            // Relocations with their addends.
            DT_PLTREL => value == 7,
            DT_REL | DT_RELENT => false,
            DT_HASH => table.replace(value).is_none(),
            DT_GNU_HASH => gnu_table.replace(value).is_none(),
            DT_STRTAB => strings.replace(value).is_none(),
            DT_SONAME => name.replace(value).is_none(),
            DT_STRSZ => {
                strings_size = value;
                true
            }
            _ => OTHER_TAGS.iter().any(|tags| tags.contains(&tag)),
        };
        if !is_known {
            return None;
        }
        seen |= bit(tag);
    }
    let is_whole = TOGETHER
        .iter()
        .all(|(first, others)| seen & bit(*first) == 0 || others.iter().all(|other| seen & bit(*other) != 0));
    if !is_whole {
        return None;
    }
    segments.place(strings?, strings_size)?;
    let is_named = name.is_none_or(|name| name < strings_size);
    (is_ended && is_named && has_table(file, segments, table, gnu_table)?).then_some(())
}

/// A bit for each of the first tags, and none for others.
const fn bit(tag: u64) -> u64 {
    if tag < 64 { 1 << tag } else { 0 }
}

/// Whether the head of the table of symbols that the loader uses is one.
fn has_table(file: BorrowedFd<'_>, segments: Segments<'_>, table: Option<u64>, gnu_table: Option<u64>) -> Option<bool> {
    let mut room = [MaybeUninit::uninit(); 16];
    let head = read_at(file, segments.place(gnu_table.or(table)?, 16)?, &mut room)?;
    let (buckets, words) = (u32_at(head, 0)?, u32_at(head, 8)?);
    Some(buckets > 0 && (gnu_table.is_none() || words.is_power_of_two()))
}
