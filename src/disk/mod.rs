//! Disk images: a boot loader, an image's kernel and initrd, and its root file system, in partitions. Reads the image's files,
//! runs the host's grub-mkimage and xorriso, and writes one file.
//!
//! ```text
//!  sector 0   protective MBR, GPT
//!  1 MiB      EFI system partition (FAT): GRUB, grub.cfg, kernel, initrd
//!             the root file system: the squashfs, byte for byte
//!  end        the copy of the GPT
//! ```
//!
//! The root file system stays the squashfs whose digest is in the manifest. The disk boots as a node boots over the network: with
//! the same initrd, the same read-only root and an overlay in memory. Anything else, an ext4 for example, would be another
//! root, with files, owners and attributes that somebody has written anew. Equal files make equal disks. No loop device, no
//! mount and no root are needed. An ISO image has the same files in a file system for CDs.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use kiln_records::{Code, Failure, arch::Arch};

use partition::Partition;

mod digest;
mod esp;
mod grub;
mod initrd;
mod iso;
mod partition;
mod qcow2;
mod table;

const MIB: u64 = 1 << 20;

/// The name of the root file system, as dracut is told.
const ROOT: &str = "rootfs";

/// The forms of a disk image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The bytes of the disk.
    Raw,
    /// QEMU's format, version 2 or 3.
    Qcow2,
    /// A file system for CDs.
    Iso,
}

impl Form {
    /// Its name, which QEMU and OpenStack share.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Raw => "raw",
            Form::Qcow2 => "qcow2",
            Form::Iso => "iso",
        }
    }
}

/// The parts of a disk.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The architecture.
    pub arch: Arch,
    /// The name in the boot loader's menu.
    pub title: String,
    /// The kernel.
    pub kernel: PathBuf,
    /// The initrd.
    pub initrd: PathBuf,
    /// The root file system, a squashfs.
    pub root: PathBuf,
    /// The kernel's parameters, without those for the root file system.
    pub parameters: String,
}

/// A disk that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Bytes of the disk.
    pub disk: u64,
    /// Bytes of the file.
    pub file: u64,
    /// Whether the initrd can boot the disk. `None` if it has a format that is not known here.
    pub boots: Option<bool>,
}

/// Where the parts of a disk lie, in bytes.
struct Layout {
    esp: (u64, u64),
    root: (u64, u64),
    disk: u64,
}

impl Layout {
    fn of(boot_files: u64, root: u64) -> Result<Self, Failure> {
        let esp = esp::size_for(boot_files)?;
        let root = root.next_multiple_of(MIB);
        Ok(Self {
            esp: (MIB, esp),
            root: (MIB + esp, root),
            disk: MIB + esp + root + MIB,
        })
    }
}

/// Succeeds if there is no such file yet, so that nothing large is fetched for a disk that cannot be written.
///
/// # Errors
///
/// `disk_exists`, and `io` when its directory cannot be looked at.
pub fn must_be_new(file: &Path) -> Result<(), Failure> {
    match file.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::io(format!("cannot write {}", file.display()), &error)),
        Ok(_) => Err(
            Failure::new(Code::DiskExists, format!("{} exists already", file.display()))
                .hint("name another file, or remove this one"),
        ),
    }
}

/// Writes a disk to a file that does not exist yet, and that appears only when it is complete. Blocks.
///
/// # Errors
///
/// `disk_unsupported` when there is no boot loader for the architecture or the initrd cannot boot a disk, `disk_tool_missing` when it or a program is not
/// installed, `disk_exists`, and `io`.
pub fn write(parts: &Parts, form: Form, to: &Path) -> Result<Written, Failure> {
    must_be_new(to)?;
    let failed = |error: io::Error| Failure::io(format!("cannot write {}", to.display()), &error);
    let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    let file = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .tempfile_in(dir)
        .map_err(failed)?;
    // To unpack an initrd may take as long as to write the disk.
    let (disk, boots) = std::thread::scope(|scope| {
        let boots = scope.spawn(|| boots_live(&parts.initrd));
        let disk = synced(file.as_file(), || match form {
            Form::Raw | Form::Qcow2 => write_disk(parts, form, file.as_file()),
            Form::Iso => iso::write(parts, dir, file.as_file(), file.path()),
        });
        (disk, boots.join())
    });
    let boots = boots.map_err(|_| Failure::new(Code::DiskUnsupported, "the search of the initrd was broken off"))??;
    let disk = disk.map_err(|problem| match problem {
        Problem::Io(error) => failed(error),
        Problem::Failure(failure) => failure,
    })?;
    let size = file.as_file().metadata().map_err(failed)?.len();
    file.persist_noclobber(to).map_err(|error| failed(error.error))?;
    Ok(Written {
        disk,
        file: size,
        boots,
    })
}

/// How often what was written is sent to the disk.
const SYNC_INTERVAL: Duration = Duration::from_millis(20);

/// Does the work that writes a file, which is on the disk afterwards. The disk is busy with the first bytes while later
/// ones are computed.
fn synced<T>(file: &File, work: impl FnOnce() -> Result<T, Problem>) -> Result<T, Problem> {
    let (working, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let early = scope.spawn(move || {
            while ended.recv_timeout(SYNC_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                file.sync_data()?;
            }
            Ok(())
        });
        let done = work();
        drop(working);
        let early = early
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a sync was broken off")));
        // An error of the disk is told once, to whoever asks first.
        early?;
        done
    })
    .and_then(|done| Ok(file.sync_all().map(|()| done)?))
}

/// Whether the initrd can boot a squashfs from a disk, as far as can be seen. An initrd that cannot is a failure.
fn boots_live(initrd: &Path) -> Result<Option<bool>, Failure> {
    let boots = initrd::boots_live(initrd)
        .map_err(|error| Failure::new(Code::DiskUnsupported, format!("the initrd cannot be read: {error}")))?;
    if boots == Some(false) {
        let detail = "the initrd cannot boot a squashfs from a disk: it has no `dmsquash-live`";
        return Err(Failure::new(Code::DiskUnsupported, detail)
            .hint("make it with dracut and that module (on Debian: package dracut-live)"));
    }
    Ok(boots)
}

/// Why the bytes of a disk are not written.
enum Problem {
    Io(io::Error),
    Failure(Failure),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

fn write_disk(parts: &Parts, form: Form, mut file: &File) -> Result<u64, Problem> {
    let loader = grub::loader(parts.arch, None)?;
    let size = |path: &Path| fs_err::metadata(path).map(|metadata| metadata.len());
    let boot_files = size(&parts.kernel)? + size(&parts.initrd)? + loader.program.len() as u64;
    let layout = Layout::of(boot_files, size(&parts.root)?)?;
    let begin = match form {
        Form::Qcow2 => qcow2::write_tables(file, layout.disk)?,
        _ => 0,
    };
    file.set_len(begin + layout.disk)?;

    // The ids of disk and partitions follow from all that is in them. The root is read a second time for that while it is
    // written: a digest takes longer than either.
    let texts = [
        parts.arch.name().as_bytes(),
        parts.parameters.as_bytes(),
        &loader.program,
    ];
    let digested = || digest::of(&texts, &[&parts.kernel, &parts.initrd, &parts.root]);
    file.seek(SeekFrom::Start(begin + layout.root.0))?;
    let root = fs_err::File::open(&parts.root)?;
    let (copied, seed) = std::thread::scope(|scope| {
        let digested = scope.spawn(digested);
        // The kernel copies from file to file.
        let copied = io::copy(&mut Read::take(root.file(), layout.root.1), &mut file);
        (copied, digested.join())
    });
    copied?;
    let seed = seed.map_err(|_| io::Error::other("the digest of its parts was broken off"))??;
    let ids = table::Ids::from(seed);

    let config = grub::config(
        &parts.title,
        &parameters(&parts.parameters, &format!("/dev/disk/by-partuuid/{}", ids.root), "/"),
    );
    let partition = Partition::new(file, begin + layout.esp.0, layout.esp.1);
    let files = [
        (loader.path, esp::Content::Bytes(&loader.program)),
        (grub::CONFIG, esp::Content::Bytes(config.as_bytes())),
        (grub::KERNEL, esp::Content::File(&parts.kernel)),
        (grub::INITRD, esp::Content::File(&parts.initrd)),
    ];
    esp::write(partition, layout.esp.1, ids.volume, &files)?;
    let disk = Partition::new(file, begin, layout.disk);
    table::write(disk, layout.disk, &ids, layout.esp, layout.root)?;
    Ok(layout.disk)
}

/// The kernel's parameters for a root file system that is in a directory of this device, or is the device.
fn parameters(own: &str, device: &str, dir: &str) -> String {
    let live = format!(
        "root=live:{device} rd.live.image rd.live.overlay.overlayfs=1 rd.live.dir={dir} rd.live.squashimg={ROOT}"
    );
    format!("{own} {live}").trim().to_owned()
}

/// Runs a program of the host to its end.
fn run(command: &mut Command) -> Result<(), Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.env("LC_ALL", "C").output().map_err(|error| {
        let hint = match name.as_str() {
            "xorriso" => "install `xorriso`",
            _ => "install `grub-common`",
        };
        Failure::new(Code::DiskToolMissing, format!("cannot run {name}: {error}")).hint(hint)
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(Failure::new(Code::Io, format!("{name} failed: {last}")))
}
