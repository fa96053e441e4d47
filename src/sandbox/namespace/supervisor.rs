//! The process beside a sandbox: makes its namespaces, outlives it, and leaves nothing of it behind.
//!
//! ```text
//!  kiln ── socket (stdin) ──▶ supervisor ── fork ──▶ entrance ── fork ──▶ init (pid 1 inside) ── exec ──▶ agent
//!                             host namespaces        user namespace       all namespaces
//! ```
//!
//! Whoever dies takes what is right of it along: `kiln` by the end of its socket, the others by the parent-death
//! signal, pid 1 by the kernel's own rule. The supervisor is single-threaded, so that forking is safe.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    sys::{
        prctl,
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{ForkResult, Gid, Pid, Uid, fork, pipe2, setgroups, setresgid, setresuid, setsid},
};

use super::{
    cgroup::Cgroup,
    idmap::IdMap,
    init,
    plan::{Plan, Report, Task},
};
use crate::records::Failure;

/// How often the supervisor looks whether the sandbox has ended, in milliseconds. The end of a sandbox is not
/// announced on a descriptor that `poll` could watch together with the socket, short of Linux-only process handles.
const LOOK_EVERY_MS: u16 = 20;

/// The hidden subcommand `sandbox-supervisor`. Returns the process's exit code.
pub fn main() -> i32 {
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else {
        return 1;
    };
    let mut socket = UnixStream::from(socket);
    let mut line = String::new();
    // The buffer may hold nothing beyond the one line: kiln sends nothing more.
    if BufReader::new(&mut socket).read_line(&mut line).is_err() {
        return 1;
    }
    let Ok(plan) = serde_json::from_str::<Plan>(&line) else {
        return 1;
    };
    // A key press that ends kiln must not also reach the sandbox: kiln ends it in order.
    let _ = setsid();
    let _ = prctl::set_name(c"kiln-supervisor");
    // Process 1 of a sandbox whose entrance was killed becomes our child, so that we know when it is gone.
    let _ = prctl::set_child_subreaper(true);

    let report = supervise(&plan, &socket).unwrap_or_else(|failure| Report {
        exit_code: 1,
        failure: Some(failure),
        ..Report::default()
    });
    // Nobody listens when kiln was killed; the clean-up is done all the same.
    if let Ok(text) = serde_json::to_string(&report) {
        let _ = writeln!(socket, "{text}");
    }
    0
}

fn supervise(plan: &Plan, socket: &UnixStream) -> Result<Report, Failure> {
    // Held until this process ends, by whatever cause: a directory whose lock is free has no live sandbox. The commands
    // of the host that build a toolbox are guarded by the toolbox's own lock.
    let _lock = match plan.task {
        Task::RunHostCommand { .. } => None,
        Task::RunAgent { .. } | Task::Empty => Some(lock(&plan.dir)?),
    };

    let mut report = run(plan, socket)?;
    if let Task::RunAgent { keep: false, .. } = plan.task {
        let empty = Plan {
            ids: plan.ids,
            dir: plan.dir.clone(),
            task: Task::Empty,
        };
        let emptied = run(&empty, socket)?;
        report.failure = report.failure.or(emptied.failure);
        // What resists is found by the next sweep, because the directory is still there.
        if fs_err::remove_dir(&plan.dir).is_ok() {
            let _ = fs_err::remove_file(lock_path(&plan.dir));
        }
    }
    Ok(report)
}

fn lock(dir: &Path) -> Result<fs_err::File, Failure> {
    let failed = |error: std::io::Error| Failure::io("cannot lock the sandbox", &error);
    let lock = fs_err::File::create(lock_path(dir)).map_err(failed)?;
    lock.file().lock().map_err(failed)?;
    Ok(lock)
}

/// The lock that stands beside a sandbox's directory.
pub(super) fn lock_path(dir: &Path) -> std::path::PathBuf {
    dir.with_extension("lock")
}

/// Runs one task in fresh namespaces and waits for its end.
fn run(plan: &Plan, socket: &UnixStream) -> Result<Report, Failure> {
    let mut report = Report::default();
    let mut cgroup = match &plan.task {
        Task::RunAgent { name, limits, .. } => Cgroup::create(name, limits).unwrap_or_else(|failure| {
            report.warning = Some(failure.detail);
            Cgroup::default()
        }),
        _ => Cgroup::default(),
    };
    let system = |errno: Errno| Failure::new("sandbox_start", format!("cannot start the sandbox: {errno}"));
    let (failure_out, failure_in) = pipe2(OFlag::O_CLOEXEC).map_err(system)?;
    let (mut ours, theirs) = UnixStream::pair().map_err(|error| Failure::io("cannot start the sandbox", &error))?;

    // SAFETY: this process has one thread, so the child may allocate and call anything.
    #[expect(unsafe_code, reason = "fork has no safe form")]
    let entrance = match unsafe { fork() }.map_err(system)? {
        ForkResult::Child => {
            drop((ours, failure_out));
            let code = enter(plan, theirs).unwrap_or_else(|failure| {
                report_failure(&failure_in, &failure);
                1
            });
            #[expect(clippy::exit, reason = "a forked child must not return into the supervisor's code")]
            std::process::exit(code);
        }
        ForkResult::Parent { child } => child,
    };
    drop((theirs, failure_in));

    let started = hand_over(&mut ours, plan.ids, entrance, &cgroup);
    if started.is_err() {
        let _ = kill(entrance, Signal::SIGKILL);
    }
    report.exit_code = wait_or_kill(entrance, socket, matches!(plan.task, Task::Empty));
    while waitpid(None, None).is_ok() {}
    let mut said = String::new();
    let _ = std::fs::File::from(failure_out).read_to_string(&mut said);
    report.failure = serde_json::from_str(&said).ok().or(started.err());
    report.oom_kills = cgroup.oom_kills();
    cgroup.remove();
    Ok(report)
}

/// Gives the entrance its ids and limits, once it is in its user namespace.
fn hand_over(socket: &mut UnixStream, ids: IdMap, entrance: Pid, cgroup: &Cgroup) -> Result<(), Failure> {
    let mut ready = [0];
    // No byte: the entrance could not make its namespaces and says why through the failure pipe.
    if socket.read_exact(&mut ready).is_err() {
        return Ok(());
    }
    ids.apply(entrance)?;
    cgroup.admit(entrance)?;
    socket
        .write_all(&[1])
        .map_err(|error| Failure::io("cannot start the sandbox", &error))
}

/// Waits for the entrance; kills the sandbox when kiln goes away, unless the task must be finished in any case.
fn wait_or_kill(entrance: Pid, socket: &UnixStream, finish_in_any_case: bool) -> i32 {
    let mut orphaned = false;
    loop {
        match waitpid(entrance, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => return code,
            Ok(WaitStatus::Signaled(_, signal, _)) => return 128 + signal as i32,
            Err(Errno::ECHILD) => return 1,
            _ => {}
        }
        if orphaned || finish_in_any_case {
            std::thread::sleep(std::time::Duration::from_millis(u64::from(LOOK_EVERY_MS)));
            continue;
        }
        let mut watched = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        if poll(&mut watched, PollTimeout::from(LOOK_EVERY_MS)).is_ok_and(|ready| ready > 0) {
            orphaned = true;
            let _ = kill(entrance, Signal::SIGKILL);
        }
    }
}

/// In the first child: makes the namespaces, becomes root of them, starts pid 1 and passes on how it ended.
fn enter(plan: &Plan, mut supervisor: UnixStream) -> Result<i32, Failure> {
    die_with_parent();
    let mut flags = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
    if matches!(plan.task, Task::RunAgent { .. }) {
        flags |= CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    }
    unshare(flags).map_err(user_namespace_failure)?;
    let lost = |error: std::io::Error| Failure::io("lost the supervisor", &error);
    supervisor.write_all(&[1]).map_err(lost)?;
    let mut go = [0];
    supervisor.read_exact(&mut go).map_err(lost)?;
    // Now, in the sandbox's own groups, so that these are the root of what it sees.
    unshare(CloneFlags::CLONE_NEWCGROUP).map_err(user_namespace_failure)?;

    // Paths are opened while we still are the user who may walk to them; as root inside we may not.
    let opened = init::open_sources(plan)?;
    let system = |errno: Errno| Failure::new("sandbox_start", format!("cannot become root of the sandbox: {errno}"));
    setgroups(&[]).map_err(system)?;
    setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0)).map_err(system)?;
    setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).map_err(system)?;
    // The change of user cleared it (prctl(2)). If the supervisor died in between, its socket is closed.
    die_with_parent();
    supervisor.set_nonblocking(true).map_err(lost)?;
    if supervisor.read(&mut go).is_ok_and(|count| count == 0) {
        return Ok(1);
    }

    let (failure_out, failure_in) = pipe2(OFlag::O_CLOEXEC).map_err(system)?;
    // SAFETY: this process has one thread, so the child may allocate and call anything.
    #[expect(unsafe_code, reason = "fork has no safe form")]
    match unsafe { fork() }.map_err(system)? {
        ForkResult::Child => {
            drop(failure_out);
            die_with_parent();
            let code = init::main(plan, &opened).unwrap_or_else(|failure| {
                report_failure(&failure_in, &failure);
                1
            });
            #[expect(clippy::exit, reason = "a forked child must not return into the supervisor's code")]
            std::process::exit(code);
        }
        ForkResult::Parent { child } => {
            drop((failure_in, opened));
            let code = match waitpid(child, None) {
                Ok(WaitStatus::Exited(_, code)) => code,
                Ok(WaitStatus::Signaled(_, signal, _)) => 128 + signal as i32,
                _ => 1,
            };
            let mut said = String::new();
            let _ = std::fs::File::from(failure_out).read_to_string(&mut said);
            match serde_json::from_str(&said) {
                Ok(failure) => Err(failure),
                Err(_) => Ok(code),
            }
        }
    }
}

fn die_with_parent() {
    // It cannot fail with a valid signal (prctl(2)).
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
}

fn report_failure(pipe: &OwnedFd, failure: &Failure) {
    if let Ok(text) = serde_json::to_string(failure) {
        let _ = nix::unistd::write(pipe.as_fd(), text.as_bytes());
    }
}

fn user_namespace_failure(errno: Errno) -> Failure {
    let failure = Failure::new(
        "no_user_namespace",
        format!("this host does not let us make a user namespace: {errno}"),
    );
    failure.hint(match errno {
        Errno::ENOSPC | Errno::EUSERS => "raise the sysctl user.max_user_namespaces",
        Errno::EPERM => {
            "allow unprivileged user namespaces: sysctl kernel.unprivileged_userns_clone=1 (Debian), \
             kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), or the container's seccomp profile"
        }
        _ => "the kernel needs CONFIG_USER_NS",
    })
}
