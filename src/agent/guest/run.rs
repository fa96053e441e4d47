//! Runs the agent in its root, and ends all remaining processes.

use std::{fs::File, io::Write, os::unix::process::CommandExt, process::Stdio};

use kiln_inside::room::{Scope, confine, process1};
use kiln_records::{
    Failure,
    guest::{GuestJob, GuestReport},
};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::{
        signal::{Signal, kill},
        wait::waitpid,
    },
    unistd::{Pid, chdir, chroot},
};

use super::{devices, news::News, root::ROOT};

/// The mount point of control groups; the job does not see it.
const GROUPS: &str = "/groups";

/// Runs the agent to its end. Its standard error goes to `words`.
pub(super) fn run_agent(job: &GuestJob, words: File, news: &News) -> Result<GuestReport, Failure> {
    let failed = |error: std::io::Error| devices::failed("cannot run the agent", &error);
    let members = group(job.pids).map_err(failed)?;
    let (mut command, release) = process1::agent(&job.facts)?;
    command.stdout(Stdio::null()).stderr(Stdio::from(words));
    // From here on, this process has no other sockets than the job's programs either, and needs none.
    confine(Scope::Sockets, Some(release))?.answer()?;
    // SAFETY: the child of this process, whose other threads take no lock that the child needs, may allocate.
    #[expect(unsafe_code, reason = "the child enters its root before it runs the agent")]
    unsafe {
        command.pre_exec(move || {
            (&members).write_all(b"0")?;
            enter_root()
        });
    }
    news.tell_of_disk();
    Ok(GuestReport {
        exit_code: process1::run_and_reap(command)?,
        oom_kills: oom_kills(),
        failure: None,
    })
}

/// Ends every process but this one, and waits until they are gone.
pub(super) fn end_all() {
    // An error means that there is no other process.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    while !matches!(waitpid(None, None), Err(Errno::ECHILD)) {}
}

/// Makes the job's root the `/` of this process. In its own mount namespace, so that process 1 keeps its root, and by
/// a move, so that user namespaces can be made inside: the kernel allows none in a bare chroot.
fn enter_root() -> std::io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
    chdir(ROOT)?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)?;
    chroot(".")?;
    chdir("/")?;
    Ok(())
}

/// Makes the control group of the job. Returns the file that takes its members.
fn group(pids: u32) -> std::io::Result<File> {
    fs_err::create_dir_all(GROUPS)?;
    mount(Some("kiln"), GROUPS, Some("cgroup2"), MsFlags::empty(), None::<&str>)?;
    fs_err::write(format!("{GROUPS}/cgroup.subtree_control"), "+pids")?;
    fs_err::create_dir(format!("{GROUPS}/job"))?;
    fs_err::write(format!("{GROUPS}/job/pids.max"), pids.to_string())?;
    let members = fs_err::OpenOptions::new()
        .write(true)
        .open(format!("{GROUPS}/job/cgroup.procs"))?;
    Ok(members.into())
}

/// How often this kernel killed a process because memory ran out.
fn oom_kills() -> u64 {
    let text = fs_err::read_to_string("/proc/vmstat").unwrap_or_default();
    let mut lines = text.lines();
    lines
        .find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
        .unwrap_or(0)
}
