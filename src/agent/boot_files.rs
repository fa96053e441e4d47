//! Finds kernel, initrd and kernel parameters in a finished root. Reads files of that root only, never outside it.

mod version;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    ffi::{OsStr, OsString},
    fmt::Write as _,
    io,
    path::{Component, Path, PathBuf},
};

use self::version::{INITRD_NAMES, KERNEL_NAMES, VersionKey, is_number, versioned};
use super::kernel::Kernel;
use kiln_records::{Code, Failure, arch::Arch, protocol::BootFiles};

/// The most symbolic links that one path may lead through, as in Linux.
const MOST_LINKS: usize = 40;

/// The initrd's name in `/boot` where the job's owner names none.
const USUAL_INITRD: &str = "initrd";

/// Names of an initrd beside the modules of its kernel: bootc's, and others that distributions use.
const BESIDE_MODULES: [&str; 3] = ["initramfs.img", "initrd", "initrd.img"];

/// The files from which a node boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootSet {
    /// The kernel, which may have to be unpacked.
    pub kernel: Kernel,
    /// The kernel's version, if it is known.
    pub version: Option<String>,
    /// The initrd.
    pub initrd: PathBuf,
    /// The kernel parameters, if the root has them.
    pub parameters: Option<PathBuf>,
}

/// Finds the boot files of `root`. A root without a kernel has none, which is an error if `names.required`.
///
/// The kernel is the one that the job names, else the one that the distribution links, else the newest. The initrd is
/// the one that the job names, else that of the kernel's version, else the linked one. It is never one that is for another
/// version than the kernel's.
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
    let inspected = Kernel::inspect(&kernel, arch)?;
    let version = version::of_kernel(&kernel).or_else(|| inspected.version());
    Ok(Some(BootSet {
        initrd: boot.initrd(&names.initrd, &kernel, version.as_deref())?,
        kernel: inspected,
        version,
        parameters: boot.file(&Path::new("boot").join(&names.parameters)),
    }))
}

/// The release of the newest kernel in a root that has a directory of modules as well: what `uname -r` says once it runs.
/// `version` finds out which one a kernel is whose name does not say it.
pub fn newest_release(root: &Path, version: &mut dyn FnMut(&Path) -> Option<String>) -> Option<String> {
    let boot = Boot::read(root).ok()?;
    let mut versions: Vec<&str> = boot.modules.iter().map(|(version, _)| version.as_str()).collect();
    versions.sort_by_key(|version| VersionKey::new(version));
    let newest = versions.iter().rev().find(|version| boot.has_kernel(version));
    if let Some(newest) = newest {
        return Some((*newest).to_owned());
    }
    if versions.is_empty() {
        return None;
    }
    let mut plain = KERNEL_NAMES.iter().filter_map(|name| boot.in_boot(name));
    plain.find_map(|kernel| version(&kernel).filter(|own| versions.contains(&own.as_str())))
}

/// Directories of kernel modules in a root, by the versions of their kernels.
pub fn module_directories(root: &Path) -> Vec<(String, PathBuf)> {
    let mut found = BTreeMap::new();
    for place in ["usr/lib/modules", "lib/modules"] {
        let Ok(dir) = resolve(root, Path::new(place)) else {
            continue;
        };
        for entry in fs_err::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(version) = entry.file_name().into_string() else {
                continue;
            };
            let Ok(real) = resolve(root, &Path::new(place).join(&version)) else {
                continue;
            };
            if real.is_dir() {
                found.entry(version).or_insert(real);
            }
        }
    }
    found.into_iter().collect()
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
    modules: Vec<(String, PathBuf)>,
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
        let modules = module_directories(root);
        Ok(Self { root, names, modules })
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

    /// A file beside the modules of a version.
    fn in_modules(&self, version: &str, name: &str) -> Option<PathBuf> {
        let (_, dir) = self.modules.iter().find(|(known, _)| known == version)?;
        self.file(dir.strip_prefix(self.root).ok()?.join(name).as_path())
    }

    fn kernel(&self, wanted: &str) -> Option<PathBuf> {
        self.in_boot(wanted)
            .or_else(|| KERNEL_NAMES.iter().find_map(|name| self.in_boot(name)))
            .or_else(|| self.file(Path::new("vmlinuz")))
            .or_else(|| self.newest_kernel())
    }

    /// The newest kernel in `/boot` or beside its modules, where packages of kernels have it, and leave it in a root in which
    /// nothing copies it to `/boot`.
    fn newest_kernel(&self) -> Option<PathBuf> {
        let mut kernels = Vec::new();
        for name in self.names.iter().filter(|name| !is_spare(name)) {
            for (rank, kind) in KERNEL_NAMES.iter().enumerate() {
                let Some(version) = versioned(name, kind) else { continue };
                kernels.push((VersionKey::new(version), Reverse(rank), true, name.as_str(), *kind));
            }
        }
        for (version, _) in &self.modules {
            for (rank, kind) in KERNEL_NAMES.iter().enumerate() {
                kernels.push((VersionKey::new(version), Reverse(rank), false, version, *kind));
            }
        }
        kernels.sort();
        let mut best_first = kernels.into_iter().rev();
        best_first.find_map(|(_, _, is_in_boot, name, kind)| {
            if is_in_boot {
                self.in_boot(name)
            } else {
                self.in_modules(name, kind)
            }
        })
    }

    /// Whether there is a kernel whose name has this version.
    fn has_kernel(&self, version: &str) -> bool {
        let mut in_boot = self.names.iter().filter(|name| !is_spare(name));
        let is_its = |name: &&String| KERNEL_NAMES.iter().any(|kind| versioned(name, kind) == Some(version));
        in_boot.any(|name| is_its(&name) && self.in_boot(name).is_some())
            || KERNEL_NAMES.iter().any(|kind| self.in_modules(version, kind).is_some())
    }

    /// The initrd of a kernel.
    fn initrd(&self, wanted: &str, kernel: &Path, version: Option<&str>) -> Result<PathBuf, Failure> {
        let named = self.in_boot(wanted);
        let linked = [self.in_boot("initrd.img"), self.file(Path::new("initrd.img"))];
        let candidates = named.clone().into_iter().chain(linked.into_iter().flatten());
        let Some(version) = version else {
            let mut candidates = candidates;
            return candidates
                .next()
                .or_else(|| self.only_initrd())
                .ok_or_else(|| self.no_initrd(wanted, None));
        };
        let (fitting, others): (Vec<_>, Vec<_>) = candidates.partition(|initrd| self.is_for(initrd, version));
        // The site's own choice, even of another kernel's initrd, is not replaced by one that it did not name.
        let is_chosen = wanted != USUAL_INITRD;
        let chosen = named.filter(|initrd| is_chosen || fitting.contains(initrd));
        if let Some(initrd) = chosen {
            return if self.is_for(&initrd, version) {
                Ok(initrd)
            } else {
                Err(self.mismatch(kernel, version, &initrd))
            };
        }
        let own = INITRD_NAMES
            .iter()
            .find_map(|(before, after)| self.in_boot(&format!("{before}{version}{after}")))
            .or_else(|| BESIDE_MODULES.iter().find_map(|name| self.in_modules(version, name)));
        own.or_else(|| fitting.into_iter().next())
            .ok_or_else(|| match others.first() {
                Some(other) => self.mismatch(kernel, version, other),
                None => self.no_initrd(wanted, Some(version)),
            })
    }

    /// Whether an initrd may be for the kernel of this version: its name has that version, or none. A site's name may have more
    /// after the version, unless that is another kernel's version.
    fn is_for(&self, initrd: &Path, version: &str) -> bool {
        let Some(named) = version::of_initrd(initrd).filter(|named| is_number(named)) else {
            return true;
        };
        if !is_number(version) || named == version {
            return true;
        }
        let more = named.strip_prefix(version);
        let goes_on = more.is_some_and(|more| more.starts_with(|first: char| !first.is_ascii_alphanumeric()));
        goes_on && !self.modules.iter().any(|(known, _)| *known == named)
    }

    /// The initrd, if there is only one: suitable for a kernel of unknown version.
    fn only_initrd(&self) -> Option<PathBuf> {
        match self.initrds().as_slice() {
            [only] => self.in_boot(only),
            _ => None,
        }
    }

    fn initrds(&self) -> Vec<&str> {
        let names = self.names.iter().map(String::as_str);
        let is_initrd = |name: &&str| INITRD_NAMES.iter().any(|(before, _)| name.starts_with(before));
        names.filter(is_initrd).filter(|name| !is_spare(name)).collect()
    }

    fn mismatch(&self, kernel: &Path, version: &str, initrd: &Path) -> Failure {
        let other = version::of_initrd(initrd).unwrap_or_default();
        let place = |path: &Path| path.strip_prefix(self.root).unwrap_or(path).display().to_string();
        let (kernel, initrd) = (place(kernel), place(initrd));
        let detail = format!("the kernel /{kernel} is {version}, and the initrd /{initrd} is for {other}");
        Failure::new(Code::InitrdMismatch, detail).hint(
            "make the recipe run dracut (or update-initramfs) for that kernel, or name kernel and initrd of one version",
        )
    }

    fn no_initrd(&self, wanted: &str, version: Option<&str>) -> Failure {
        let mut detail = format!("the root holds no initrd: no /boot/{wanted}");
        if let Some(version) = version {
            let _ = write!(detail, " and none for the kernel's version {version}");
        }
        let others = self.initrds();
        if !others.is_empty() {
            let _ = write!(detail, "; /boot has {}", others.join(", "));
        }
        Failure::new(Code::InitrdMissing, detail).hint(
            "make the recipe run dracut (or mkinitrd) in config.sh, or give the name of the initrd's file in /boot",
        )
    }
}

/// Whether a file is not the main one, but for a rescue system, a crash kernel or an earlier installation.
fn is_spare(name: &str) -> bool {
    name.contains("rescue") || name.contains("kdump") || Path::new(name).extension() == Some(OsStr::new("old"))
}

#[cfg(test)]
mod tests;
