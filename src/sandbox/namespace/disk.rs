//! Disk space of a fixed size: a file system in a sparse file, mounted where no other process sees it. Makes the file,
//! a loop device and a mount.
//!
//! The mount is in the supervisor's own mount namespace, and the loop device releases the file with the last mount. If
//! any of the processes is killed, the kernel cleans up, and only one file is left.

use std::{
    os::fd::{AsRawFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use kiln_inside::room::IdMap;
use kiln_records::{Code, Failure};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

use super::child::dies_with_us;
use crate::sandbox::DiskLimit;

/// The size of an ext4 inode on disk.
const INODE_BYTES: u64 = 256;

/// A block of the file system, and of the loop device below it.
const BLOCK_BYTES: u32 = 4096;

/// The share of the size that the file system needs for its own structures: one part in this many.
const BOOKS: u64 = 64;

/// The least space for them, whatever the size.
const LEAST: u64 = 4 << 20;

/// The kind of sandbox that the disk space is for: the owners of its files depend on it.
#[derive(Debug, Clone, Copy)]
pub(super) enum For {
    /// A sandbox on this kernel, with these ids.
    Sandbox(IdMap),
    /// A virtual machine, which has all ids.
    Machine,
}

/// Makes a file system of this size in `file`.
///
/// # Errors
///
/// `sandbox_disk` with the reason.
pub(super) fn make(file: &Path, size: DiskLimit, whose: For) -> Result<(), Failure> {
    let (uid, gid) = match whose {
        For::Sandbox(ids) => (ids.uid_base, ids.gid_base),
        For::Machine => (0, 0),
    };
    let failed = |error: std::io::Error| refused(&error);
    let bytes = size.bytes + size.bytes / BOOKS + size.inodes * INODE_BYTES + LEAST;
    fs_err::File::create(file)
        .and_then(|disk| disk.set_len(bytes))
        .map_err(failed)?;
    let output = dies_with_us(&mut Command::new("mkfs.ext4"))
        .args(["-q", "-F", "-m", "0"])
        .args(["-b", &BLOCK_BYTES.to_string(), "-I", &INODE_BYTES.to_string()])
        // Nothing in a sandbox survives a crash of the machine, so there is no journal. The tables stay holes until
        // they are used.
        .args(["-O", "^has_journal,^resize_inode", "-N", &size.inodes.to_string()])
        .args(["-E", &format!("lazy_itable_init=1,nodiscard,root_owner={uid}:{gid}")])
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(refused(String::from_utf8_lossy(&output.stderr).trim()))
}

/// Checks that the machine of the disk in `file` has unmounted it; otherwise it may lack the last writes. The machine
/// may have written this itself: it is the same job's machine that believes it.
///
/// # Errors
///
/// `no_scratch` with the reason.
pub(super) fn is_unmounted(file: &Path) -> Result<(), Failure> {
    // Offset of `s_state` in the file system, whose `struct ext4_super_block` is at 1024.
    const STATE: u64 = 1024 + 0x3a;
    const CLEAN: u16 = 1;
    let mut state = [0; 2];
    fs_err::File::open(file)
        .and_then(|disk| std::os::unix::fs::FileExt::read_exact_at(disk.file(), &mut state, STATE))
        .map_err(|error| Failure::io("cannot read a machine's disk", &error))?;
    if u16::from_le_bytes(state) & CLEAN != 0 {
        return Ok(());
    }
    Err(Failure::new(
        Code::NoScratch,
        "cannot resume with the disk space: its virtual machine ended without unmounting it",
    ))
}

/// Mounts the file system in `file` on `dir`, in a mount namespace of this process alone.
///
/// # Errors
///
/// `sandbox_disk` when this process lacks the right, or there are no loop devices.
pub(super) fn mount_privately(file: &Path, dir: &Path) -> Result<(), Failure> {
    let failed = |errno: Errno| refused(errno);
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed)?;
    // What the host unmounts disappears here too, or it would stay busy; mounts made here do not show on the host.
    let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, slave, None::<&str>).map_err(failed)?;
    let (device, _attached) = attach(file)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOATIME;
    // With `discard`, space that the sandbox frees is returned to the host.
    mount(Some(&device), dir, Some("ext4"), flags, Some("discard,noinit_itable")).map_err(failed)
}

fn refused(why: impl std::fmt::Display) -> Failure {
    Failure::new(Code::SandboxDisk, format!("no disk space of a fixed size: {why}"))
}

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct loop_info64`.
#[repr(C)]
#[derive(Default)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names_and_key: [[u64; 4]; 5],
    init: [u64; 2],
}

/// Release the file when the device is no longer used.
const LO_FLAGS_AUTOCLEAR: u32 = 4;

mod ioctls {
    nix::ioctl_none_bad!(get_free, 0x4C82);
    nix::ioctl_write_ptr_bad!(configure, 0x4C0A, super::LoopConfig);
}

/// Attaches a file to a free loop device. It stays attached while the descriptor is open or the device is mounted.
fn attach(file: &Path) -> Result<(PathBuf, OwnedFd), Failure> {
    // Another process may take the free device first.
    const TRIES: u32 = 50;
    let open = |path: &Path| fs_err::OpenOptions::new().read(true).write(true).open(path);
    let failed = |error: std::io::Error| refused(&error);
    let backing = open(file).map_err(failed)?;
    let control = open(Path::new("/dev/loop-control")).map_err(failed)?;
    let config = LoopConfig {
        fd: u32::try_from(backing.as_raw_fd()).unwrap_or(u32::MAX),
        block_size: BLOCK_BYTES,
        info: LoopInfo {
            flags: LO_FLAGS_AUTOCLEAR,
            ..LoopInfo::default()
        },
        reserved: [0; 8],
    };
    for _ in 0..TRIES {
        let number = get_free(control.as_raw_fd()).map_err(refused)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open(&path).map_err(failed)?;
        match configure(device.as_raw_fd(), &config) {
            Ok(()) => return Ok((path, device.into_parts().0.into())),
            Err(Errno::EBUSY) => {}
            Err(errno) => return Err(refused(errno)),
        }
    }
    Err(refused("all loop devices are in use"))
}

fn get_free(control: RawFd) -> nix::Result<i32> {
    // SAFETY: the descriptor is open, and the call takes no argument.
    #[expect(unsafe_code, reason = "ioctls have no safe form")]
    unsafe {
        ioctls::get_free(control)
    }
}

fn configure(device: RawFd, config: &LoopConfig) -> nix::Result<()> {
    // SAFETY: the descriptor is open, and the structure has the kernel's layout.
    #[expect(unsafe_code, reason = "ioctls have no safe form")]
    unsafe { ioctls::configure(device, config) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_sizes() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
