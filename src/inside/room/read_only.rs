//! Makes a mount read-only together with all mounts below it. Changes mounts, and reads the kernel's list of them.
//!
//! Since Linux 5.12 the kernel does it in one step, and only adds to what is locked in mounts of another user namespace. Before,
//! each mount has to be named, with all that is locked in it.

use std::{ffi::CString, io, os::unix::ffi::OsStrExt, path::Path};

use nix::{
    errno::Errno,
    libc,
    mount::{MsFlags, mount},
    sys::statvfs::{FsFlags, statvfs},
};

use super::mounted_below;

/// Makes a mount and all mounts below it read-only, without devices and programs with the rights of their owners.
///
/// # Errors
///
/// The kernel refuses it for one of them.
pub fn make_read_only(tree: &Path) -> io::Result<()> {
    match at_once(tree) {
        Err(Errno::ENOSYS | Errno::EPERM) => one_by_one(tree),
        done => Ok(done?),
    }
}

#[expect(unsafe_code, reason = "no library has mount_setattr")]
fn at_once(tree: &Path) -> Result<(), Errno> {
    let path = CString::new(tree.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: path and attributes live during the call, whose last argument is the size of the latter.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of_val(&attributes),
        )
    };
    Errno::result(done).map(drop)
}

fn one_by_one(tree: &Path) -> io::Result<()> {
    let known = [
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ];
    for place in mounted_below(tree)? {
        // What another user namespace has locked has to stay.
        let has = statvfs(&place)?.flags();
        let kept = known
            .into_iter()
            .filter(|(flag, _)| has.contains(*flag))
            .map(|(_, flag)| flag);
        let flags = MsFlags::MS_BIND
            | MsFlags::MS_REMOUNT
            | MsFlags::MS_RDONLY
            | MsFlags::MS_NOSUID
            | MsFlags::MS_NODEV
            | kept.collect::<MsFlags>();
        mount(None::<&str>, &place, None::<&str>, flags, None::<&str>)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// In a mount namespace of its own, where mounts come from another user namespace: how a tree with mounts below it is shown.
    fn shown(dir: &Path, make: fn(&Path) -> io::Result<()>) -> io::Result<()> {
        let (from, to) = (dir.join("usr"), dir.join("root"));
        fs_err::create_dir_all(from.join("local"))?;
        fs_err::create_dir(&to)?;
        let none = None::<&str>;
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        let flags = MsFlags::MS_NOEXEC | MsFlags::MS_NODEV | MsFlags::MS_NOATIME;
        mount(Some("kiln-test"), &from.join("local"), Some("tmpfs"), flags, none)?;
        fs_err::write(from.join("local/tool"), "")?;
        // From here on, these mounts are locked together.
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
        let bound = |flags| mount(Some(&from), &to, none, flags, none);
        assert_eq!(bound(MsFlags::MS_BIND), Err(Errno::EINVAL), "nothing is locked");
        bound(MsFlags::MS_BIND | MsFlags::MS_REC)?;
        make(&to)?;
        assert!(to.join("local/tool").exists());
        for place in [to.clone(), to.join("local")] {
            let has = statvfs(&place)?.flags();
            assert!(
                has.contains(FsFlags::ST_RDONLY | FsFlags::ST_NOSUID | FsFlags::ST_NODEV),
                "{has:?}"
            );
        }
        assert!(
            statvfs(&to.join("local"))?
                .flags()
                .contains(FsFlags::ST_NOEXEC | FsFlags::ST_NOATIME)
        );
        Ok(())
    }

    #[test]
    fn mounts_below_a_directory_are_read_only_as_well() {
        // Nobody else may make a mount.
        if nix::unistd::Uid::effective().is_root() {
            for make in [make_read_only, one_by_one] {
                let dir = tempfile::tempdir().unwrap();
                in_a_child(|| shown(dir.path(), make)).unwrap();
            }
        }
    }

    /// Runs it in a process of one thread.
    #[expect(
        unsafe_code,
        clippy::exit,
        reason = "a thread of the test program cannot enter a user namespace"
    )]
    fn in_a_child(work: impl Fn() -> io::Result<()>) -> Result<(), String> {
        use nix::{
            sys::wait::{WaitStatus, waitpid},
            unistd::{ForkResult, fork},
        };
        // SAFETY: the child uses the C library's allocator, which survives a fork, and takes no lock of another thread.
        match unsafe { fork() }.map_err(|errno| errno.to_string())? {
            ForkResult::Child => {
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                std::process::exit(match done {
                    Ok(Ok(())) => 0,
                    Ok(Err(_)) => 2,
                    Err(_) => 3,
                })
            }
            ForkResult::Parent { child } => match waitpid(child, None) {
                Ok(WaitStatus::Exited(_, 0)) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        }
    }
}
