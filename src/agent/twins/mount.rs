//! The directory of twins inside the root: mounted for those who enter the root, and for nobody else.
//!
//! Each `chroot` gets a mount namespace of its own, so the mount is gone with the last process that needs it, blocks
//! nobody's `umount`, and cannot be packaged. Only its empty mount point is seen outside, and that is removed in the end.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open, openat},
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::stat::{Mode, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};

use crate::{agent::root::quietly, emulation::twins::layout};

/// The name of the mount point in the root.
fn name() -> &'static str {
    layout::MOUNT.trim_start_matches('/')
}

/// The name of the counters in the directory of twins.
pub(super) fn counts() -> &'static str {
    layout::COUNTS.trim_start_matches(layout::MOUNT).trim_start_matches('/')
}

/// The mount point in a root. It was not there before, and is empty.
#[derive(Debug)]
pub(super) struct MountPoint {
    root: OwnedFd,
    path: PathBuf,
}

impl MountPoint {
    /// Makes it.
    ///
    /// # Errors
    ///
    /// When the root has something of that name already: that is the recipe's, and there are no twins then.
    pub(super) fn make(root: &Path) -> io::Result<Self> {
        let path = root.join(name());
        let root = open_dir(root)?;
        quietly(&path, || Ok(mkdirat(&root, name(), Mode::from_bits_truncate(0o755))?))?;
        Ok(Self { root, path })
    }

    /// Removes it. Programs that still run in the root keep their mount.
    ///
    /// # Errors
    ///
    /// When something was put into it, which would be packaged.
    pub(super) fn remove(self) -> io::Result<()> {
        quietly(&self.path, || {
            match unlinkat(&self.root, name(), UnlinkatFlags::RemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => Ok(()),
                Err(errno) => Err(errno.into()),
            }
        })
    }
}

/// Gives this process, and those that it starts, a mount namespace with the directory of twins in `root`: read-only
/// but for the counters.
///
/// # Errors
///
/// When the kernel refuses. The process may then have a namespace of its own already, without twins in it.
pub(super) fn enter(root: &Path, world: &Path) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&Path>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let safe = MsFlags::MS_BIND | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let root = open_dir(root)?;
    let place = open_at(&root, name(), OFlag::O_DIRECTORY)?;
    mount(Some(world), &by_fd(&place), none, MsFlags::MS_BIND, none)?;
    // A path to what is mounted now; the descriptor from before leads below it.
    let mounted = open_at(&root, name(), OFlag::O_DIRECTORY)?;
    let counts = open_at(&mounted, counts(), OFlag::empty())?;
    mount(Some(&by_fd(&counts)), &by_fd(&counts), none, MsFlags::MS_BIND, none)?;
    let read_only = safe | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(none, &by_fd(&mounted), none, read_only, none)?;
    Ok(())
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(
        path,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?)
}

fn open_at(dir: &impl AsFd, name: &str, flags: OFlag) -> io::Result<OwnedFd> {
    let flags = flags | OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(openat(dir, name, flags, Mode::empty())?)
}

fn by_fd(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
