//! Compares a root's kernel with its modules. Reads the root.

use std::{
    io::{BufReader, Read},
    path::{Path, PathBuf},
};

use kiln_records::compression::Compression;

use super::Finished;
use crate::{boot_files::module_directories, kernel::Kernel, twins::Root};

/// The most files that are looked at for a kernel, and for modules of one version.
const MOST_LOOKED: usize = 20_000;

/// The most modules of one version whose headers are read: those of a distribution, by the thousand, come from one build.
const MOST_READ: usize = 40;

/// The most bytes of a module, unpacked.
const LARGEST: u64 = 64 << 20;

/// The places where a kernel may be that is not delivered.
const PLACES: [&str; 6] = [
    "boot",
    "efi",
    "usr/lib/modules",
    "lib/modules",
    "usr/lib/ostree-boot",
    "usr/lib/kernel",
];

/// The deepest directory below these places.
const DEEPEST: usize = 4;

/// How the names of kernels begin, in lower case.
const BEGINNINGS: [&str; 5] = ["vmlinu", "image", "bzimage", "linux", "kernel"];

/// Modules without a kernel, a kernel without modules, and modules for another kernel.
pub(super) fn modules(finished: &Finished) -> Vec<String> {
    let directories: Vec<_> = module_directories(&finished.root)
        .into_iter()
        .filter(|(_, dir)| !first_modules(dir, 1).is_empty())
        .collect();
    let versions: Vec<&str> = directories.iter().map(|(version, _)| version.as_str()).collect();
    let Some(boot) = &finished.boot else {
        if versions.is_empty() {
            return Vec::new();
        }
        let kernels = kernels(finished);
        let place = match kernels.as_slice() {
            [] => "it is nowhere in the root".to_owned(),
            kernels => format!("the root has {}", kernels.join(", ")),
        };
        return vec![format!(
            "the root has modules for {}, and Kiln finds no kernel to deliver: {place}",
            versions.join(", ")
        )];
    };
    let Some(version) = &boot.version else {
        return Vec::new();
    };
    let Some((_, dir)) = directories.iter().find(|(known, _)| known == version) else {
        if versions.is_empty() {
            return Vec::new();
        }
        return vec![format!(
            "the kernel is {version}, and the root has modules for {} only",
            versions.join(", ")
        )];
    };
    others(finished, dir, version)
}

/// Modules in the directory of a version that were built for another one.
fn others(finished: &Finished, dir: &Path, version: &str) -> Vec<String> {
    let Ok(root) = Root::open(&finished.root) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for module in to_read(dir) {
        let Ok(place) = module.strip_prefix(&finished.root) else {
            continue;
        };
        let Some(built_for) = built_for(&root, place).filter(|other| other != version) else {
            continue;
        };
        found.push(format!(
            "/{} is a module for the kernel {built_for}, in the directory of {version}",
            place.display()
        ));
    }
    found
}

/// The modules whose headers are read: first those that do not come with the kernel itself.
fn to_read(dir: &Path) -> Vec<PathBuf> {
    let mut modules = first_modules(dir, usize::MAX);
    let with_kernel = dir.join("kernel");
    modules.sort_by_key(|module| module.starts_with(&with_kernel));
    modules.truncate(MOST_READ);
    modules
}

/// Regular files of modules below a directory, without a visit of links: those lead to modules of other kernels on purpose.
fn first_modules(dir: &Path, most: usize) -> Vec<PathBuf> {
    let (mut found, mut pending, mut seen) = (Vec::new(), vec![dir.to_owned()], 0);
    while let Some(dir) = pending.pop() {
        for entry in fs_err::read_dir(dir).into_iter().flatten().flatten() {
            seen += 1;
            let Ok(kind) = entry.file_type() else { continue };
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if kind.is_dir() {
                pending.push(entry.path());
            } else if kind.is_file()
                && [".ko", ".ko.xz", ".ko.zst", ".ko.gz"]
                    .iter()
                    .any(|end| name.ends_with(end))
            {
                found.push(entry.path());
            }
            if seen > MOST_LOOKED || found.len() >= most {
                return found;
            }
        }
    }
    found
}

/// The version of the kernel that a module was built for, as the module says it.
fn built_for(root: &Root, module: &Path) -> Option<String> {
    const FIELD: &[u8] = b"\0vermagic=";
    let (mut file, _) = root.file(module).ok()??;
    let mut head = [0; 6];
    let length = file.read(&mut head).ok()?;
    let whole = head.get(..length)?.chain(file);
    let mut content = Vec::new();
    match Compression::detect(&head) {
        Some(compression) => compression
            .reader(BufReader::new(whole))
            .ok()?
            .take(LARGEST)
            .read_to_end(&mut content),
        None => whole.take(LARGEST).read_to_end(&mut content),
    }
    .ok()?;
    let begin = memchr::memmem::find(&content, FIELD)? + FIELD.len();
    let version = content.get(begin..)?.split(|byte| matches!(byte, 0 | b' ')).next()?;
    let version = std::str::from_utf8(version).ok()?;
    version
        .bytes()
        .all(|byte| byte.is_ascii_graphic())
        .then(|| version.to_owned())
}

/// Files that are kernels, whatever their names and places, by their paths in the root.
fn kernels(finished: &Finished) -> Vec<String> {
    let (mut found, mut seen) = (Vec::new(), 0);
    let mut pending: Vec<_> = PLACES.iter().map(|place| (finished.root.join(place), 0)).collect();
    while let Some((dir, depth)) = pending.pop() {
        // A link on the way may lead out of the root.
        if !fs_err::symlink_metadata(&dir).is_ok_and(|found| found.is_dir()) {
            continue;
        }
        for entry in fs_err::read_dir(&dir).into_iter().flatten().flatten() {
            seen += 1;
            if seen > MOST_LOOKED {
                return found;
            }
            let Ok(kind) = entry.file_type() else { continue };
            let name = entry.file_name().to_string_lossy().to_lowercase();
            let is_unified = Path::new(&name).extension().is_some_and(|end| end == "efi");
            let is_named = is_unified || BEGINNINGS.iter().any(|begin| name.starts_with(begin));
            if kind.is_dir() && depth < DEEPEST && name != "kernel" {
                pending.push((entry.path(), depth + 1));
            } else if kind.is_file() && is_named && Kernel::inspect(&entry.path(), finished.arch).is_ok() {
                let path = entry.path();
                found.push(format!(
                    "/{}",
                    path.strip_prefix(&finished.root).unwrap_or(&path).display()
                ));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use kiln_records::{arch::Arch, protocol::BootFiles};

    use super::*;
    use crate::{boot_files::find_boot_files, kernel::tests::sample, packing::pack};

    fn root(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Finished) {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, content).unwrap();
        }
        let names = BootFiles {
            kernel: "vmlinuz".to_owned(),
            initrd: "initrd".to_owned(),
            parameters: "kernel-parameters".to_owned(),
            required: false,
        };
        let finished = Finished::new(
            dir.path().to_owned(),
            Arch::X86_64,
            find_boot_files(dir.path(), Arch::X86_64, &names).unwrap(),
        );
        (dir, finished)
    }

    fn module(version: &str) -> Vec<u8> {
        let mut module = b"\x7fELF and so on".to_vec();
        module.extend(format!("\0license=GPL\0vermagic={version} SMP mod_unload \0").bytes());
        module
    }

    #[test]
    fn modules_without_a_kernel_are_said_with_the_place_of_any() {
        let kernel = sample(Arch::X86_64);
        let (_dir, finished) = root(&[
            ("usr/lib/modules/6.1.0/kernel/loop.ko", &module("6.1.0")),
            ("boot/0123/6.1.0/linux", &kernel),
            ("boot/grub/linux.mod", b"no kernel"),
        ]);
        let found = modules(&finished);
        assert_eq!(found.len(), 1, "{found:?}");
        for part in ["6.1.0", "/boot/0123/6.1.0/linux"] {
            assert!(found[0].contains(part), "{found:?}");
        }
        assert!(!found[0].contains("grub"), "{found:?}");
        let (_dir, finished) = root(&[("usr/lib/modules/6.1.0/modules.dep", b"")]);
        assert_eq!(modules(&finished), Vec::<String>::new());
    }

    #[test]
    fn a_kernel_without_its_modules_is_said() {
        let kernel = sample(Arch::X86_64);
        let with = |version: &str| {
            let path = format!("usr/lib/modules/{version}/kernel/loop.ko");
            let (_dir, finished) = root(&[
                ("boot/vmlinuz-6.1.0", &kernel),
                ("boot/initrd-6.1.0", b"x"),
                (&path, &module(version)),
            ]);
            modules(&finished)
        };
        assert_eq!(with("6.1.0"), Vec::<String>::new());
        assert_eq!(
            with("6.9.0"),
            ["the kernel is 6.1.0, and the root has modules for 6.9.0 only"]
        );
    }

    #[test]
    fn a_module_of_another_kernel_is_said() {
        let kernel = sample(Arch::X86_64);
        let packed = pack(Compression::Xz, &module("6.1.0-9"));
        let (_dir, finished) = root(&[
            ("boot/vmlinuz-6.1.0", &kernel),
            ("boot/initrd-6.1.0", b"x"),
            ("usr/lib/modules/6.1.0/kernel/loop.ko", &module("6.1.0")),
            ("usr/lib/modules/6.1.0/updates/dkms/site.ko.xz", &packed),
        ]);
        let found = modules(&finished);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("/usr/lib/modules/6.1.0/updates/dkms/site.ko.xz is a module for the kernel 6.1.0-9"));
    }
}
