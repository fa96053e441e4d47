//! Running the agent in its root, and ending all that it leaves.

use std::{
    fs::File,
    io::Write,
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::{Command, Stdio},
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::{
        signal::{Signal, kill},
        wait::{WaitStatus, waitpid},
    },
    unistd::{Pid, chdir, chroot, pipe2},
};

use super::{devices, news::News, root::ROOT};
use crate::records::{
    Failure,
    guest::{AGENT_ENVIRONMENT, GuestJob, GuestReport},
};

/// Where the agent is in its root.
const AGENT: &str = "/run/agent";

/// Where control groups are mounted; the job does not see it.
const GROUPS: &str = "/groups";

/// Runs the agent to its end. What it says on standard error goes to `words`.
pub(super) fn run_agent(job: &GuestJob, words: File, news: &News) -> Result<GuestReport, Failure> {
    let failed = |error: std::io::Error| devices::failed("cannot run the agent", &error);
    let members = group(job.pids).map_err(failed)?;
    let mut command = Command::new(AGENT);
    command
        .env_clear()
        .envs(AGENT_ENVIRONMENT)
        .stdin(Stdio::from(standard_input(job).map_err(failed)?))
        .stdout(Stdio::null())
        .stderr(Stdio::from(words));
    // SAFETY: this process has one thread until then, so the child may do anything.
    #[expect(unsafe_code, reason = "the child enters its root before it runs the agent")]
    unsafe {
        command.pre_exec(move || {
            (&members).write_all(b"0")?;
            enter_root()
        });
    }
    let child = command.spawn().map_err(failed)?;
    news.tell_of_disk();
    let agent = Pid::from_raw(i32::try_from(child.id()).unwrap_or(-1));
    let exit_code = loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == agent => break code,
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == agent => break 128 + signal as i32,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
    };
    Ok(GuestReport {
        exit_code,
        oom_kills: oom_kills(),
        failure: None,
    })
}

/// Ends every process but this one, and waits until they are gone.
pub(super) fn end_all() {
    // An error means that there is none.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    while !matches!(waitpid(None, None), Err(Errno::ECHILD)) {}
}

/// Makes the job's root this process's `/`. In a mount namespace of its own, so that process 1 keeps its own root, and
/// by a move, so that user namespaces can be made inside: the kernel allows none in a bare chroot.
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
    File::options().write(true).open(format!("{GROUPS}/job/cgroup.procs"))
}

/// What the agent reads: the facts, which fit into a pipe.
fn standard_input(job: &GuestJob) -> std::io::Result<OwnedFd> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
    let mut text = serde_json::to_string(&job.facts)?;
    text.push('\n');
    File::from(writer).write_all(text.as_bytes())?;
    Ok(reader)
}

/// How often this kernel killed a process for want of memory.
fn oom_kills() -> u64 {
    let text = fs_err::read_to_string("/proc/vmstat").unwrap_or_default();
    let mut lines = text.lines();
    lines
        .find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
        .unwrap_or(0)
}
