//! The few system calls that set up a sandbox's mounts, behind a trait, so that the order of mounts can be tested
//! without root. Mounts, and writes files of the new root.

use std::path::Path;

use kiln_records::{Code, Failure};
use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
};

use super::read_only::make_read_only;

/// The operations for setting up a sandbox. All paths are absolute.
pub trait Kernel {
    /// `mount(2)`.
    fn mount(&mut self, source: &str, target: &Path, kind: &str, flags: MsFlags, data: &str) -> Result<(), Failure>;
    /// Makes a mount and all mounts below it read-only, without devices and programs with the rights of their owners.
    fn read_only(&mut self, tree: &Path) -> Result<(), Failure>;
    /// Makes a directory and its parents.
    fn mkdir(&mut self, path: &Path) -> Result<(), Failure>;
    /// Makes a file with this content, replacing an existing one.
    fn write(&mut self, path: &Path, content: &str) -> Result<(), Failure>;
    /// Makes a symbolic link.
    fn symlink(&mut self, target: &str, path: &Path) -> Result<(), Failure>;
    /// Makes `root` the root directory and releases the old one.
    fn enter_root(&mut self, root: &Path) -> Result<(), Failure>;
}

/// The real operations.
#[derive(Debug)]
pub struct Linux;

impl Kernel for Linux {
    fn mount(&mut self, source: &str, target: &Path, kind: &str, flags: MsFlags, data: &str) -> Result<(), Failure> {
        let some = |text| if str::is_empty(text) { None } else { Some(text) };
        mount(some(source), target, some(kind), flags, some(data)).map_err(|errno| {
            let what = if kind.is_empty() { "bind" } else { kind };
            Failure::new(
                Code::SandboxMount,
                format!("cannot mount {what} on {}: {errno}", target.display()),
            )
            .hint(match kind {
                "" if errno == Errno::EINVAL => {
                    "a user namespace shows no directory without what the host has mounted below it; see /proc/self/mountinfo"
                }
                "proc" => {
                    "this happens inside containers that mask parts of /proc; run Kiln on the host or unmask /proc"
                }
                "overlay" => "overlay inside user namespaces needs Linux 5.11 or newer",
                _ => "a security module may forbid mounts in user namespaces; see the kernel log",
            })
        })
    }

    fn read_only(&mut self, tree: &Path) -> Result<(), Failure> {
        make_read_only(tree).map_err(|error| {
            let what = format!("cannot make {} read-only: {error}", tree.display());
            Failure::new(Code::SandboxMount, what)
        })
    }

    fn mkdir(&mut self, path: &Path) -> Result<(), Failure> {
        fs_err::create_dir_all(path).map_err(|error| Failure::io("cannot set up the root of the sandbox", &error))
    }

    fn write(&mut self, path: &Path, content: &str) -> Result<(), Failure> {
        // A link in the toolbox (resolv.conf is one on many systems) would lead elsewhere.
        if path.is_symlink() {
            fs_err::remove_file(path).map_err(|error| Failure::io("cannot set up the root of the sandbox", &error))?;
        }
        fs_err::write(path, content).map_err(|error| Failure::io("cannot set up the root of the sandbox", &error))
    }

    fn symlink(&mut self, target: &str, path: &Path) -> Result<(), Failure> {
        fs_err::os::unix::fs::symlink(target, path)
            .map_err(|error| Failure::io("cannot set up the root of the sandbox", &error))
    }

    fn enter_root(&mut self, root: &Path) -> Result<(), Failure> {
        let failed = |errno| Failure::new(Code::SandboxRoot, format!("cannot enter the sandbox's root: {errno}"));
        nix::unistd::chdir(root).map_err(failed)?;
        // pivot_root(".", ".") stacks the old root on the new one, so that no directory for it is needed
        // (pivot_root(2), "pivot_root(".", ".")").
        nix::unistd::pivot_root(".", ".").map_err(failed)?;
        umount2(".", MntFlags::MNT_DETACH).map_err(failed)?;
        nix::unistd::chdir("/").map_err(failed)
    }
}
