//! The first process of a container: makes a sandbox in it, and outlives that sandbox to report how it ended. Reads
//! standard input, writes standard output, and touches the container's volume.
//!
//! ```text
//!  engine ── container ─────────────────────────────────────────────────────────────────────────┐
//!         │  container (pid 1) ── fork ──▶ entrance ── fork ──▶ init (pid 1 inside) ── exec ──▶ agent │
//!         │  the engine's namespaces       user namespace      all namespaces but the network       │
//! ```
//!
//! Only this process has any right in the engine's namespaces: to set up routes, which it gives up at once, and to map
//! ids. A build's root has all rights in its own user namespace and none outside it; it cannot change the network,
//! which is the container's.
//!
//! In a virtual machine (`Order::ids` is none) there is no user namespace: the machine is the boundary.

use std::{
    ffi::OsString,
    io::{BufRead, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, Signal, kill},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid, fork, pipe2},
};

use kiln_inside::room::{
    Beyond, Counters, DiskGauge, IdMap, Meter, Walker,
    order::{self, DISK, End, NO_DOORS, Order, Said, VOLUME},
    report_failure,
};
use kiln_inside::routes;
use kiln_records::{Code, Failure};
use serde::Serialize;

mod disk;
mod fetch;
mod inside;
mod probe;
mod rights;

/// The owners of the measured files in a virtual machine: all ids.
const ALL_IDS: IdMap = IdMap {
    uid_base: 0,
    gid_base: 0,
    rootless: false,
    beyond: Beyond::Rest,
};

/// Interval between measurements of the sandbox, in milliseconds.
const EVERY_MS: u16 = 1000;

/// How long an agent may take to end when asked. Engines kill a container after ten seconds.
const LAST_WORDS: Duration = Duration::from_secs(7);

/// The subcommand. Returns the container's exit status.
pub fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let code = match arguments.next() {
        Some(word) if word == order::SYNC => i32::from(!keep(arguments.next())),
        Some(word) if word == order::PROBE => probe::main(arguments.next()),
        Some(word) if word == order::FROM => main_from(Path::new(&arguments.next().unwrap_or_default())),
        Some(word) if word == order::FETCH => main_fetch(Path::new(&arguments.next().unwrap_or_default())),
        _ => say_end(carried_out(read_order())),
    };
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// Carries out the order in a file. Returns the container's exit code.
fn main_from(file: &Path) -> i32 {
    let end = carried_out(order_in(file).and_then(prepared));
    note_end(&end);
    say_end(end)
}

/// Fetches the toolbox that the order in a file names. Returns the container's exit code.
fn main_fetch(file: &Path) -> i32 {
    let _ = prctl::set_name(c"kiln-fetch");
    match order_in(file).and_then(|order| fetch::toolbox(&order, Path::new(order::FETCHED))) {
        Ok(()) => 0,
        Err(failure) => {
            let end = End {
                exit_code: 1,
                failure: Some(failure),
                ..End::default()
            };
            note_end(&end);
            say_end(end)
        }
    }
}

fn order_in(file: &Path) -> Result<Order, Failure> {
    let read = fs_err::read_to_string(file).map_err(|error| Failure::io("cannot read the instructions", &error));
    parse_order(&read?)
}

/// Leaves the end where a cluster reads it.
fn note_end(end: &End) {
    // What does not fit is cut off, and is no JSON any more.
    let short = End {
        failure: end.failure.clone().map(Failure::shown),
        ..end.clone()
    };
    if let Ok(text) = serde_json::to_string(&short)
        && let Err(error) = fs_err::write(order::END, text)
    {
        let _ = writeln!(std::io::stderr(), "the end is not noted: {error}");
    }
}

/// Makes what no driver has put into the volume.
fn prepared(order: Order) -> Result<Order, Failure> {
    let make = |name: &str, mode: u32| {
        let dir = Path::new(VOLUME).join(name);
        fs_err::create_dir_all(&dir)
            .and_then(|()| fs_err::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(mode)))
            .map_err(|error| Failure::io("cannot prepare the sandbox's disk space", &error))
    };
    make(NO_DOORS, 0o755)?;
    // Open to the sandbox's ids.
    make(DISK, 0o777)?;
    Ok(order)
}

fn carried_out(order: Result<Order, Failure>) -> End {
    order.and_then(|order| run(&order)).unwrap_or_else(|failure| End {
        exit_code: 1,
        failure: Some(failure),
        ..End::default()
    })
}

/// Returns the container's exit code.
fn say_end(end: End) -> i32 {
    let code = end.exit_code;
    say_line(&Said::End(end));
    code
}

fn read_order() -> Result<Order, Failure> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|error| Failure::io("cannot read the instructions of the container", &error))?;
    parse_order(&line)
}

fn parse_order(text: &str) -> Result<Order, Failure> {
    serde_json::from_str(text).map_err(|error| {
        // The server died between the two calls that start a container.
        Failure::new(
            Code::SandboxStart,
            format!("the container got no valid instructions: {error}"),
        )
    })
}

/// Writes a line to standard output. An engine that keeps no logs is no reason to end.
fn say_line(what: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(what) {
        let _ = writeln!(std::io::stdout(), "{text}");
    }
}

fn run(order: &Order) -> Result<End, Failure> {
    let _ = prctl::set_name(c"kiln-container");
    if order.ids.is_none() {
        has_own_kernel(&order.hosts)?;
    }
    let mut allow = order.allow.clone();
    if !allow.is_empty() && order.resolvers.is_empty() {
        // Only the container knows the name servers that the engine has given it.
        let of_engine = fs_err::read_to_string("/etc/resolv.conf").unwrap_or_default();
        for resolver in probe::resolvers(&of_engine) {
            allow.push(resolver.into());
        }
    }
    routes::restrict(&allow, &order.deny)?;
    let disk = Path::new(VOLUME).join(DISK);
    if order.ids.is_some() {
        rights::keep_only_ids()?;
    }
    let has_size = match order.disk {
        Some(size) => disk::mount_file(&disk, size)?,
        None => false,
    };
    let gauge = if has_size {
        DiskGauge::of_file_system(&disk, false)
    } else {
        DiskGauge::Directory(Walker::start(&disk, order.ids.unwrap_or(ALL_IDS))?)
    };
    let signals = Signals::block()?;
    let mut meter = Meter::new(gauge);
    let counters = counters();
    let (exit_code, failure) = sandbox(order, &disk, &signals, || {
        if let Some(usage) = meter.tick(&counters) {
            say_line(&Said::Usage(usage));
        }
    })?;
    Ok(End {
        exit_code,
        failure,
        usage: meter.read(&counters),
    })
}

/// Succeeds if this is another kernel than those of the hosts. Otherwise the recipe would have the rights over one of them
/// that it is to have over a virtual machine.
fn has_own_kernel(hosts: &[String]) -> Result<(), Failure> {
    if hosts.is_empty() {
        return Ok(());
    }
    let boot = fs_err::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_err(|error| Failure::io("cannot tell whether this is a virtual machine", &error))?;
    if hosts.iter().all(|host| host != boot.trim()) {
        return Ok(());
    }
    Err(Failure::new(
        Code::NotIsolated,
        "the job needs a virtual machine, and this container runs on the kernel of one of the hosts",
    )
    .hint("name a runtime of Kata Containers"))
}

/// Makes the disk space safe against a crash of the machine. Returns whether it is: if the machine booted after the
/// sandbox `started`, some of its writes may be lost. Seconds since 1970.
fn keep(started: Option<OsString>) -> bool {
    let started = started.and_then(|text| text.to_str()?.parse::<u64>().ok());
    let stat = fs_err::read_to_string("/proc/stat").unwrap_or_default();
    let boot = stat
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
    let is_of_this_boot = matches!((started, boot), (Some(started), Some(boot)) if started > boot);
    is_of_this_boot && fs_err::File::open(VOLUME).is_ok_and(|dir| nix::unistd::syncfs(&dir).is_ok())
}

/// The counters of the container's own groups, as engines show them inside.
fn counters() -> Counters {
    let mount = Path::new("/sys/fs/cgroup");
    let dirs = if mount.join("cgroup.controllers").exists() {
        vec![mount.to_owned()]
    } else {
        ["memory", "cpuacct", "cpu,cpuacct"]
            .map(|name| mount.join(name))
            .to_vec()
    };
    Counters::of(dirs)
}

/// Runs the sandbox to its end. `tick` is called regularly meanwhile.
fn sandbox(
    order: &Order,
    disk: &Path,
    signals: &Signals,
    mut tick: impl FnMut(),
) -> Result<(i32, Option<Failure>), Failure> {
    let system = |errno: Errno| Failure::new(Code::SandboxStart, format!("cannot start the sandbox: {errno}"));
    let (failure_out, failure_in) = pipe2(OFlag::O_CLOEXEC).map_err(system)?;
    let (ours, theirs) = UnixStream::pair().map_err(|error| Failure::io("cannot start the sandbox", &error))?;
    // SAFETY: this process has one thread, so the child may allocate and call anything.
    #[expect(unsafe_code, reason = "fork has no safe form")]
    let entrance = match unsafe { fork() }.map_err(system)? {
        ForkResult::Child => {
            drop((ours, failure_out));
            signals.unblock();
            let code = inside::enter(order, disk, theirs).unwrap_or_else(|failure| {
                report_failure(&failure_in, &failure);
                1
            });
            #[expect(clippy::exit, reason = "a forked child must not return into its parent's code")]
            std::process::exit(code);
        }
        ForkResult::Parent { child } => child,
    };
    drop((theirs, failure_in));
    let refused = hand_over(ours, order.ids, entrance).err();
    if refused.is_some() {
        let _ = kill(entrance, Signal::SIGKILL);
    }
    let mut told_to_end = None;
    let exit_code = loop {
        match waitpid(entrance, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => break code,
            Ok(WaitStatus::Signaled(_, signal, _)) => break 128 + signal as i32,
            Err(Errno::ECHILD) => break 1,
            _ => {}
        }
        if signals.wait() == Some(Signal::SIGTERM) && told_to_end.is_none() {
            told_to_end = Some(Instant::now());
            // The agent ends its tools and tells its server. All other processes end with it.
            if let Some(agent) = child_of(entrance).and_then(child_of) {
                let _ = kill(agent, Signal::SIGTERM);
            }
        }
        if told_to_end.is_some_and(|when| when.elapsed() > LAST_WORDS) {
            let _ = kill(entrance, Signal::SIGKILL);
        }
        tick();
    };
    let ended_by_engine = told_to_end.map(|_| {
        Failure::new(Code::SandboxLost, "the container engine ended the sandbox")
            .hint("it was stopped or restarted, or the container was stopped by hand")
    });
    Ok((exit_code, said(failure_out).or(refused).or(ended_by_engine)))
}

/// The first child of a process that still exists.
fn child_of(process: Pid) -> Option<Pid> {
    let children = fs_err::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok().map(Pid::from_raw)
}

/// Maps the ids of the entrance, once it is in its user namespace.
fn hand_over(mut socket: UnixStream, ids: Option<IdMap>, entrance: Pid) -> Result<(), Failure> {
    let lost = |error: std::io::Error| Failure::io("cannot start the sandbox", &error);
    let mut ready = [0];
    // No byte: the entrance could not make its namespaces and says why through the failure pipe.
    if socket.read_exact(&mut ready).is_err() {
        return Ok(());
    }
    if let Some(ids) = ids {
        ids.apply(entrance)?;
    }
    socket.write_all(&ready).map_err(lost)
}

/// The failure that was written into a pipe before it was closed.
fn said(pipe: OwnedFd) -> Option<Failure> {
    let mut text = String::new();
    let _ = std::fs::File::from(pipe).read_to_string(&mut text);
    serde_json::from_str(&text).ok()
}

/// Signals that this process waits for, instead of being interrupted by them.
struct Signals {
    set: SigSet,
    fd: SignalFd,
}

impl Signals {
    fn block() -> Result<Self, Failure> {
        let failed = |errno: Errno| Failure::new(Code::SandboxStart, format!("cannot wait for signals: {errno}"));
        let mut set = SigSet::empty();
        // The sandbox has ended, or the engine wants it to.
        set.add(Signal::SIGCHLD);
        set.add(Signal::SIGTERM);
        set.thread_block().map_err(failed)?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(failed)?;
        Ok(Self { set, fd })
    }

    fn unblock(&self) {
        // The same set was blocked before, so this cannot fail.
        let _ = self.set.thread_unblock();
    }

    /// The next signal, if one comes before the next measurement.
    fn wait(&self) -> Option<Signal> {
        let mut watched = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut watched, PollTimeout::from(EVERY_MS));
        let info = self.fd.read_signal().ok().flatten()?;
        Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok()
    }
}
