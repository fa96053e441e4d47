//! Mounts the directory of twins inside the root, visible only to processes that enter the root. Makes mounts and the
//! mount point.
//!
//! Each `chroot` gets its own mount namespace, so the mount disappears with the last process that needs it, never
//! blocks an `umount`, and cannot be packaged. Only its empty mount point is visible outside, and that is removed at
//! the end.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, open, openat},
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::stat::{Mode, SFlag, fstatat, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};

use super::{root::by_fd, shelf::below_mount};
use crate::{root::quietly, twins::layout};

/// The name of the mount point in the root.
fn name() -> &'static str {
    layout::MOUNT.trim_start_matches('/')
}

/// The name of the counters in the directory of twins.
pub(super) fn counts() -> &'static str {
    below_mount(layout::COUNTS)
}

/// The name of the record of writers there.
pub(super) fn writers() -> &'static str {
    below_mount(layout::WRITERS)
}

/// The name of the list of commands whose twins gave up there.
pub(super) fn given_up() -> &'static str {
    below_mount(layout::COMMANDS_GIVEN_UP)
}

/// The mount point in a root. It was created for this, and is empty.
#[derive(Debug)]
pub(super) struct MountPoint {
    root: OwnedFd,
    path: PathBuf,
}

impl MountPoint {
    /// Makes the mount point.
    ///
    /// # Errors
    ///
    /// The root already has a file of that name: it belongs to the recipe, and there are no twins then.
    pub(super) fn make(root: &Path) -> io::Result<Self> {
        let path = root.join(name());
        let root = open_dir(root)?;
        quietly(&path, || Ok(mkdirat(&root, name(), Mode::from_bits_truncate(0o755))?))?;
        Ok(Self { root, path })
    }

    /// Removes the mount point. Programs that still run in the root keep their mount.
    ///
    /// # Errors
    ///
    /// It is not empty, and its content would be packaged.
    pub(super) fn remove(self) -> io::Result<()> {
        quietly(&self.path, || {
            match unlinkat(&self.root, name(), UnlinkatFlags::RemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => Ok(()),
                Err(errno) => Err(errno.into()),
            }
        })
    }
}

/// Gives this process and its children a mount namespace with the directory of twins in `root`: read-only except for
/// the counters, the commands given up, and the record of writers if there is one.
///
/// # Errors
///
/// The kernel refuses. The process may then have its own namespace already, without twins in it.
pub(super) fn enter(root: &Path, world: &Path) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&Path>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let safe = MsFlags::MS_BIND | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let root = open_dir(root)?;
    let place = open_at(&root, name(), OFlag::O_DIRECTORY)?;
    mount(Some(world), &by_fd(&place), none, MsFlags::MS_BIND, none)?;
    // A descriptor of the new mount; the earlier descriptor refers to the directory below it.
    let mounted = open_at(&root, name(), OFlag::O_DIRECTORY)?;
    for name in [counts(), given_up(), writers()] {
        match open_at(&mounted, name, OFlag::empty()) {
            Ok(file) => mount(Some(&by_fd(&file)), &by_fd(&file), none, MsFlags::MS_BIND, none)?,
            Err(error) if name == writers() && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let read_only = safe | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(none, &by_fd(&mounted), none, read_only, none)?;
    Ok(())
}

/// Gives the root the sandbox's devices if it has none, in the mount namespace of this process. A program that is run without them
/// would write a file `/dev/null`, which the image would keep.
///
/// # Errors
///
/// The kernel refuses.
pub(super) fn devices(root: &Path) -> io::Result<()> {
    let root = open_dir(root)?;
    // A root may have a link there, or nothing yet.
    let Ok(dev) = open_at(&root, "dev", OFlag::O_DIRECTORY) else {
        return Ok(());
    };
    let is_there = fstatat(&dev, "null", AtFlags::AT_SYMLINK_NOFOLLOW)
        .is_ok_and(|found| SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR);
    if is_there {
        return Ok(());
    }
    let none = None::<&Path>;
    mount(
        Some("/dev"),
        &by_fd(&dev),
        none,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        none,
    )?;
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
