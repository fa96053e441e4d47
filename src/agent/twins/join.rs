//! Joins `kiln-exec` and the emulator into one file, which `binfmt_misc` starts and which decides before the emulator
//! begins. Reads both files and writes the joined one.
//!
//! A separate program that executes the emulator would cost more: a second exec for every emulated program, an
//! emulator that must be found in every nested root, and credentials, names and deleted files to pass on. A joined
//! file keeps all of that, since the kernel sees one program.
//!
//! The emulator's file is copied, not changed: `kiln-exec` is appended as one more segment, described by the program
//! header of a note that is not needed, and becomes the entry point.

use std::{
    io::Read,
    os::unix::fs::{FileExt, PermissionsExt},
    path::Path,
};

use kiln_inside::room::mounts;
use kiln_records::{Code, Failure};
use object::{
    LittleEndian, U64, elf, pod,
    read::elf::{FileHeader as _, ProgramHeader as _},
};

/// How much of the emulator is read: its headers.
const HEAD: usize = 4096;

/// The place in `kiln-exec`, after its entry point, for the distance to the emulator's entry point, and the
/// placeholder stored there by the build.
const DISTANCE_BEHIND_ENTRY: usize = 8;
const NO_DISTANCE: &[u8; 8] = b"KILNEXEC";

const LITTLE: LittleEndian = LittleEndian;

type FileHeader = elf::FileHeader64<LittleEndian>;
type ProgramHeader = elf::ProgramHeader64<LittleEndian>;

/// The directory of joined files inside a sandbox: on its disk, since memory is scarcer.
const JOINED: &str = "/usr/libexec/kiln";

/// Runs [`join`] inside a sandbox, with the emulator at the path `interpreter`. Returns the joined file's path.
///
/// # Errors
///
/// The errors of [`join`], and `twins_join` on a host without `kiln-exec`.
pub fn join_in_sandbox(interpreter: &str) -> Result<String, Failure> {
    let emulator = Path::new(interpreter);
    let prelude = Path::new("/run").join(mounts::PRELUDE);
    if !prelude.exists() {
        let why = "kiln-exec is not beside the agent; it is built on x86_64 and aarch64";
        return Err(Failure::new(Code::TwinsJoin, why));
    }
    let joined = Path::new(JOINED).join(emulator.file_name().unwrap_or_default());
    fs_err::create_dir_all(JOINED).map_err(|error| Failure::io("cannot put kiln-exec into the sandbox", &error))?;
    join(emulator, &prelude, &joined)?;
    Ok(joined.display().to_string())
}

/// Writes the file `joined` from the `emulator` and `prelude`, which is `kiln-exec`.
///
/// # Errors
///
/// `twins_join` unless the emulator is a static position-independent program of this machine with a note after its
/// segments, and the prelude is `kiln-exec` as Kiln's Makefile builds it.
pub fn join(emulator: &Path, prelude: &Path, joined: &Path) -> Result<(), Failure> {
    let io = |error: std::io::Error| Failure::io("cannot put kiln-exec in front of the emulator", &error);
    let refused = |path: &Path, why: &str| {
        Failure::new(
            Code::TwinsJoin,
            format!(
                "kiln-exec cannot be put in front of the emulator: {}: {why}",
                path.display()
            ),
        )
    };
    let mut image = Image::of(&fs_err::read(prelude).map_err(io)?).map_err(|why| refused(prelude, why))?;
    let mut head = Vec::with_capacity(HEAD);
    let source = fs_err::File::open(emulator).map_err(io)?;
    let size = source.metadata().map_err(io)?.len();
    source.take(HEAD as u64).read_to_end(&mut head).map_err(io)?;
    let offset = extend(&mut head, size, &mut image).map_err(|why| refused(emulator, why))?;

    // A joined file of another attempt may be in use.
    match fs_err::remove_file(joined) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    fs_err::copy(emulator, joined).map_err(io)?;
    fs_err::set_permissions(joined, std::fs::Permissions::from_mode(0o755)).map_err(io)?;
    let file = fs_err::OpenOptions::new().write(true).open(joined).map_err(io)?;
    file.file().write_all_at(&head, 0).map_err(io)?;
    file.file().write_all_at(&image.bytes, offset).map_err(io)
}

/// `kiln-exec` as mapped in memory.
struct Image {
    bytes: Vec<u8>,
    /// Offset of its entry point.
    entry: usize,
    machine: elf::Machine,
}

impl Image {
    fn of(program: &[u8]) -> Result<Self, &'static str> {
        let header = header_of(program)?;
        let segments = header
            .program_headers(LITTLE, program)
            .map_err(|_| "it has no program headers")?;
        let mut bytes = Vec::new();
        for segment in segments {
            let content = segment.data(LITTLE, program).map_err(|()| "a segment is not there")?;
            match segment.p_type(LITTLE) {
                // The only writable part is what linkers make for the loader, which a program without relocations does not
                // need.
                elf::PT_LOAD if !segment.p_flags(LITTLE).contains(elf::PF_W) => {
                    let begin = usize::try_from(segment.p_vaddr(LITTLE)).map_err(|_| "it is too large")?;
                    if begin < bytes.len() || segment.p_memsz(LITTLE) != segment.p_filesz(LITTLE) {
                        return Err("its segments are not in order");
                    }
                    bytes.resize(begin, 0);
                    bytes.extend_from_slice(content);
                }
                elf::PT_LOAD if !is_of_linker(segment, content, segments) => return Err("it has writable data"),
                elf::PT_DYNAMIC if has_relocations(content) => return Err("it has relocations"),
                _ => {}
            }
        }
        let entry = usize::try_from(header.e_entry(LITTLE)).map_err(|_| "it is too large")?;
        let machine = header.e_machine(LITTLE);
        let mut image = Self { bytes, entry, machine };
        match image.distance() {
            Some(place) if place == NO_DISTANCE => Ok(image),
            _ => Err("it is not kiln-exec"),
        }
    }

    /// The place for the distance to the emulator's entry point.
    fn distance(&mut self) -> Option<&mut [u8]> {
        let begin = self.entry.checked_add(DISTANCE_BEHIND_ENTRY)?;
        self.bytes.get_mut(begin..begin.checked_add(NO_DISTANCE.len())?)
    }
}

fn header_of(head: &[u8]) -> Result<&FileHeader, &'static str> {
    let header = FileHeader::parse(head).map_err(|_| "it is not a 64-bit ELF file")?;
    if header.e_type(LITTLE) == elf::ET_DYN && !header.is_big_endian() {
        Ok(header)
    } else {
        Err("it is not position-independent")
    }
}

/// Whether a segment consists of the dynamic section, and of an empty global offset table behind it: GNU ld, which links for
/// aarch64, reserves its first words for the address of that section and for the loader. An entry of the program's own would
/// need a relocation.
fn is_of_linker(segment: &ProgramHeader, content: &[u8], segments: &[ProgramHeader]) -> bool {
    let address = segment.p_vaddr(LITTLE);
    let section = segments
        .iter()
        .find(|other| other.p_type(LITTLE) == elf::PT_DYNAMIC && other.p_vaddr(LITTLE) == address);
    let size = section.and_then(|section| usize::try_from(section.p_memsz(LITTLE)).ok());
    let rest = size.and_then(|size| content.get(size..));
    segment.p_memsz(LITTLE) == segment.p_filesz(LITTLE)
        && rest.is_some_and(|rest| {
            let (words, odd) = rest.as_chunks::<8>();
            odd.is_empty()
                && words
                    .iter()
                    .all(|word| [0, address].contains(&u64::from_le_bytes(*word)))
        })
}

fn has_relocations(dynamic_section: &[u8]) -> bool {
    let entries = pod::slice_from_all_bytes::<elf::Dyn64<LittleEndian>>(dynamic_section).unwrap_or_default();
    entries.iter().any(|entry| {
        let tag = entry.d_tag.get(LITTLE);
        [elf::DT_RELASZ, elf::DT_RELRSZ, elf::DT_RELSZ, elf::DT_PLTRELSZ].contains(&tag) && entry.d_val.get(LITTLE) != 0
    })
}

/// Changes the emulator's headers so that `image` is its last segment and the entry point, and stores in `image` where
/// the emulator begins. Returns the offset of the image in the file.
fn extend(head: &mut [u8], size: u64, image: &mut Image) -> Result<u64, &'static str> {
    let header = *header_of(head)?;
    let segments = header
        .program_headers(LITTLE, &*head)
        .map_err(|_| "its program headers are not at its beginning")?;
    if segments.iter().any(|segment| segment.p_type(LITTLE) == elf::PT_INTERP) {
        return Err("it is not static");
    }
    if header.e_machine(LITTLE) != image.machine {
        return Err("it is for a machine other than that of kiln-exec");
    }
    let is_load = |segment: &&ProgramHeader| segment.p_type(LITTLE) == elf::PT_LOAD;
    let align = segments
        .iter()
        .filter(is_load)
        .map(|segment| segment.p_align(LITTLE))
        .max();
    let end = segments
        .iter()
        .filter(is_load)
        .map(|segment| segment.p_vaddr(LITTLE).saturating_add(segment.p_memsz(LITTLE)))
        .max();
    let (Some(align), Some(end)) = (align, end) else {
        return Err("it has no segments");
    };
    // The kernel wants loadable segments in the order of their addresses. A static program reads none of its notes.
    let last_load = segments.iter().rposition(|segment| is_load(&segment));
    let note = segments
        .iter()
        .rposition(|segment| segment.p_type(LITTLE) == elf::PT_NOTE);
    let note = note
        .filter(|note| Some(*note) > last_load)
        .ok_or("it has no note to spare")?;
    let (Some(address), Some(offset)) = (
        end.checked_next_multiple_of(align),
        size.checked_next_multiple_of(align),
    ) else {
        return Err("its segments are not aligned");
    };

    let entry = address.wrapping_add(image.entry as u64);
    let distance = header.e_entry(LITTLE).wrapping_sub(entry);
    if let Some(place) = image.distance() {
        place.copy_from_slice(&distance.to_le_bytes());
    }
    let length = U64::new(LITTLE, image.bytes.len() as u64);
    let segment = ProgramHeader {
        p_type: object::U32::new(LITTLE, elf::PT_LOAD),
        p_flags: object::U32::new(LITTLE, elf::PF_R | elf::PF_X),
        p_offset: U64::new(LITTLE, offset),
        p_vaddr: U64::new(LITTLE, address),
        p_paddr: U64::new(LITTLE, address),
        p_filesz: length,
        p_memsz: length,
        p_align: U64::new(LITTLE, align),
    };
    let at = usize::try_from(header.e_phoff(LITTLE)).unwrap_or(usize::MAX);
    put(head, at.saturating_add(note * size_of::<ProgramHeader>()), &segment);
    put(
        head,
        0,
        &FileHeader {
            e_entry: U64::new(LITTLE, entry),
            ..header
        },
    );
    Ok(offset)
}

/// Replaces a structure that was read from the same offset.
fn put<T: pod::Pod>(head: &mut [u8], at: usize, value: &T) {
    let bytes = pod::bytes_of(value);
    if let Some(place) = head.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len())) {
        place.copy_from_slice(bytes);
    }
}
