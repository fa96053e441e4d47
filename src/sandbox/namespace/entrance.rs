//! The process between the supervisor and process 1 of a sandbox: enters new namespaces, becomes root in them, and
//! forks.

use std::{
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
};

use kiln_inside::{
    room::{die_with_parent, report_failure, user_namespace_failure},
    routes,
};
use kiln_records::{Code, Failure};
use nix::{
    errno::Errno,
    fcntl::OFlag,
    sched::{CloneFlags, setns, unshare},
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, Gid, Uid, fork, pipe2, setgroups, setresgid, setresuid},
};

use super::{
    init::{self, Outlets},
    plan::{Plan, Task},
};

/// Enters the user namespace, makes the others, becomes root of them, starts pid 1 and passes on how it ended.
pub(super) fn enter(
    plan: &Plan,
    user_namespace: &OwnedFd,
    mut supervisor: UnixStream,
    outlets: Outlets,
) -> Result<i32, Failure> {
    setns(user_namespace, CloneFlags::CLONE_NEWUSER).map_err(user_namespace_failure)?;
    // Not earlier: the change of namespace may clear the setting.
    die_with_parent();
    let mut flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
    let is_machine_alone = matches!(plan.task, Task::TryMachine(_) | Task::BootImage(_));
    if is_machine_alone || plan.agent().is_some() {
        flags |= CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    }
    if plan.reach().is_some() || is_machine_alone {
        flags |= CloneFlags::CLONE_NEWNET;
    }
    unshare(flags).map_err(user_namespace_failure)?;
    let lost = |error: std::io::Error| Failure::io("lost the supervisor", &error);
    supervisor.write_all(&[1]).map_err(lost)?;
    let mut go = [0];
    supervisor.read_exact(&mut go).map_err(lost)?;
    // Now, while in the sandbox's own groups, so that these are the root of the group tree inside.
    unshare(CloneFlags::CLONE_NEWCGROUP).map_err(user_namespace_failure)?;

    // Paths are opened while this process is still the user who may walk to them; root inside may not.
    let opened = init::open_sources(plan)?;
    let system = |errno: Errno| {
        Failure::new(
            Code::SandboxStart,
            format!("cannot become root of the sandbox: {errno}"),
        )
    };
    setgroups(&[]).map_err(system)?;
    setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0)).map_err(system)?;
    setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).map_err(system)?;
    // The change of user cleared the setting (prctl(2)). If the supervisor died in between, its socket is closed.
    die_with_parent();
    supervisor.set_nonblocking(true).map_err(lost)?;
    if supervisor.read(&mut go).is_ok_and(|count| count == 0) {
        return Ok(1);
    }

    // Processes that start later have no right to change it.
    if let Some(reach) = plan.reach() {
        routes::restrict(&reach.allow, &reach.deny)?;
    }
    let (failure_out, failure_in) = pipe2(OFlag::O_CLOEXEC).map_err(system)?;
    // Stays open as long as this process lives.
    let (lifeline_out, lifeline_in) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(system)?;
    // SAFETY: this process has one thread, so the child may allocate and call anything.
    #[expect(unsafe_code, reason = "fork has no safe form")]
    match unsafe { fork() }.map_err(system)? {
        ForkResult::Child => {
            drop((failure_out, lifeline_in));
            die_with_parent();
            // If the entrance died earlier, no signal will come.
            let is_orphan = nix::unistd::read(&lifeline_out, &mut [0]) == Ok(0);
            let code = if is_orphan {
                1
            } else {
                init::main(plan, &opened, outlets).unwrap_or_else(|failure| {
                    report_failure(&failure_in, &failure);
                    1
                })
            };
            #[expect(clippy::exit, reason = "a forked child must not return into the supervisor's code")]
            std::process::exit(code);
        }
        ForkResult::Parent { child } => {
            drop((failure_in, lifeline_out, opened, outlets));
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
