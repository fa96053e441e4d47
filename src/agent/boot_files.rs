//! Finds kernel, initrd and kernel parameters in a finished root. Reads files of that root only, never outside it.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    io,
    path::{Component, Path, PathBuf},
};

use super::kernel::Kernel;
use kiln_records::{Code, Failure, arch::Arch, protocol::BootFiles};

/// The most symbolic links that one path may lead through, as in Linux.
const MOST_LINKS: usize = 40;

/// Distributions' names for kernels, best first: `vmlinux` is often the one for debuggers.
const KERNEL_NAMES: [&str; 5] = ["vmlinuz", "Image", "bzImage", "image", "vmlinux"];

/// Distributions' names for initrds: the parts before and after the kernel's version.
const INITRD_NAMES: [(&str, &str); 4] = [
    ("initrd.img-", ""),
    ("initrd-", ""),
    ("initramfs-", ".img"),
    ("initramfs-", ""),
];

/// The files from which a node boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootSet {
    /// The kernel, which may have to be unpacked.
    pub kernel: Kernel,
    /// The initrd.
    pub initrd: PathBuf,
    /// The kernel parameters, if the root has them.
    pub parameters: Option<PathBuf>,
}

/// Finds the boot files of `root`. A root without a kernel has none, which is an error if `names.required`.
///
/// The kernel is the one that the job names, else the one that the distribution links, else the newest. The initrd is
/// the one that the job names, else the linked one, else that of the kernel's version.
pub fn find_boot_files(root: &Path, arch: Arch, names: &BootFiles) -> Result<Option<BootSet>, Failure> {
    let boot = Boot::read(root)?;
    let Some(kernel) = boot.kernel(&names.kernel) else {
        if !names.required {
            return Ok(None);
        }
        let detail = format!(
            "the root holds no kernel: no /boot/{} and none under its usual names",
            names.kernel
        );
        return Err(Failure::new(Code::KernelMissing, detail)
            .hint("make the recipe install a kernel package, or give the name of the kernel's file in /boot"));
    };
    let version = version_of(&kernel);
    let Some(initrd) = boot.initrd(&names.initrd, version.as_deref()) else {
        let version = version.map(|version| format!(" and none for the kernel's version {version}"));
        let detail = format!(
            "the root holds no initrd: no /boot/{}{}",
            names.initrd,
            version.unwrap_or_default()
        );
        return Err(Failure::new(Code::InitrdMissing, detail).hint(
            "make the recipe run dracut (or mkinitrd) in config.sh, or give the name of the initrd's file in /boot",
        ));
    };
    Ok(Some(BootSet {
        kernel: Kernel::inspect(&kernel, arch)?,
        initrd,
        parameters: boot.file(&Path::new("boot").join(&names.parameters)),
    }))
}

/// Writes the kernel of `set` to the file `to`, unpacking it if necessary. Returns its size in bytes.
pub fn write_kernel(set: &BootSet, to: &Path) -> Result<u64, Failure> {
    set.kernel.write(to)
}

/// Resolves `path` as a process with the root directory `root` would: absolute links start at `root`, and `..` cannot
/// leave it. The result is a path of this process, without links below `root`.
pub fn resolve(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut real = PathBuf::new();
    let mut rest: VecDeque<OsString> = names_of(path).collect();
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            real.pop();
            continue;
        }
        let place = root.join(&real).join(&name);
        if !fs_err::symlink_metadata(&place)?.is_symlink() {
            real.push(name);
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(nix::errno::Errno::ELOOP.into());
        }
        let target = fs_err::read_link(place)?;
        if target.has_root() {
            real.clear();
        }
        for name in names_of(&target).collect::<Vec<_>>().into_iter().rev() {
            rest.push_front(name);
        }
    }
    Ok(root.join(real))
}

fn names_of(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

struct Boot<'a> {
    root: &'a Path,
    /// The names in `/boot` that are valid UTF-8.
    names: Vec<String>,
}

impl<'a> Boot<'a> {
    fn read(root: &'a Path) -> Result<Self, Failure> {
        let mut names = Vec::new();
        if let Ok(dir) = resolve(root, Path::new("boot")) {
            let io = |error| Failure::io("cannot read the root's /boot", &error);
            for entry in fs_err::read_dir(dir).map_err(io)? {
                names.extend(entry.map_err(io)?.file_name().into_string());
            }
        }
        names.sort();
        Ok(Self { root, names })
    }

    /// The real path of a regular file, if it is not empty.
    fn file(&self, path: &Path) -> Option<PathBuf> {
        let real = resolve(self.root, path).ok()?;
        let found = fs_err::symlink_metadata(&real).ok()?;
        (found.is_file() && found.len() > 0).then_some(real)
    }

    fn in_boot(&self, name: &str) -> Option<PathBuf> {
        self.file(&Path::new("boot").join(name))
    }

    fn kernel(&self, wanted: &str) -> Option<PathBuf> {
        self.in_boot(wanted)
            .or_else(|| KERNEL_NAMES.iter().find_map(|name| self.in_boot(name)))
            .or_else(|| self.file(Path::new("vmlinuz")))
            .or_else(|| self.newest_kernel())
    }

    fn newest_kernel(&self) -> Option<PathBuf> {
        let mut kernels: Vec<_> = self
            .names
            .iter()
            .filter(|name| !is_spare(name))
            .filter_map(|name| {
                let rank = KERNEL_NAMES.iter().position(|kind| versioned(name, kind).is_some())?;
                let version = VersionKey::new(versioned(name, KERNEL_NAMES[rank])?);
                Some(((version, std::cmp::Reverse(rank)), name))
            })
            .collect();
        kernels.sort();
        kernels.iter().rev().find_map(|(_, name)| self.in_boot(name))
    }

    fn initrd(&self, wanted: &str, version: Option<&str>) -> Option<PathBuf> {
        let linked = self
            .in_boot(wanted)
            .or_else(|| self.in_boot("initrd.img"))
            .or_else(|| self.file(Path::new("initrd.img")));
        linked.or_else(|| match version {
            Some(version) => INITRD_NAMES
                .iter()
                .find_map(|(before, after)| self.in_boot(&format!("{before}{version}{after}"))),
            None => self.only_initrd(),
        })
    }

    /// The initrd, if there is only one: suitable for a kernel of unknown version.
    fn only_initrd(&self) -> Option<PathBuf> {
        let is_initrd = |name: &&String| INITRD_NAMES.iter().any(|(before, _)| name.starts_with(before));
        let mut found = self.names.iter().filter(is_initrd).filter(|name| !is_spare(name));
        match (found.next(), found.next()) {
            (Some(only), None) => self.in_boot(only),
            _ => None,
        }
    }
}

/// Whether a file is not the main one, but for a rescue system, a crash kernel or an earlier installation.
fn is_spare(name: &str) -> bool {
    name.contains("rescue") || name.contains("kdump") || Path::new(name).extension() == Some(OsStr::new("old"))
}

/// The version in a name such as `vmlinuz-6.1.0-18-amd64` or `vmlinux-6.4.0-default.gz`.
fn versioned<'a>(name: &'a str, kind: &str) -> Option<&'a str> {
    let version = name.strip_prefix(kind)?.strip_prefix('-')?;
    let bare = [".gz", ".xz", ".zst"]
        .iter()
        .find_map(|ending| version.strip_suffix(ending));
    Some(bare.unwrap_or(version))
}

/// The version of a kernel, from its own name or from that of its directory (`/usr/lib/modules/VERSION/vmlinuz`).
fn version_of(kernel: &Path) -> Option<String> {
    let name = kernel.file_name()?.to_str()?;
    let dir = kernel.parent()?;
    let from_name = KERNEL_NAMES.iter().find_map(|kind| versioned(name, kind));
    let from_dir = || {
        let in_modules = dir.parent()?.file_name()? == "modules";
        in_modules.then(|| dir.file_name()?.to_str()).flatten()
    };
    from_name.or_else(from_dir).map(str::to_owned)
}

/// A version in a form that sorts by its parts: `6.1.0-9` before `6.1.0-18`, and `6.9-rc1` before `6.9`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct VersionKey(Vec<Part>);

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
    fn new(version: &str) -> Self {
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

#[cfg(test)]
mod tests;
