//! Makes the user namespace of a sandbox, inside another one whose limits the sandbox cannot change. Forks, and writes
//! id maps and `/proc/sys/user`.
//!
//! ```text
//!  host's namespace    user: the first id of the sandbox, or the user who runs Kiln
//!   └─ outer           the sandbox's ids; an eighth of what the host allows a user; no process stays in it
//!       └─ inner       the same ids; the sandbox
//! ```
//!
//! What a process makes (namespaces, inotify instances and watches, messages, …) counts for its user, and for the
//! creator of each namespace around it. So without a limit the sandbox uses up what the host allows the user who runs
//! Kiln. A limit of the inner namespace would limit nothing: it holds for each of the many users in it, and their root
//! may raise it. All of them are one user in the outer namespace, whose limits can only be changed from within it.

use std::{
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
};

use kiln_records::Failure;
use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sched::{CloneFlags, unshare},
    sys::{
        prctl,
        resource::{Resource, getrlimit, rlim_t, setrlimit},
        stat::Mode,
        wait::waitpid,
    },
    unistd::{ForkResult, Gid, Pid, Uid, fork, pipe2, setegid, seteuid, setgroups, setresgid, setresuid},
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::{
    die_with_parent,
    idmap::{self, IdMap},
    report_failure, user_namespace_failure,
};

/// The kernel's limits of what a user may make, one file each.
const LIMITS: &str = "/proc/sys/user";

/// The part of the host's limit that one sandbox gets.
const SHARE: u64 = 8;

/// The most namespaces of each kind: the host's own limits are too many for its memory.
const NAMESPACES: u64 = 256;

/// Makes the namespaces, and returns the inner one. It lives as long as the descriptor, or a process in it. The calling
/// process must be single-threaded.
///
/// # Errors
///
/// `no_user_namespace`, or those of [`IdMap::apply`].
pub fn make(ids: IdMap) -> Result<OwnedFd, Failure> {
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let (failure_out, failure_in) = pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
    // SAFETY: this process has one thread, so the child may allocate and call anything.
    #[expect(unsafe_code, reason = "fork has no safe form")]
    match unsafe { fork() }.map_err(failed)? {
        ForkResult::Child => {
            drop((ours, failure_out));
            if let Err(failure) = outer(ids, theirs) {
                report_failure(&failure_in, &failure);
            }
            #[expect(clippy::exit, reason = "a forked child must not return into its parent's code")]
            std::process::exit(0);
        }
        ForkResult::Parent { child } => {
            drop((theirs, failure_in));
            let made = receive(ours, ids, child);
            let _ = waitpid(child, None);
            let mut said = String::new();
            let _ = std::fs::File::from(failure_out).read_to_string(&mut said);
            match serde_json::from_str(&said) {
                Ok(failure) => Err(failure),
                Err(_) => made,
            }
        }
    }
}

/// The failure for a call of the system.
fn failed(error: impl Into<std::io::Error>) -> Failure {
    Failure::io("cannot make the sandbox's user namespace", &error.into())
}

/// The parent's part: maps the ids of the outer namespace, and opens the inner one.
fn receive(mut child: UnixStream, ids: IdMap, pid: Pid) -> Result<OwnedFd, Failure> {
    child.read_exact(&mut [0]).map_err(failed)?;
    ids.apply(pid)?;
    child.write_all(&[1]).map_err(failed)?;
    let mut inner = [0; 4];
    child.read_exact(&mut inner).map_err(failed)?;
    let path = PathBuf::from(format!("/proc/{}/ns/user", i32::from_ne_bytes(inner)));
    open(&path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).map_err(failed)
}

/// Makes the outer namespace and sets its limits. Ends when the parent has opened the inner one.
fn outer(ids: IdMap, mut parent: UnixStream) -> Result<(), Failure> {
    die_with_parent();
    let limits = shares(Path::new(LIMITS)).map_err(failed)?;
    become_creator(ids)?;
    unshare(CloneFlags::CLONE_NEWUSER).map_err(user_namespace_failure)?;
    parent.write_all(&[1]).map_err(failed)?;
    parent.read_exact(&mut [0]).map_err(failed)?;
    setgroups(&[]).map_err(failed)?;
    setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0)).map_err(failed)?;
    setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).map_err(failed)?;
    // The change of user cleared these. Without the second one, nobody may open the files of the child below.
    die_with_parent();
    prctl::set_dumpable(true).map_err(failed)?;
    for (path, limit) in limits {
        fs_err::write(path, limit.to_string()).map_err(failed)?;
    }
    // A new namespace takes its limits for these from its creator.
    for resource in [Resource::RLIMIT_MSGQUEUE, Resource::RLIMIT_SIGPENDING] {
        let (soft, _) = getrlimit(resource).map_err(failed)?;
        let share = share_of(soft);
        setrlimit(resource, share, share).map_err(failed)?;
    }
    let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
    // SAFETY: this process has one thread.
    #[expect(unsafe_code, reason = "fork has no safe form")]
    match unsafe { fork() }.map_err(failed)? {
        ForkResult::Child => {
            drop((ours, parent));
            inner(theirs);
            #[expect(clippy::exit, reason = "a forked child must not return into its parent's code")]
            std::process::exit(0);
        }
        ForkResult::Parent { child } => {
            drop(theirs);
            let mut errno = [0; 4];
            ours.read_exact(&mut errno).map_err(failed)?;
            match i32::from_ne_bytes(errno) {
                0 => {}
                errno => return Err(user_namespace_failure(Errno::from_raw(errno))),
            }
            for file in ["uid_map", "gid_map"] {
                let map = idmap::of_this_namespace(file).map_err(failed)?;
                fs_err::write(format!("/proc/{child}/{file}"), map).map_err(failed)?;
            }
            parent.write_all(&child.as_raw().to_ne_bytes()).map_err(failed)?;
            // The parent closes its end when it has opened the namespace, or cannot.
            let _ = parent.read(&mut [0]);
            drop(ours);
            let _ = waitpid(child, None);
            Ok(())
        }
    }
}

/// Holds the inner namespace until the other end is closed.
fn inner(mut parent: UnixStream) {
    die_with_parent();
    let errno = unshare(CloneFlags::CLONE_NEWUSER).map_or_else(|errno| errno as i32, |()| 0);
    if parent.write_all(&errno.to_ne_bytes()).is_ok() {
        let _ = parent.read(&mut [0]);
    }
}

/// Takes the id under which the host is to count what the sandbox makes: not root's, whose own programs would find their
/// limits used up. An ordinary user has no other id than its own.
fn become_creator(ids: IdMap) -> Result<(), Failure> {
    let mut sets = capabilities(None).map_err(failed)?;
    // In a container, root may have no other right over the namespace than that of its creator.
    if ids.rootless || !sets.effective.contains(CapabilitySet::SYS_ADMIN) {
        return Ok(());
    }
    setegid(Gid::from_raw(ids.gid_base)).map_err(failed)?;
    seteuid(Uid::from_raw(ids.uid_base)).map_err(failed)?;
    // The change of user cleared them. Some hosts allow user namespaces to nobody else.
    sets.effective = sets.permitted;
    set_capabilities(None, sets).map_err(failed)
}

/// A sandbox's share of each limit of a user.
fn shares(dir: &Path) -> std::io::Result<Vec<(PathBuf, u64)>> {
    let mut shares = Vec::new();
    for entry in fs_err::read_dir(dir)? {
        let path = entry?.path();
        let text = fs_err::read_to_string(&path)?;
        let of_host = text.trim().parse().map_err(std::io::Error::other)?;
        let is_namespace = path.to_string_lossy().ends_with("_namespaces");
        let most = if is_namespace { NAMESPACES } else { u64::MAX };
        shares.push((path, share_of(of_host).min(most)));
    }
    Ok(shares)
}

/// A part of a limit. What is limited at all is limited for the sandbox, too.
fn share_of(limit: rlim_t) -> rlim_t {
    limit.div_ceil(SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_gets_a_share_of_every_limit_that_the_kernel_has() {
        let dir = tempfile::tempdir().unwrap();
        for (name, limit) in [
            ("max_inotify_instances", "128\n"),
            ("max_user_namespaces", "96365"),
            ("max_net_namespaces", "0"),
            ("max_things_of_a_later_kernel", "9"),
        ] {
            fs_err::write(dir.path().join(name), limit).unwrap();
        }
        let mut shares: Vec<_> = shares(dir.path())
            .unwrap()
            .into_iter()
            .map(|(path, limit)| (path.file_name().unwrap().to_str().unwrap().to_owned(), limit))
            .collect();
        shares.sort_unstable();
        let shares: Vec<_> = shares.iter().map(|(name, limit)| (name.as_str(), *limit)).collect();
        assert_eq!(
            shares,
            [
                ("max_inotify_instances", 16),
                ("max_net_namespaces", 0),
                ("max_things_of_a_later_kernel", 2),
                ("max_user_namespaces", 256),
            ]
        );
    }
}
