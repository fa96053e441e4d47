//! The supervisor, a process beside a sandbox: makes its namespaces, outlives it, and leaves nothing of it behind.
//! Forks, and touches the sandbox's files and control groups.
//!
//! ```text
//!  kiln ── socket (stdin) ──▶ supervisor ── fork ──▶ entrance ── fork ──▶ init (pid 1 inside) ── exec ──▶ agent
//!                             host namespaces        user namespace       all namespaces
//! ```
//!
//! A process that dies takes the right others along: by the parent-death signal, and for pid 1 by the kernel's own
//! rule. `kiln` takes an attached sandbox along, by the end of its socket; a file ends any sandbox.
//! The supervisor is single-threaded, so that forking is safe.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use kiln_inside::room::{DiskGauge, Meter, Walker, make_user_namespace, report_failure};
use kiln_records::{Code, Failure};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    mount::{MntFlags, umount2},
    sys::{
        prctl,
        signal::{Signal, kill},
        statvfs::statvfs,
        wait::waitpid,
    },
    unistd::{ForkResult, Pid, dup2_stdout, fork, pipe2, setsid},
};

use super::{
    cgroup::Cgroup,
    disk::{self, For},
    entrance::enter,
    files::{Files, is_there, remove_file},
    guest::Guest,
    init::Outlets,
    network::Slirp,
    plan::{AgentTask, Plan, Report, Task},
    watch::{LeaseWatch, Watch},
    words::Words,
};
use crate::sandbox::{DiskLimit, Kernel, microvm::Accelerator};

/// The hidden subcommand `sandbox-supervisor`. Returns the process's exit code.
pub fn main() -> i32 {
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else {
        return 1;
    };
    let mut socket = UnixStream::from(socket);
    let mut line = String::new();
    // The buffer cannot hold more than this line: kiln sends nothing else.
    if BufReader::new(&mut socket).read_line(&mut line).is_err() {
        return 1;
    }
    let Ok(plan) = serde_json::from_str::<Plan>(&line) else {
        return 1;
    };
    keep_from_children();
    // A key press that ends kiln must not also reach the sandbox: kiln ends it in order.
    let _ = setsid();
    let _ = prctl::set_name(c"kiln-supervisor");
    // Process 1 of a sandbox whose entrance was killed becomes a child of this process, which can then wait for its
    // end.
    let _ = prctl::set_child_subreaper(true);

    if plan.agent().is_some() {
        supervise_sandbox(&plan, &socket)
    } else {
        let report = supervise_task(&plan, &socket).unwrap_or_else(Report::of_failure);
        // If kiln was killed, the report has no reader.
        if let Ok(text) = serde_json::to_string(&report) {
            let _ = writeln!(socket, "{text}");
        }
        0
    }
}

/// Keeps descriptors that were inherited by accident from the starter of kiln away from child processes.
fn keep_from_children() {
    for entry in fs_err::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if number > 2 {
            // SAFETY: the descriptor is only used within this call, which fails if it is closed by now.
            #[expect(unsafe_code, reason = "descriptors that nobody told us of have no owner")]
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            let _ = fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        }
    }
}

fn supervise_task(plan: &Plan, socket: &UnixStream) -> Result<Report, Failure> {
    // Held until this process ends for any reason: a directory whose lock is free has no live sandbox. Host commands
    // that build a toolbox are guarded by the toolbox's own lock.
    let _lock = match plan.task {
        Task::RunHostCommand { .. } => None,
        Task::RunAgent(_) | Task::TryMachine(_) | Task::BootImage(_) | Task::Empty => {
            Some(Files::of(&plan.dir).lock()?)
        }
    };
    run(plan, socket)
}

/// Runs a sandbox whose report may be read by another process than the one that started it. Standard output is the
/// lock, already held.
fn supervise_sandbox(plan: &Plan, socket: &UnixStream) -> i32 {
    let files = Files::of(&plan.dir);
    let Ok(lock) = lock_from_stdout() else {
        return 1;
    };
    let prepared = Files::sign(&lock, plan.is_attached()).and_then(|()| files.reserve_report());
    let report = prepared
        .map_err(|error| Failure::io("cannot start the sandbox", &error))
        .and_then(|()| run(plan, socket))
        .unwrap_or_else(Report::of_failure);
    match files.write_report(&report) {
        Ok(()) => 0,
        Err(error) => {
            // The message goes to the file of last words.
            let _ = writeln!(std::io::stderr(), "the report cannot be written: {error}");
            1
        }
    }
}

/// Moves the lock to a descriptor that the agent does not inherit.
fn lock_from_stdout() -> std::io::Result<std::fs::File> {
    let lock = std::io::stdout().as_fd().try_clone_to_owned()?;
    dup2_stdout(fs_err::File::options().write(true).open("/dev/null")?)?;
    Ok(lock.into())
}

/// Runs one task in new namespaces and waits for its end.
fn run(plan: &Plan, socket: &UnixStream) -> Result<Report, Failure> {
    let mut report = Report::default();
    let gauge = match plan.agent() {
        Some(agent) => disk_space(plan, agent, &mut report)?,
        None => DiskGauge::None,
    };
    let mut cgroup = match plan.group() {
        Some((name, limits)) => Cgroup::create(&name, &limits).unwrap_or_else(|failure| {
            report.warn(failure.detail);
            Cgroup::default()
        }),
        None => Cgroup::default(),
    };
    let system = |errno: Errno| Failure::new(Code::SandboxStart, format!("cannot start the sandbox: {errno}"));
    let (failure_out, failure_in) = pipe2(OFlag::O_CLOEXEC).map_err(system)?;
    let (mut ours, theirs) = UnixStream::pair().map_err(|error| Failure::io("cannot start the sandbox", &error))?;
    let (words, stderr) = words_of(plan)?.unzip();
    let (guest, control) = guest_of(plan)?.unzip();
    let namespace = make_user_namespace(plan.ids)?;

    // SAFETY: this process has one thread, so the child may allocate and call anything.
    #[expect(unsafe_code, reason = "fork has no safe form")]
    let entrance = match unsafe { fork() }.map_err(system)? {
        ForkResult::Child => {
            drop((ours, failure_out, words, guest));
            let code = enter(plan, &namespace, theirs, Outlets { stderr, control }).unwrap_or_else(|failure| {
                report_failure(&failure_in, &failure);
                1
            });
            #[expect(clippy::exit, reason = "a forked child must not return into the supervisor's code")]
            std::process::exit(code);
        }
        ForkResult::Parent { child } => child,
    };
    drop((namespace, theirs, failure_in, stderr, control));

    let started = hand_over(&mut ours, plan, entrance, &cgroup);
    if started.is_err() {
        let _ = kill(entrance, Signal::SIGKILL);
    }
    let (slirp, refused) = match started {
        Ok(slirp) => (slirp, None),
        Err(failure) => (None, Some(failure)),
    };
    let mut watch = Watch {
        files: plan.agent().map(|_| Files::of(&plan.dir)),
        socket: plan.is_attached().then_some(socket),
        words,
        guest,
        slirp,
        meter: Meter::new(gauge),
        lease: plan.agent().and_then(|agent| agent.lease.clone()).map(LeaseWatch::new),
    };
    let (exit_code, lost) = watch.until_the_end_of(entrance, &cgroup);
    report.exit_code = exit_code;
    report.usage = watch.meter.read(&cgroup.counters());
    let machine = watch.end_of_machine(exit_code);
    // The helpers end here, so that only processes of the sandbox are waited for.
    drop(watch);
    // A leftover is removed with the sandbox's other files.
    let _ = remove_file(&Files::of(&plan.dir).agent());
    let _ = remove_file(&Files::of(&plan.dir).kvm());
    while waitpid(None, None).is_ok() {}
    // While this process still has the lock, or the next sandbox would find the disk space half written. Where there is none of its
    // own, nothing is mounted.
    let _ = umount2(&plan.dir, MntFlags::empty());
    let mut said = String::new();
    let _ = std::fs::File::from(failure_out).read_to_string(&mut said);
    report.failure = serde_json::from_str(&said).ok().or(refused).or(lost);
    report.oom_kills = report.usage.oom_kills;
    if let Some(machine) = machine {
        report.exit_code = machine.exit_code;
        report.oom_kills += machine.oom_kills;
        report.failure = report.failure.or(machine.failure);
    }
    report.usage.oom_kills = report.oom_kills;
    cgroup.remove();
    Ok(report)
}

/// Makes disk space of the requested size where possible, and returns how to measure it.
fn disk_space(plan: &Plan, agent: &AgentTask, report: &mut Report) -> Result<DiskGauge, Failure> {
    let files = Files::of(&plan.dir);
    if let Some(machine) = &agent.machine {
        if machine.accelerator == Accelerator::Tcg {
            report.warn(Accelerator::SLOW.to_owned());
        }
        return machines_disk(plan, agent, &files.disk(Kernel::Own));
    }
    let file = files.disk(Kernel::Shared);
    let Some(size) = agent.limits.disk else {
        return Ok(DiskGauge::None);
    };
    // Disk space left by an earlier sandbox is continued in its own form.
    let (has_file, has_layers) = (is_there(&file)?, is_there(&plan.dir.join("scratch"))?);
    if !has_layers && (has_file || !agent.in_directory) {
        let made = if has_file {
            Ok(())
        } else {
            disk::make(&file, size, For::Sandbox(plan.ids))
        };
        match made.and_then(|()| disk::mount_privately(&file, &plan.dir)) {
            Ok(()) => return Ok(DiskGauge::of_file_system(&plan.dir, !has_file)),
            Err(failure) if has_file => return Err(failure),
            Err(failure) => {
                remove_file(&file)?;
                report.warn(failure.detail);
            }
        }
    }
    Walker::start(&plan.dir, plan.ids).map(DiskGauge::Directory)
}

/// Makes the disk of a machine, unless there is one to continue with. Without a limit it is as large as the free
/// space.
fn machines_disk(plan: &Plan, agent: &AgentTask, file: &Path) -> Result<DiskGauge, Failure> {
    /// ext4's own default.
    const BYTES_PER_INODE: u64 = 16 * 1024;
    let is_new = !is_there(file)?;
    if is_new {
        let free = || -> Result<DiskLimit, Failure> {
            let stat = statvfs(&plan.dir).map_err(|errno| Failure::io("cannot measure the disk", &errno.into()))?;
            let bytes = stat.blocks_available() * stat.fragment_size();
            let inodes = bytes / BYTES_PER_INODE;
            Ok(DiskLimit { bytes, inodes })
        };
        disk::make(file, agent.limits.disk.map_or_else(free, Ok)?, For::Machine)?;
    }
    Ok(DiskGauge::of_machine(file, is_new))
}

/// The ends of a machine's control port: the supervisor's, which carries the errand, and QEMU's.
fn guest_of(plan: &Plan) -> Result<Option<(Guest, OwnedFd)>, Failure> {
    if plan.machine().is_none() {
        return Ok(None);
    }
    let (ours, theirs) = UnixStream::pair().map_err(|error| Failure::io("cannot start the machine", &error))?;
    Ok(Some((Guest::new(ours, &plan.errand())?, theirs.into())))
}

/// The reader and the writer of an agent's standard error.
fn words_of(plan: &Plan) -> Result<Option<(Words, OwnedFd)>, Failure> {
    if plan.agent().is_none() {
        return Ok(None);
    }
    let failed = |error: std::io::Error| Failure::io("cannot start the sandbox", &error);
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(|errno| failed(errno.into()))?;
    let file = std::io::stderr().as_fd().try_clone_to_owned().map_err(failed)?;
    let words = Words::new(reader, file.into()).map_err(failed)?;
    Ok(Some((words, writer)))
}

/// Gives the entrance its limits and network, once it is in its namespaces.
fn hand_over(socket: &mut UnixStream, plan: &Plan, entrance: Pid, cgroup: &Cgroup) -> Result<Option<Slirp>, Failure> {
    let mut ready = [0];
    // No byte: the entrance could not make its namespaces, and the failure pipe has the reason.
    if socket.read_exact(&mut ready).is_err() {
        return Ok(None);
    }
    cgroup.admit(entrance)?;
    let slirp = plan.reach().is_some().then(|| Slirp::start(entrance)).transpose()?;
    socket
        .write_all(&[1])
        .map_err(|error| Failure::io("cannot start the sandbox", &error))?;
    Ok(slirp)
}
