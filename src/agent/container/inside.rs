//! The entrance and process 1 of a sandbox in a container. Makes namespaces and mounts, and starts the agent.

use std::{
    io::{Read, Write},
    net::IpAddr,
    os::unix::net::UnixStream,
    path::Path,
};

use kiln_inside::room::{
    Scope, confine, die_with_parent,
    kernel::Linux,
    mounts::{Sources, companions, furnish},
    order::{AGENT, DOORS, NO_DOORS, Order, TOOLBOX, VOLUME},
    process1::{self, clear_layers, run_and_reap},
    report_failure, user_namespace_failure,
};
use kiln_records::{Code, Failure};
use nix::{
    errno::Errno,
    fcntl::OFlag,
    sched::{CloneFlags, unshare},
    sys::{
        prctl,
        stat::{Mode, umask},
        wait::{WaitStatus, waitpid},
    },
    unistd::{ForkResult, Gid, Uid, fork, pipe2, setgroups, sethostname, setresgid, setresuid},
};

use super::said;

/// Makes the namespaces, becomes root in them, starts process 1 and passes on its exit code.
pub(super) fn enter(order: &Order, disk: &Path, parent: UnixStream) -> Result<i32, Failure> {
    let mut flags =
        CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    if order.ids.is_some() {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    become_root(flags, parent)?;
    let system = |errno: Errno| Failure::new(Code::SandboxStart, format!("cannot start the sandbox: {errno}"));
    let (failure_out, failure_in) = pipe2(OFlag::O_CLOEXEC).map_err(system)?;
    // SAFETY: this process has one thread, so the child may allocate and call anything.
    #[expect(unsafe_code, reason = "fork has no safe form")]
    match unsafe { fork() }.map_err(system)? {
        ForkResult::Child => {
            drop(failure_out);
            die_with_parent();
            let code = init(order, disk).unwrap_or_else(|failure| {
                report_failure(&failure_in, &failure);
                1
            });
            #[expect(clippy::exit, reason = "a forked child must not return into its parent's code")]
            std::process::exit(code);
        }
        ForkResult::Parent { child } => {
            drop(failure_in);
            let code = match waitpid(child, None) {
                Ok(WaitStatus::Exited(_, code)) => code,
                Ok(WaitStatus::Signaled(_, signal, _)) => 128 + signal as i32,
                _ => 1,
            };
            said(failure_out).map_or(Ok(code), Err)
        }
    }
}

/// Makes the namespaces, waits until their ids are mapped, and becomes root in them.
pub(super) fn become_root(flags: CloneFlags, mut parent: UnixStream) -> Result<(), Failure> {
    die_with_parent();
    unshare(flags).map_err(user_namespace_failure)?;
    let lost = |error: std::io::Error| Failure::io("lost the container's first process", &error);
    parent.write_all(&[1]).map_err(lost)?;
    parent.read_exact(&mut [0]).map_err(lost)?;
    unshare(CloneFlags::CLONE_NEWCGROUP).map_err(user_namespace_failure)?;
    let system = |errno: Errno| {
        Failure::new(
            Code::SandboxStart,
            format!("cannot become root of the sandbox: {errno}"),
        )
    };
    setgroups(&[]).map_err(system)?;
    setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0)).map_err(system)?;
    setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).map_err(system)?;
    // The change of user cleared the setting (prctl(2)). Without its first process the whole container ends anyway.
    die_with_parent();
    Ok(())
}

/// The engine's file, with these name servers if there are any. The engine's own one, 127.0.0.11, is in the network of
/// containers on its host's kernel, and not in that of a virtual machine.
fn resolv_conf(of_engine: &str, resolvers: &[IpAddr]) -> String {
    let is_kept = |line: &&str| resolvers.is_empty() || line.starts_with("search ");
    let kept = of_engine.lines().filter(is_kept).map(str::to_owned);
    let own = resolvers.iter().map(|address| format!("nameserver {address}"));
    kept.chain(own).map(|line| line + "\n").collect()
}

/// Process 1 of the sandbox.
fn init(order: &Order, disk: &Path) -> Result<i32, Failure> {
    let _ = prctl::set_name(c"kiln-init");
    umask(Mode::from_bits_truncate(0o022));
    clear_layers(disk).map_err(|error| Failure::io("cannot clear the sandbox", &error))?;
    let agent = order.programs.join(AGENT);
    let name = order.facts.job.to_string();
    let hostname = format!("kiln-{}", name.get(..8).unwrap_or(&name));
    sethostname(&hostname)
        .map_err(|errno| Failure::new(Code::SandboxStart, format!("cannot name the sandbox: {errno}")))?;
    let of_engine = fs_err::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let resolv_conf = resolv_conf(&of_engine, &order.resolvers);
    let doors = match Path::new(DOORS) {
        doors if doors.exists() => doors.to_owned(),
        _ => Path::new(VOLUME).join(NO_DOORS),
    };
    let sources = Sources {
        toolbox: TOOLBOX.into(),
        disk: disk.to_owned(),
        companions: companions(&agent).collect(),
        agent,
        doors,
    };
    furnish(&mut Linux, &sources, &name, &hostname, &resolv_conf)?;
    let (mut command, release) = process1::agent(&order.facts)?;
    // The driver reads this process's own standard output.
    command.stdout(std::process::Stdio::null());
    let scope = if order.filters_calls {
        Scope::AllCalls
    } else {
        Scope::Sockets
    };
    confine(scope, Some(release))?.answer()?;
    run_and_reap(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_does_not_ask_the_engines_own_name_server() {
        let of_engine = "# by the engine\nsearch cluster.local\nnameserver 127.0.0.11\noptions ndots:0\n";
        assert_eq!(resolv_conf(of_engine, &[]), of_engine);
        let resolvers = ["10.92.100.225".parse().unwrap(), "10.92.100.226".parse().unwrap()];
        assert_eq!(
            resolv_conf(of_engine, &resolvers),
            "search cluster.local\nnameserver 10.92.100.225\nnameserver 10.92.100.226\n"
        );
    }
}
