//! Looks whether an initrd has what a node needs that mounts the image's squashfs. Reads the initrd and the root.

use std::{
    collections::BTreeSet,
    io::{self, BufReader},
};

use kiln_records::initrd::{Extent, names};

use super::Finished;
use crate::{boot_files::module_directories, twins::Root};

/// The modules without which no node has the image's squashfs as its root: dracut mounts it through a loop device, with an overlay
/// above it.
const NEEDED: [&str; 3] = ["squashfs", "overlay", "loop"];

/// The most bytes of the list of what is built into a kernel.
const LARGEST_LIST: u64 = 4 << 20;

/// What is known of an initrd's drivers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Drivers {
    /// Nothing is to be said: it has all, or no modules at all, since its maker did not think of any.
    Fine,
    /// It has modules, and these are not among them.
    Lacks(String),
    /// All its modules are for other kernels.
    OfAnother(String),
    /// Why nothing is known.
    Unread(String),
}

/// That needed modules are missing.
pub(super) fn lacking(finished: &Finished) -> Vec<String> {
    match drivers(finished) {
        Drivers::Lacks(text) => vec![text.clone()],
        _ => Vec::new(),
    }
}

/// That its modules are for another kernel than the one that boots with it.
pub(super) fn of_another(finished: &Finished) -> Option<String> {
    match drivers(finished) {
        Drivers::OfAnother(text) => Some(text.clone()),
        _ => None,
    }
}

/// That it is not known whether any are.
pub(super) fn unread(finished: &Finished) -> Vec<String> {
    match drivers(finished) {
        Drivers::Unread(text) => vec![text.clone()],
        _ => Vec::new(),
    }
}

fn drivers(finished: &Finished) -> &Drivers {
    finished.initrd.get_or_init(|| {
        let Some(boot) = &finished.boot else {
            return Drivers::Fine;
        };
        let place = boot.initrd.strip_prefix(&finished.root).unwrap_or(&boot.initrd);
        let unread = |why: &str| {
            Drivers::Unread(format!(
                "the modules of the initrd /{} are not known: {why}",
                place.display()
            ))
        };
        let found = match fs_err::File::open(&boot.initrd)
            .and_then(|file| Modules::of(&mut BufReader::new(file), boot.version.as_deref()))
        {
            Ok(Some(found)) => found,
            Ok(None) => return unread("it has a format that Kiln does not read"),
            Err(error) => return unread(&error.to_string()),
        };
        // The name of a kernel's file may be another than that of its modules, of which another check speaks.
        let has_modules = |version: &&str| {
            module_directories(&finished.root)
                .iter()
                .any(|(known, _)| known == version)
        };
        let of_another = |version: &&str| !found.is_for(version) && has_modules(version);
        if let Some(version) = boot.version.as_deref().filter(of_another) {
            let versions: Vec<&str> = found.versions.iter().map(String::as_str).collect();
            return Drivers::OfAnother(format!(
                "the kernel is {version}, and the initrd /{} has modules for {} only",
                place.display(),
                versions.join(", ")
            ));
        }
        let missing: Vec<&str> = NEEDED.into_iter().filter(|name| !found.needed.contains(name)).collect();
        // One without modules is for a kernel that needs none, or does something else than to mount a root.
        if missing.is_empty() || found.versions.is_empty() {
            return Drivers::Fine;
        }
        let Some(built_in) = built_in(finished, &found.versions) else {
            return unread(&format!(
                "it has no {}, and the root has no modules.builtin for its kernel",
                missing.join(", ")
            ));
        };
        let missing: Vec<&str> = missing.into_iter().filter(|name| !built_in.contains(*name)).collect();
        if missing.is_empty() {
            return Drivers::Fine;
        }
        Drivers::Lacks(format!(
            "the initrd /{} has no driver {}, and the kernel has none built in",
            place.display(),
            missing.join(", ")
        ))
    })
}

/// The modules in an initrd, as far as they matter.
struct Modules {
    needed: BTreeSet<&'static str>,
    /// The versions of the kernels that they are for.
    versions: BTreeSet<String>,
}

impl Modules {
    /// Reads names until all that is needed was seen, and a module for a kernel of this version. None if a part has a format that is
    /// not known.
    fn of(initrd: &mut dyn io::BufRead, version: Option<&str>) -> io::Result<Option<Self>> {
        let mut found = Self {
            needed: BTreeSet::new(),
            versions: BTreeSet::new(),
        };
        let extent = names(initrd, &mut |name| {
            found.see(&String::from_utf8_lossy(name));
            found.needed.len() == NEEDED.len() && version.is_none_or(|version| found.is_for(version))
        })?;
        Ok((extent != Extent::Unknown).then_some(found))
    }

    /// Whether a kernel of this version finds its modules. One without modules is for every kernel.
    fn is_for(&self, version: &str) -> bool {
        self.versions.is_empty() || self.versions.contains(version)
    }

    fn see(&mut self, path: &str) {
        let Some(module) = module(path) else { return };
        let mut before = path.split('/').skip_while(|part| *part != "modules").skip(1);
        self.versions.extend(before.next().map(str::to_owned));
        self.needed.extend(NEEDED.into_iter().find(|name| *name == module));
    }
}

/// The name of the module that a file is.
fn module(path: &str) -> Option<String> {
    let (_, file) = path.rsplit_once('/')?;
    let endings = [".ko", ".ko.xz", ".ko.zst", ".ko.gz"];
    let name = endings.iter().find_map(|ending| file.strip_suffix(ending))?;
    Some(name.replace('-', "_"))
}

/// What is built into all of these kernels. None if the root does not say it.
fn built_in(finished: &Finished, versions: &BTreeSet<String>) -> Option<BTreeSet<String>> {
    let root = Root::open(&finished.root).ok()?;
    let directories = module_directories(&finished.root);
    let lists = versions.iter().map(|version| {
        let (_, dir) = directories.iter().find(|(known, _)| known == version)?;
        let place = dir.strip_prefix(&finished.root).ok()?.join("modules.builtin");
        let list = root.text(&place, LARGEST_LIST)?;
        Some(list.lines().filter_map(module).collect::<BTreeSet<_>>())
    });
    lists.reduce(|all, list| Some(&all? & &list?)).flatten()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use kiln_records::{arch::Arch, compression::Compression, protocol::BootFiles};

    use super::*;
    use crate::{boot_files::find_boot_files, kernel::tests::sample, packing::pack};

    /// An archive in cpio's "new" format, of empty files.
    fn archive(names: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for name in names.iter().chain(&["TRAILER!!!"]) {
            write!(out, "070701{:08x}{:08x}", 0, 0o100_644).unwrap();
            write!(out, "{}{:08x}{:08x}", "00000000".repeat(9), name.len() + 1, 0).unwrap();
            out.extend(name.bytes());
            out.push(0);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out
    }

    fn of(initrd: &[u8], built_in: Option<&str>) -> Drivers {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, content: &[u8]| {
            let path = dir.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, content).unwrap();
        };
        write("boot/vmlinuz-6.1.0", &sample(Arch::X86_64));
        write("boot/initrd.img-6.1.0", initrd);
        write("usr/lib/modules/6.1.0/modules.dep", b"");
        if let Some(built_in) = built_in {
            write("usr/lib/modules/6.1.0/modules.builtin", built_in.as_bytes());
        }
        let names = BootFiles {
            kernel: "vmlinuz".to_owned(),
            initrd: "initrd".to_owned(),
            parameters: "kernel-parameters".to_owned(),
            required: true,
        };
        let boot = find_boot_files(dir.path(), Arch::X86_64, &names).unwrap();
        let finished = Finished::new(dir.path().to_owned(), Arch::X86_64, boot);
        drivers(&finished);
        finished.initrd.into_inner().unwrap()
    }

    const LOOP: &str = "usr/lib/modules/6.1.0/kernel/drivers/block/loop.ko";
    const OVERLAY: &str = "usr/lib/modules/6.1.0/kernel/fs/overlayfs/overlay.ko.xz";
    const SQUASHFS: &str = "usr/lib/modules/6.1.0/kernel/fs/squashfs/squashfs.ko.zst";

    #[test]
    fn what_is_missing_is_said_wherever_the_rest_is() {
        let early = archive(&["kernel/x86/microcode"]);
        for compression in [
            Compression::Gzip,
            Compression::Xz,
            Compression::Zstd,
            Compression::Bzip2,
        ] {
            let with = |names: &[&str]| [&early[..], &pack(compression, &archive(names))].concat();
            let all = with(&["init", LOOP, OVERLAY, SQUASHFS]);
            assert_eq!(of(&all, Some("")), Drivers::Fine);
            assert_eq!(
                of(
                    &with(&["init", OVERLAY]),
                    Some("kernel/fs/squashfs/squashfs.ko\nkernel/drivers/block/loop.ko\n")
                ),
                Drivers::Fine
            );
            let text =
                "the initrd /boot/initrd.img-6.1.0 has no driver squashfs, loop, and the kernel has none built in";
            assert_eq!(
                of(&with(&["init", OVERLAY]), Some("kernel/fs/ext4/ext4.ko\n")),
                Drivers::Lacks(text.to_owned())
            );
        }
        // A kernel without modules, or an initrd that mounts nothing.
        assert_eq!(of(&archive(&["init", "bin/sh"]), Some("")), Drivers::Fine);
    }

    #[test]
    fn an_initrd_of_another_kernel_is_noticed_whatever_its_name() {
        let of_other = |path: &str| path.replace("6.1.0", "6.0.0");
        let other = [LOOP, OVERLAY, SQUASHFS].map(of_other);
        let other: Vec<&str> = other.iter().map(String::as_str).collect();
        let text = "the kernel is 6.1.0, and the initrd /boot/initrd.img-6.1.0 has modules for 6.0.0 only";
        assert_eq!(of(&archive(&other), Some("")), Drivers::OfAnother(text.to_owned()));
        let both: Vec<&str> = other.into_iter().chain([LOOP]).collect();
        assert_eq!(of(&archive(&both), Some("")), Drivers::Fine);
    }

    #[test]
    fn what_cannot_be_read_is_not_missing() {
        let packed = pack(Compression::Zstd, &archive(&["init", OVERLAY]));
        for (initrd, built_in, why) in [
            (
                &b"\x02\x21\x4c\x18lz4"[..],
                Some(""),
                "a format that Kiln does not read",
            ),
            (&packed[..packed.len() / 2], Some(""), "initrd.img-6.1.0 are not known"),
            (
                &packed[..],
                None,
                "no squashfs, loop, and the root has no modules.builtin",
            ),
        ] {
            let Drivers::Unread(text) = of(initrd, built_in) else {
                panic!("{why}")
            };
            assert!(text.contains(why), "{text}");
        }
    }
}
