//! Versions of kernels: their order, and the names of files that have one. Pure: no I/O.

use std::path::Path;

/// Distributions' names for kernels, best first: `vmlinux` is often the one for debuggers.
pub(super) const KERNEL_NAMES: [&str; 5] = ["vmlinuz", "Image", "bzImage", "image", "vmlinux"];

/// Distributions' names for initrds: the parts before and after the kernel's version.
pub(super) const INITRD_NAMES: [(&str, &str); 5] = [
    ("initrd.img-", ""),
    ("initrd-", ".img"),
    ("initrd-", ""),
    ("initramfs-", ".img"),
    ("initramfs-", ""),
];

/// The version in a name such as `vmlinuz-6.1.0-18-amd64` or `vmlinux-6.4.0-default.gz`.
pub(super) fn versioned<'a>(name: &'a str, kind: &str) -> Option<&'a str> {
    let version = name.strip_prefix(kind)?.strip_prefix('-')?;
    let bare = [".gz", ".xz", ".zst"]
        .iter()
        .find_map(|ending| version.strip_suffix(ending));
    Some(bare.unwrap_or(version))
}

/// The version of a kernel, from its own name or from that of its directory (`/usr/lib/modules/VERSION/vmlinuz`).
pub(super) fn of_kernel(kernel: &Path) -> Option<String> {
    let name = kernel.file_name()?.to_str()?;
    let from_name = KERNEL_NAMES.iter().find_map(|kind| versioned(name, kind));
    from_name.or_else(|| of_directory(kernel)).map(str::to_owned)
}

/// The version of the kernel that an initrd is for, likewise.
pub(super) fn of_initrd(initrd: &Path) -> Option<String> {
    let name = initrd.file_name()?.to_str()?;
    let bare = name.strip_suffix(".img").unwrap_or(name);
    let from_name = ["initrd.img-", "initrd-", "initramfs-"]
        .iter()
        .find_map(|before| bare.strip_prefix(before));
    from_name.or_else(|| of_directory(initrd)).map(str::to_owned)
}

fn of_directory(file: &Path) -> Option<&str> {
    let dir = file.parent()?;
    let in_modules = dir.parent()?.file_name()? == "modules";
    in_modules.then(|| dir.file_name()?.to_str()).flatten()
}

/// Whether a name is a version of Linux, and not a word such as `lts` or `custom`.
pub(super) fn is_number(version: &str) -> bool {
    version.starts_with(|first: char| first.is_ascii_digit())
}

/// A version in a form that sorts by its parts: `6.1.0-9` before `6.1.0-18`, and `6.9-rc1` before `6.9`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VersionKey(Vec<Part>);

/// A part of a version; the variants are in sort order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// Sorts before the end of a version.
    Before,
    End,
    Separator(char),
    Word(String),
    /// A number of any length: its number of digits without leading zeros, and the digits.
    Number(usize, String),
}

impl VersionKey {
    pub(super) fn new(version: &str) -> Self {
        let version = version.replace("-rc", "~rc");
        let mut parts = Vec::new();
        let mut rest = version.as_str();
        while let Some(first) = rest.chars().next() {
            let kind: fn(char) -> bool = match first {
                '0'..='9' => |c| c.is_ascii_digit(),
                c if c.is_alphabetic() => char::is_alphabetic,
                _ => |_| false,
            };
            let end = rest.find(|c| !kind(c)).unwrap_or(rest.len()).max(first.len_utf8());
            let (part, after) = rest.split_at(end);
            parts.push(match first {
                '0'..='9' => {
                    let digits = part.trim_start_matches('0');
                    Part::Number(digits.len(), digits.to_owned())
                }
                '~' => Part::Before,
                c if c.is_alphabetic() => Part::Word(part.to_owned()),
                c => Part::Separator(c),
            });
            rest = after;
        }
        parts.push(Part::End);
        Self(parts)
    }
}
