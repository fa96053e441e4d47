//! Examines kernel files: their architecture, and whether they must be unpacked for a boot loader. Reads kernels, and
//! writes the unpacked one.

use std::{
    fmt::Display,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use fs_err::File;
use kiln_records::compression::Compression;
use kiln_records::{Code, Failure, arch::Arch};

/// How much of a kernel is examined. The last magic number is that of IBM Z, at 64 KiB.
const HEAD: u64 = 0x1_0010;

/// The most bytes of an unpacked kernel.
const KERNEL_BYTES: u64 = 1 << 30;

/// The most bytes of a kernel's version, as in Linux.
const VERSION_BYTES: usize = 64;

/// A kernel file of the wanted architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    path: PathBuf,
    packed: Option<Packed>,
}

/// The part of a file that contains the packed kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Packed {
    compression: Compression,
    offset: u64,
    size: u64,
}

/// The format that the beginning of a kernel shows.
#[derive(Debug, PartialEq, Eq)]
enum Content {
    /// The format that boot loaders of the architecture take.
    Bootable(Arch),
    /// An ELF file of an architecture whose boot loaders take another format.
    Vmlinux(Arch),
    /// Anything else.
    Other(String),
}

impl Kernel {
    /// Examines the file at `path`, which may be compressed or a self-unpacking EFI image. It must contain a kernel
    /// for `arch`: `kernel_wrong_arch` or `kernel_invalid` otherwise.
    pub fn inspect(path: &Path, arch: Arch) -> Result<Self, Failure> {
        let invalid = |error: io::Error| invalid(path, &error);
        let packed = find_packed(path).map_err(invalid)?;
        let kernel = Self {
            path: path.to_owned(),
            packed,
        };
        let mut head = Vec::new();
        kernel
            .open()
            .and_then(|content| content.take(HEAD).read_to_end(&mut head))
            .map_err(invalid)?;
        let what = match identify(&head) {
            Content::Bootable(found) if found == arch => return Ok(kernel),
            Content::Bootable(found) => format!("a kernel for {found}"),
            Content::Vmlinux(found) if found == arch => {
                let why = "it is an ELF file (vmlinux), which boot loaders of this architecture do not accept";
                return Err(self::invalid(path, why));
            }
            Content::Vmlinux(found) => format!("an ELF file for {found}"),
            Content::Other(what) if what.is_empty() => return Err(self::invalid(path, "its format is unknown")),
            Content::Other(what) => what,
        };
        let detail = format!("{} is {what}, but the image is for {arch}", path.display());
        Err(Failure::new(Code::KernelWrongArch, detail)
            .hint("check the architecture of the recipe's repositories against that of the job"))
    }

    /// The file that can be used unchanged; `None` when the kernel must be unpacked first.
    pub fn ready(&self) -> Option<&Path> {
        self.packed.is_none().then_some(self.path.as_path())
    }

    /// The version that the kernel has for itself, if it can be found.
    pub fn version(&self) -> Option<String> {
        self.version_in_header().or_else(|| self.version_in_banner())
    }

    /// The version as the header of an x86 kernel leads to it (Linux's Documentation/arch/x86/boot.rst, `kernel_version`).
    fn version_in_header(&self) -> Option<String> {
        let mut head = Vec::new();
        self.open().ok()?.take(HEAD).read_to_end(&mut head).ok()?;
        if head.get(0x202..0x206) != Some(b"HdrS") {
            return None;
        }
        let place = u16::from_le_bytes(head.get(0x20e..0x210)?.try_into().ok()?);
        if place == 0 {
            return None;
        }
        version_at(head.get(usize::from(place) + 0x200..)?)
    }

    /// The version in the text that every kernel writes at its start.
    fn version_in_banner(&self) -> Option<String> {
        const BANNER: &[u8] = b"Linux version ";
        let mut content = self.open().ok()?.take(KERNEL_BYTES);
        let mut piece = vec![0; 256 * 1024];
        let mut kept = 0;
        loop {
            let read = content.read(&mut piece[kept..]).ok().filter(|read| *read > 0)?;
            let filled = &piece[..kept + read];
            for at in memchr::memmem::find_iter(filled, BANNER) {
                if let Some(version) = version_at(&filled[at + BANNER.len()..]) {
                    return Some(version);
                }
            }
            // The text may lie across two pieces.
            let begin = filled.len().saturating_sub(BANNER.len() + VERSION_BYTES);
            let length = filled.len();
            piece.copy_within(begin..length, 0);
            kept = length - begin;
        }
    }

    /// Writes the kernel, unpacked, to the file `to`. Returns its size in bytes.
    pub fn write(&self, to: &Path) -> Result<u64, Failure> {
        let mut out = File::create(to).map_err(|error| Failure::io("cannot write the kernel", &error))?;
        let mut content = self.open().map_err(|error| invalid(&self.path, &error))?;
        let mut piece = vec![0; 256 * 1024];
        let mut size = 0;
        loop {
            // Reading and writing are separate: a damaged kernel and a full disk are different failures.
            let read = content.read(&mut piece).map_err(|error| invalid(&self.path, &error))?;
            if read == 0 {
                return Ok(size);
            }
            size += read as u64;
            if size > KERNEL_BYTES {
                return Err(invalid(&self.path, "it unpacks to more than 1 GiB"));
            }
            io::Write::write_all(&mut out, &piece[..read])
                .map_err(|error| Failure::io("cannot write the kernel", &error))?;
        }
    }

    /// The unpacked content.
    fn open(&self) -> io::Result<Box<dyn Read>> {
        let mut file = File::open(&self.path)?;
        let Some(packed) = self.packed else {
            return Ok(Box::new(file));
        };
        file.seek(SeekFrom::Start(packed.offset))?;
        packed.compression.first(BufReader::new(file.take(packed.size)))
    }
}

/// The version at the beginning of a text, which ends at a space.
fn version_at(text: &[u8]) -> Option<String> {
    let length = text.iter().take(VERSION_BYTES).position(|byte| *byte == b' ')?;
    let version = text.get(..length)?;
    let is_version = version.first().is_some_and(u8::is_ascii_digit) && version.iter().all(u8::is_ascii_graphic);
    is_version.then(|| String::from_utf8_lossy(version).into_owned())
}

fn invalid(path: &Path, why: impl Display) -> Failure {
    Failure::new(
        Code::KernelInvalid,
        format!("{} cannot be used as a kernel: {why}", path.display()),
    )
    .hint("give the name of the kernel's file in /boot, or make the recipe install a kernel that boot loaders accept")
}

/// Finds the packed kernel in a compressed file or in a self-unpacking EFI image (`zboot`, Linux's
/// drivers/firmware/efi/libstub/zboot-header.S).
fn find_packed(path: &Path) -> io::Result<Option<Packed>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut head = Vec::new();
    file.take(64).read_to_end(&mut head)?;
    if let Some(compression) = Compression::detect(&head) {
        return Ok(Some(Packed {
            compression,
            offset: 0,
            size: length,
        }));
    }
    if !head.starts_with(b"MZ") || head.get(4..8) != Some(b"zimg") || head.len() < 64 {
        return Ok(None);
    }
    let broken = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let number = |at| {
        head.get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u32::from_le_bytes)
    };
    let (offset, size) = (u64::from(number(8)), u64::from(number(12)));
    if offset + size > length {
        return Err(broken(format!(
            "its {size} packed bytes at {offset} go beyond the file's end"
        )));
    }
    let name: Vec<u8> = head[24..56].iter().copied().take_while(|byte| *byte != 0).collect();
    let name = String::from_utf8_lossy(&name);
    let known = [
        ("gzip", Compression::Gzip),
        ("zstd", Compression::Zstd),
        ("xz", Compression::Xz),
        ("lzma", Compression::Lzma),
    ];
    // The kernel's build writes `zstd22` and `xzkern` for its own settings of these formats.
    match known.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        Some((_, compression)) => Ok(Some(Packed {
            compression: *compression,
            offset,
            size,
        })),
        None => Err(broken(format!(
            "it is packed with `{}`, which Kiln cannot unpack",
            name.escape_debug()
        ))),
    }
}

/// Identifies an unpacked kernel by its first bytes.
fn identify(head: &[u8]) -> Content {
    let has = |at: usize, magic: &[u8]| head.get(at..at + magic.len()) == Some(magic);
    if has(0, b"\x7fELF") {
        return identify_elf(head);
    }
    // Sources: Documentation/arch/x86/boot.rst, arch/arm64/booting.rst, arch/riscv/boot-image-header.rst of Linux and,
    // for IBM Z, arch/s390/boot/head.S.
    let headers: [(usize, &[u8], Arch); 4] = [
        (0x202, b"HdrS", Arch::X86_64),
        (56, b"ARM\x64", Arch::Aarch64),
        (56, b"RSC\x05", Arch::Riscv64),
        (0x1_0008, b"S390EP", Arch::S390x),
    ];
    if let Some((_, _, arch)) = headers.iter().find(|(at, magic, _)| has(*at, magic)) {
        return Content::Bootable(*arch);
    }
    if has(0x24, &[0x18, 0x28, 0x6f, 0x01]) {
        return Content::Other("a kernel for 32-bit Arm".to_owned());
    }
    Content::Other(String::new())
}

fn identify_elf(head: &[u8]) -> Content {
    let &[
        _,
        _,
        _,
        _,
        class,
        data,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        low,
        high,
        ..,
    ] = head
    else {
        return Content::Other(String::new());
    };
    let big_endian = data == 2;
    let machine = if big_endian {
        u16::from_be_bytes([low, high])
    } else {
        u16::from_le_bytes([low, high])
    };
    let same = |arch: &Arch| arch.elf_machine() == machine && arch.is_big_endian() == big_endian && class == 2;
    match Arch::ALL.into_iter().find(same) {
        Some(arch @ (Arch::X86_64 | Arch::Aarch64)) => Content::Vmlinux(arch),
        Some(arch) => Content::Bootable(arch),
        None => {
            let (bits, order) = (
                if class == 2 { 64 } else { 32 },
                if big_endian { "big" } else { "little" },
            );
            Content::Other(format!("a {bits}-bit {order}-endian ELF file for machine {machine}"))
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::packing;

    fn with(length: usize, pieces: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (at, piece) in pieces {
            bytes[*at..at + piece.len()].copy_from_slice(piece);
        }
        bytes
    }

    fn elf(machine: u16, class: u8, big_endian: bool) -> Vec<u8> {
        let machine = if big_endian {
            machine.to_be_bytes()
        } else {
            machine.to_le_bytes()
        };
        with(
            200,
            &[(0, b"\x7fELF"), (4, &[class, 1 + u8::from(big_endian)]), (18, &machine)],
        )
    }

    /// The smallest file that passes as a kernel of `arch`.
    pub fn sample(arch: Arch) -> Vec<u8> {
        match arch {
            Arch::X86_64 => with(0x300, &[(0, b"MZ"), (0x202, b"HdrS")]),
            Arch::Aarch64 => with(200, &[(0, b"MZ"), (56, b"ARM\x64")]),
            Arch::Riscv64 => with(200, &[(0, b"MZ"), (56, b"RSC\x05")]),
            Arch::Ppc64le => elf(21, 2, false),
            Arch::S390x => with(0x1_0100, &[(0x1_0008, b"S390EP")]),
        }
    }

    fn zboot(payload: &[u8], name: &str) -> Vec<u8> {
        let size = u32::try_from(payload.len()).unwrap().to_le_bytes();
        let offset = 0x200_u32.to_le_bytes();
        let mut image = with(
            0x200,
            &[
                (0, b"MZ"),
                (4, b"zimg"),
                (8, &offset),
                (12, &size),
                (24, name.as_bytes()),
            ],
        );
        image.extend(payload);
        image.extend(b"what follows");
        image
    }

    fn inspect(content: &[u8], arch: Arch) -> Result<Option<Vec<u8>>, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kernel");
        fs_err::write(&path, content).unwrap();
        let kernel = Kernel::inspect(&path, arch)?;
        let out = dir.path().join("out");
        let size = kernel.write(&out)?;
        let written = fs_err::read(out).unwrap();
        assert_eq!(size, written.len() as u64);
        if kernel.ready().is_some() {
            assert_eq!(written, content);
            return Ok(None);
        }
        Ok(Some(written))
    }

    #[test]
    fn every_arch_knows_its_own_kernels_and_no_others() {
        for made_for in Arch::ALL {
            for wanted in Arch::ALL {
                let plain = sample(made_for);
                let packed = packing::pack(Compression::Gzip, &plain);
                if made_for == wanted {
                    assert_eq!(inspect(&plain, wanted).unwrap(), None);
                    assert_eq!(inspect(&packed, wanted).unwrap(), Some(plain));
                } else {
                    let failure = inspect(&packed, wanted).unwrap_err();
                    assert_eq!(failure.code, Code::KernelWrongArch);
                    let ends = [made_for.name(), ", but the image is for ", wanted.name()].concat();
                    assert!(failure.detail.ends_with(&ends), "{failure}");
                }
            }
        }
        assert_eq!(inspect(&elf(22, 2, true), Arch::S390x).unwrap(), None);
        assert_eq!(inspect(&elf(243, 2, false), Arch::Riscv64).unwrap(), None);
    }

    #[test]
    fn self_unpacking_efi_images_are_unpacked() {
        let plain = sample(Arch::Aarch64);
        for (compression, name) in [
            (Compression::Gzip, "gzip"),
            (Compression::Zstd, "zstd22"),
            (Compression::Zstd, "zstd"),
            (Compression::Xz, "xzkern"),
            (Compression::Lzma, "lzma"),
        ] {
            let image = zboot(&packing::pack(compression, &plain), name);
            assert_eq!(inspect(&image, Arch::Aarch64).unwrap().as_ref(), Some(&plain), "{name}");
            assert_eq!(inspect(&image, Arch::X86_64).unwrap_err().code, Code::KernelWrongArch);
        }
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        let plain = sample(Arch::Aarch64);
        let cut = packing::pack(Compression::Gzip, &plain);
        let mut beyond = zboot(&cut, "gzip");
        beyond[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        for (content, code) in [
            (Vec::new(), Code::KernelInvalid),
            (b"text".to_vec(), Code::KernelInvalid),
            (b"\x7fELF".to_vec(), Code::KernelInvalid),
            (elf(183, 2, false), Code::KernelInvalid),
            (elf(62, 2, false), Code::KernelWrongArch),
            (elf(40, 1, false), Code::KernelWrongArch),
            (elf(21, 2, true), Code::KernelWrongArch),
            (with(200, &[(0x24, &[0x18, 0x28, 0x6f, 0x01])]), Code::KernelWrongArch),
            (cut[..cut.len() / 2].to_vec(), Code::KernelInvalid),
            (zboot(&cut, "lz4"), Code::KernelInvalid),
            (zboot(b"garbage", "gzip"), Code::KernelInvalid),
            (zboot(&cut, "gzip")[..60].to_vec(), Code::KernelInvalid),
            (beyond, Code::KernelInvalid),
        ] {
            let failure = inspect(&content, Arch::Aarch64).unwrap_err();
            assert_eq!(failure.code, code, "{failure}");
            assert!(failure.hint.is_some());
        }
    }
}
