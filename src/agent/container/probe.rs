//! Examines a container's surroundings, and tests whether a sandbox could be made in it. Reads system files, and makes
//! namespaces for the test.

use std::{ffi::OsString, net::IpAddr, os::unix::net::UnixStream, path::Path};

use kiln_inside::room::{
    IdMap,
    kernel::{Kernel, Linux},
    order::Probe,
    report_failure,
};
use kiln_records::{Code, Failure};
use nix::{
    errno::Errno,
    fcntl::OFlag,
    mount::MsFlags,
    sched::CloneFlags,
    sys::{
        statvfs::{Statvfs, statvfs},
        utsname::uname,
        wait::waitpid,
    },
    unistd::{ForkResult, Pid, fork, pipe2},
};

use super::{hand_over, inside::become_root, rights, said, say_line};

/// Reports its findings, and whether a sandbox with these ids could be made. Returns the container's exit code.
pub(super) fn main(ids: Option<OsString>) -> i32 {
    let ids = ids.and_then(|text| serde_json::from_str(text.to_str()?).ok());
    let disk = statvfs("/").ok();
    let of_disk = |value: fn(&Statvfs) -> u64| disk.as_ref().map_or(0, value);
    let kernel = uname().map(|name| name.release().to_string_lossy().into_owned());
    say_line(&Probe {
        kernel: kernel.unwrap_or_default(),
        cpu: cpu(),
        refused: ids.and_then(|ids| try_out(ids).err()),
        resolvers: resolvers(&fs_err::read_to_string("/etc/resolv.conf").unwrap_or_default()),
        disk_free: of_disk(|disk| disk.blocks_available() * disk.fragment_size()),
        disk_total: of_disk(|disk| disk.blocks() * disk.fragment_size()),
        inodes_free: of_disk(Statvfs::files_available),
        inodes_total: of_disk(Statvfs::files),
    });
    0
}

/// The name servers in a `resolv.conf` that other hosts can ask too.
pub(super) fn resolvers(resolv_conf: &str) -> Vec<IpAddr> {
    let servers = resolv_conf.lines().filter_map(|line| line.strip_prefix("nameserver"));
    servers
        .filter_map(|address| address.trim().parse::<IpAddr>().ok())
        .filter(|address| !address.to_canonical().is_loopback())
        .collect()
}

/// The CPU's own name.
fn cpu() -> String {
    let text = fs_err::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(String::new, |(_, name)| name.to_owned())
}

/// Makes namespaces and mounts, which fails wherever a security module, an old kernel or an engine's defaults would prevent a
/// sandbox.
fn try_out(ids: IdMap) -> Result<(), Failure> {
    rights::keep_only_ids()?;
    let (ours, theirs) = UnixStream::pair().map_err(|error| Failure::io("cannot test a sandbox", &error))?;
    in_child(|| mount_something(theirs), |child| hand_over(ours, Some(ids), child))
}

fn mount_something(parent: UnixStream) -> Result<(), Failure> {
    become_root(
        CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID,
        parent,
    )?;
    let tmp = Path::new("/tmp");
    Linux.mount("kiln", tmp, "tmpfs", MsFlags::empty(), "size=1m")?;
    for dir in ["lower", "upper", "work", "root"] {
        Linux.mkdir(&tmp.join(dir))?;
    }
    let (layers, root) = (
        "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work,userxattr",
        tmp.join("root"),
    );
    Linux.mount("kiln", &root, "overlay", MsFlags::empty(), layers)?;
    // The first process of the new process namespace has a `/proc` of its own, unless parts of the engine's are covered.
    in_child(|| Linux.mount("proc", &root, "proc", MsFlags::empty(), ""), |_| Ok(()))
}

/// Does some work in a child, and meanwhile something in this process.
fn in_child(
    work: impl FnOnce() -> Result<(), Failure>,
    meanwhile: impl FnOnce(Pid) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let system = |errno: Errno| Failure::new(Code::SandboxStart, format!("cannot test a sandbox: {errno}"));
    let (failure_out, failure_in) = pipe2(OFlag::O_CLOEXEC).map_err(system)?;
    // SAFETY: this process has one thread, so the child may allocate and call anything.
    #[expect(unsafe_code, reason = "fork has no safe form")]
    match unsafe { fork() }.map_err(system)? {
        ForkResult::Child => {
            drop((failure_out, meanwhile));
            if let Err(failure) = work() {
                report_failure(&failure_in, &failure);
            }
            #[expect(clippy::exit, reason = "a forked child must not return into its parent's code")]
            std::process::exit(0);
        }
        ForkResult::Parent { child } => {
            // Each side holds its own end of what they share only, and so sees the other one's end.
            drop((failure_in, work));
            meanwhile(child)?;
            let _ = waitpid(child, None);
            said(failure_out).map_or(Ok(()), Err)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_name_servers_that_another_host_can_ask_count() {
        let found = resolvers(
            "nameserver 127.0.0.53\nnameserver 10.0.0.2\nnameserver fe80::1%eth0\nsearch x\nnameserver ::1\n",
        );
        assert_eq!(found, ["10.0.0.2".parse::<IpAddr>().unwrap()]);
    }
}
