//! Collects the kernel modules that a machine needs, in an order in which they can be loaded. Reads the given
//! directory only.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    path::{Path, PathBuf},
};

use kiln_records::{Code, Failure};

/// Modules for the devices of Kiln's machines, and for builds. Some kernels have some of them built in.
const WANTED: [&str; 8] = [
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_console",
    "squashfs",
    "ext4",
    "overlay",
    "binfmt_misc",
];

/// An unpacked module.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: String,
    pub(super) content: Vec<u8>,
}

/// The modules that a machine needs, from the kernel's directory `dir`, each after its dependencies.
///
/// # Errors
///
/// `vm_kernel` when a module is neither there nor built in.
pub(super) fn needed(dir: &Path) -> Result<Vec<Module>, Failure> {
    let failed =
        |error: std::io::Error| Failure::new(Code::VmKernel, format!("cannot read the kernel's modules: {error}"));
    let built_in = fs_err::read_to_string(dir.join("modules.builtin")).map_err(failed)?;
    let mut files = BTreeMap::new();
    find(&dir.join("kernel"), &mut files).map_err(failed)?;
    let mut search = Search {
        files,
        built_in: built_in.lines().filter_map(|line| name_of(Path::new(line))).collect(),
        seen: BTreeSet::new(),
        found: Vec::new(),
    };
    WANTED.iter().try_for_each(|name| search.add(name))?;
    Ok(search.found)
}

struct Search {
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
    seen: BTreeSet<String>,
    found: Vec<Module>,
}

impl Search {
    fn add(&mut self, name: &str) -> Result<(), Failure> {
        if self.built_in.contains(name) || !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(path) = self.files.get(name) else {
            return Err(Failure::new(Code::VmKernel, format!("the kernel has no module {name}")));
        };
        let content =
            read(path).map_err(|error| Failure::new(Code::VmKernel, format!("{}: {error}", path.display())))?;
        for other in depends(&content) {
            self.add(&other)?;
        }
        let name = name.to_owned();
        self.found.push(Module { name, content });
        Ok(())
    }
}

/// Collects every module below `dir` by name.
fn find(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in fs_err::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find(&entry.path(), files)?;
        } else if let Some(name) = name_of(&entry.path()) {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// `virtio_rng` for `…/virtio-rng.ko.xz`: the kernel treats dashes and underscores alike.
fn name_of(path: &Path) -> Option<String> {
    let (name, _) = path.file_name()?.to_str()?.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut file = fs_err::File::open(path)?;
    if path.extension().is_some_and(|extension| extension == "xz") {
        liblzma::read::XzDecoder::new(file).read_to_end(&mut content)?;
    } else {
        file.read_to_end(&mut content)?;
    }
    Ok(content)
}

/// The dependencies of a module: `depends=a,b` among the NUL-terminated texts of its section `.modinfo`. The package
/// has no `modules.dep`, which is only made during installation.
fn depends(module: &[u8]) -> Vec<String> {
    let texts = module.split(|byte| *byte == 0);
    let found = texts
        .filter_map(|text| text.strip_prefix(b"depends="))
        .find_map(|text| std::str::from_utf8(text).ok());
    let names = found.unwrap_or_default().split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_need_and_what_is_built_in_does_not_come() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, depends: &str| {
            let path = dir.path().join("kernel/some/where").join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, format!("ELF\0license=GPL\0depends={depends}\0name=x\0")).unwrap();
        };
        fs_err::write(
            dir.path().join("modules.builtin"),
            "kernel/virtio_pci.ko\nkernel/ext4.ko\nkernel/virtio_console.ko\nkernel/squashfs.ko\n",
        )
        .unwrap();
        write("virtio-net.ko", "net-failover");
        write("net_failover.ko", "failover");
        write("failover.ko", "");
        write("virtio_blk.ko", "failover,ext4");
        write("overlay.ko", "");
        assert_eq!(needed(dir.path()).unwrap_err().code, Code::VmKernel);
        write("binfmt_misc.ko", "");
        let names: Vec<_> = needed(dir.path())
            .unwrap()
            .into_iter()
            .map(|module| module.name)
            .collect();
        let expected = [
            "failover",
            "virtio_blk",
            "net_failover",
            "virtio_net",
            "overlay",
            "binfmt_misc",
        ];
        assert_eq!(names, expected);
    }
}
