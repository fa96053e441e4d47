//! Tiny images that boot: Debian's kernel for clouds, an initrd with a static busybox, and a squashfs with one file. They are
//! made once per run, from Debian's packages.

use std::{
    collections::BTreeMap,
    io::{Seek, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::{LazyLock, Mutex},
};

use cpio::newc::{Builder, ModeFileType, trailer};

use super::tool;

/// The modules that the initrd loads, in this order. What is not there is part of the kernel.
const MODULES: [&str; 16] = [
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "drivers/block/virtio_blk",
    "drivers/scsi/scsi_common",
    "drivers/scsi/scsi_mod",
    "drivers/cdrom/cdrom",
    "drivers/scsi/sr_mod",
    "drivers/scsi/virtio_scsi",
    "drivers/block/loop",
    "fs/isofs/isofs",
    "fs/squashfs/squashfs",
    "fs/overlayfs/overlay",
    "fs/binfmt_misc",
];

/// Process 1 of the image. `tiny.do=` in the kernel's parameters chooses how the boot ends.
const INIT: &str = include_str!("bootable/init.sh");

/// Why there is no tiny image for an architecture, if so.
pub fn lacking(arch: &str) -> Option<String> {
    let qemu = format!("qemu-system-{arch}");
    let found = Command::new(&qemu).arg("--version").output();
    if found.is_err() {
        return Some(format!("{qemu} is not installed: `.ci/install-packages test`"));
    }
    (!Path::new("/usr/bin/apt-get").exists()).then(|| "there is no apt-get".to_owned())
}

/// A directory with `rootfs`, `kernel` and `initrd`, which is called like the architecture.
pub fn tiny(arch: &str) -> PathBuf {
    static MADE: LazyLock<Mutex<BTreeMap<String, PathBuf>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap();
    let dir = made.entry(arch.to_owned()).or_insert_with(|| make(arch));
    dir.clone()
}

fn make(arch: &str) -> PathBuf {
    let debian = arch.parse::<kiln_records::arch::Arch>().unwrap().debian();
    let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bootable");
    let (packages, dir) = (base.join(debian), base.join(arch));
    fs_err::create_dir_all(&base).unwrap();
    if !packages.join("complete").exists() {
        let script = super::source_dir().join("tests/support/bootable/packages.sh");
        tool("bash", &[script.to_str().unwrap(), packages.to_str().unwrap(), debian]);
    }
    let _ = fs_err::remove_dir_all(&dir);
    fs_err::create_dir_all(dir.join("root/etc")).unwrap();
    fs_err::write(dir.join("root/etc/issue"), "Tiny root\n").unwrap();
    fs_err::create_dir_all(dir.join("root/usr/lib")).unwrap();
    fs_err::write(dir.join("root/usr/lib/os-release"), "ID=tiny\nVERSION_ID=\"0.1\"\n").unwrap();
    let paths = ["root", "rootfs"].map(|name| dir.join(name));
    let [root, rootfs] = paths.each_ref().map(|path| path.to_str().unwrap());
    tool("mksquashfs", &[root, rootfs, "-quiet", "-noappend", "-all-root"]);
    fs_err::remove_dir_all(&paths[0]).unwrap();
    let kernel = file_below(&packages.join("root/boot"), "vmlinuz-");
    fs_err::copy(kernel, dir.join("kernel")).unwrap();
    write_initrd(&packages.join("root"), &dir.join("initrd"));
    dir
}

fn file_below(dir: &Path, prefix: &str) -> PathBuf {
    let mut names = fs_err::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let found = names.find(|entry| entry.file_name().to_str().unwrap().starts_with(prefix));
    found.unwrap().path()
}

fn write_initrd(packages: &Path, to: &Path) {
    let file = fs_err::File::create(to).unwrap();
    let mut out = std::io::BufWriter::new(file);
    for dir in ["bin", "dev", "proc", "cd", "mnt", "modules"] {
        add(
            &mut out,
            Builder::new(dir)
                .mode(0o755)
                .set_mode_file_type(ModeFileType::Directory),
            &[],
        );
    }
    let console = Builder::new("dev/console").mode(0o600).rdev_major(5).rdev_minor(1);
    add(&mut out, console.set_mode_file_type(ModeFileType::Char), &[]);
    let mut file = |name: &str, content: &[u8]| {
        let entry = Builder::new(name).mode(0o755).set_mode_file_type(ModeFileType::Regular);
        add(&mut out, entry, content);
    };
    file("init", INIT.as_bytes());
    file("bin/busybox", &fs_err::read(packages.join("bin/busybox")).unwrap());
    // Kiln looks for it: the initrd can boot a root file system from a disk.
    file("sbin/dmsquash-live-root", b"");
    let modules = file_below(&packages.join("lib/modules"), "").join("kernel");
    for (turn, name) in MODULES.iter().enumerate() {
        if let Ok(content) = fs_err::read(modules.join(format!("{name}.ko"))) {
            file(&format!("modules/{turn:02}.ko"), &content);
        }
    }
    trailer(&mut out).unwrap();
    out.flush().unwrap();
}

fn add<W: Write + Seek>(out: &mut W, entry: Builder, content: &[u8]) {
    let mut writer = entry.write(out, u32::try_from(content.len()).unwrap());
    writer.write_all(content).unwrap();
    writer.finish().unwrap();
}
