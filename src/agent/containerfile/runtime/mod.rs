//! The OCI runtime that buildah calls for each `RUN` of a Containerfile: a mode of this program. Makes namespaces and mounts, and
//! starts the command of the instruction in the root of a working container.
//!
//! ```text
//!  buildah ── create ─▶ asks the agent, which looks after the root's twins; forks   ──▶ waits in the root
//!          ── start  ─▶ opens the pipe on which that waits                          ──▶ the command
//!          ── state  ─▶ answers when it has ended, or after some time that it runs
//!          ── delete ─▶ removes mount points; tells the agent
//! ```
//!
//! A runtime such as crun would want control groups and a `/sys` that a sandbox does not have, and nobody could tell it that twins
//! are to be ready first. Containment is not its task: the job's sandbox is around all that it starts.

use std::{
    convert::Infallible,
    ffi::{OsStr, OsString},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    mount::{MntFlags, MsFlags, mount, umount2},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    sys::{
        resource::{Resource, setrlimit},
        signal::{Signal, kill},
        stat::{Mode, umask},
    },
    unistd::{ForkResult, Gid, Pid, Uid, fork, mkfifo, pipe2, pivot_root, setgid, setgroups, sethostname, setuid},
};
use rustix::{
    process::{PidfdFlags, pidfd_open},
    thread::{CapabilitySet, remove_capability_from_bounding_set},
};

use self::bundle::{Bundle, Process};
use super::runs::{self, Answer};
use crate::{containerfile::NAME, twins::stand_in};

mod bundle;
mod furnish;
mod storage;

/// The directory of what is known of a container, by its id.
const CONTAINERS: &str = "/run/kiln-containers";

/// Files in a container's directory.
const START: &str = "start";
const PID: &str = "pid";
const MADE: &str = "made";
const ROOT: &str = "root";

/// How long a question for the state waits for the end. buildah asks ten times a second otherwise.
const PATIENCE: u16 = 5_000;

/// Whether this program was called as the runtime.
pub fn is_called(name: &OsStr) -> bool {
    Path::new(name).file_name() == Some(NAME.as_ref())
}

/// Does what buildah asks for: `create --bundle DIR --pid-file FILE ID`, or `start`, `state`, `kill` and `delete` with an id.
///
/// # Errors
///
/// For buildah to show.
pub fn main(arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    let words: Vec<String> = arguments.map(|word| word.to_string_lossy().into_owned()).collect();
    let wrong = || io::Error::other(format!("it was called in a way that is not known: {words:?}"));
    let mut plain = Vec::new();
    let (mut bundle, mut pid_file) = (None, None);
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--bundle" | "-b" => bundle = rest.next(),
            "--pid-file" => pid_file = rest.next(),
            option if option.starts_with('-') => {}
            _ => plain.push(word.as_str()),
        }
    }
    match (plain.as_slice(), bundle, pid_file) {
        (["create", id], Some(bundle), Some(pid_file)) => create(Path::new(bundle), Path::new(pid_file), &dir_of(id)?),
        (["start", id], ..) => start(&dir_of(id)?),
        (["state", id], ..) => state(id, &dir_of(id)?),
        (["kill", id], ..) => end(&dir_of(id)?, Signal::SIGTERM),
        (["kill", id, signal], ..) => end(&dir_of(id)?, signal.parse().unwrap_or(Signal::SIGKILL)),
        (["delete", id], ..) => delete(&dir_of(id)?),
        _ => Err(wrong()),
    }
}

fn dir_of(id: &str) -> io::Result<PathBuf> {
    let is_plain = !id.is_empty()
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_plain {
        return Ok(Path::new(CONTAINERS).join(id));
    }
    Err(io::Error::other(format!("`{id}` is no id of a container")))
}

fn create(bundle: &Path, pid_file: &Path, dir: &Path) -> io::Result<()> {
    let bundle = Bundle::read(bundle)?;
    fs_err::create_dir_all(dir)?;
    mkfifo(&dir.join(START), Mode::S_IRUSR | Mode::S_IWUSR)?;
    let place = storage::place_of(&bundle.root.path)?;
    fs_err::write(dir.join(ROOT), place.as_os_str().as_encoded_bytes())?;
    let allowed = runs::begin(&place)?;
    let mut own = CloneFlags::empty();
    for (kind, flag) in [
        ("pid", CloneFlags::CLONE_NEWPID),
        ("ipc", CloneFlags::CLONE_NEWIPC),
        ("uts", CloneFlags::CLONE_NEWUTS),
        // Its loopback stays down: the sandbox's root may not set up networks.
        ("network", CloneFlags::CLONE_NEWNET),
    ] {
        if bundle.has_own(kind) {
            own |= flag;
        }
    }
    unshare(own)?;
    let (ready, told) = pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: this process has one thread.
    #[expect(unsafe_code, reason = "a process in namespaces of its own is made by a fork")]
    let child = match unsafe { fork() }? {
        ForkResult::Child => {
            drop(ready);
            let Err(error) = contain(&bundle, allowed, dir, &told);
            let _ = writeln!(
                io::stderr(),
                "{}: {error}",
                bundle.process.args.first().map_or("", String::as_str)
            );
            let code = if error.kind() == io::ErrorKind::NotFound {
                127
            } else {
                126
            };
            #[expect(clippy::exit, reason = "the rest of this program is its parent's")]
            std::process::exit(code)
        }
        ForkResult::Parent { child } => child,
    };
    drop(told);
    fs_err::write(dir.join(PID), child.to_string())?;
    let mut said = Vec::new();
    std::fs::File::from(ready).take(1).read_to_end(&mut said)?;
    if said.is_empty() {
        return Err(io::Error::other("the root of the container could not be entered"));
    }
    fs_err::write(pid_file, child.to_string())
}

/// Enters the root, says so on `told`, waits for the start, and becomes the command.
fn contain(bundle: &Bundle, allowed: Answer, dir: &Path, told: &OwnedFd) -> io::Result<Infallible> {
    let (root, none) = (bundle.root.path.as_path(), None::<&Path>);
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(root), root, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?;
    if let Some(known_as) = &allowed.twins_of {
        stand_in::mount_twins(root, known_as, true);
    }
    let mut made = furnish::Made::default();
    let mounted = furnish::mount_all(root, &bundle.mounts, &mut made);
    fs_err::write(dir.join(MADE), made.text()?)?;
    mounted?;
    if bundle.has_own("uts") && !bundle.hostname.is_empty() {
        sethostname(&bundle.hostname)?;
    }
    let start = dir.join(START);
    nix::unistd::write(told, b"1")?;
    // Opened by whoever starts it. Nothing is read: the other end is closed at once.
    fs_err::read(start)?;
    std::env::set_current_dir(root)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    let process = &bundle.process;
    limit(process);
    if let Err(error) = std::env::set_current_dir(&process.cwd) {
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error);
        }
        fs_err::create_dir_all(&process.cwd)?;
        std::env::set_current_dir(&process.cwd)?;
    }
    umask(Mode::from_bits_truncate(process.user.umask.unwrap_or(0o022)));
    let groups: Vec<Gid> = process
        .user
        .additional_gids
        .iter()
        .copied()
        .map(Gid::from_raw)
        .collect();
    setgroups(&groups)?;
    setgid(Gid::from_raw(process.user.gid))?;
    drop_capabilities(&process.capabilities.bounding)?;
    setuid(Uid::from_raw(process.user.uid))?;
    if process.no_new_privileges {
        nix::sys::prctl::set_no_new_privs()?;
    }
    let (program, arguments) = process
        .args
        .split_first()
        .ok_or_else(|| io::Error::other("there is no command"))?;
    let variables = process.env.iter().filter_map(|variable| variable.split_once('='));
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs([home(process)])
        .envs(variables)
        .envs(allowed.environment);
    close_all()?;
    Err(command.exec())
}

/// The home directory of the user, which every runtime tells a command that has not been told another one.
fn home(process: &Process) -> (&'static str, String) {
    let uid = process.user.uid.to_string();
    let accounts = fs_err::read_to_string("/etc/passwd").unwrap_or_default();
    let of_user = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(2) == Some(&uid.as_str()))
            .then(|| fields.get(5).map(|home| (*home).to_owned()))
            .flatten()
    };
    let home = accounts.lines().find_map(of_user);
    ("HOME", home.unwrap_or_else(|| "/".to_owned()))
}

/// Closes what the command must not inherit: everything but its standard input and output.
fn close_all() -> io::Result<()> {
    for entry in fs_err::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_string_lossy().parse().unwrap_or(0);
        if number > 2 {
            // SAFETY: nothing of this process is used after its exec.
            #[expect(unsafe_code, reason = "whatever was inherited has a number only")]
            let file = unsafe { BorrowedFd::borrow_raw(number) };
            // The one of the list itself is closed already.
            let _ = fcntl(file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        }
    }
    Ok(())
}

/// Sets the limits of resources, as far as the sandbox has them to give.
fn limit(process: &Process) {
    for limit in &process.rlimits {
        let resource = match limit.name.as_str() {
            "RLIMIT_NOFILE" => Resource::RLIMIT_NOFILE,
            "RLIMIT_CORE" => Resource::RLIMIT_CORE,
            "RLIMIT_STACK" => Resource::RLIMIT_STACK,
            "RLIMIT_FSIZE" => Resource::RLIMIT_FSIZE,
            // The number of processes is the sandbox's own matter, and counts for all of its users.
            _ => continue,
        };
        let _ = setrlimit(resource, limit.soft, limit.hard);
    }
}

/// Leaves root only these capabilities: after the next exec it has those of its bounding set.
fn drop_capabilities(kept: &[String]) -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        let name = capability
            .iter_names()
            .next()
            .map_or_else(String::new, |(name, _)| format!("CAP_{name}"));
        if !kept.contains(&name) {
            match remove_capability_from_bounding_set(capability) {
                // An older kernel does not have it.
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

fn pid_in(dir: &Path) -> io::Result<i32> {
    fs_err::read_to_string(dir.join(PID))?.parse().map_err(io::Error::other)
}

fn start(dir: &Path) -> io::Result<()> {
    fs_err::OpenOptions::new().write(true).open(dir.join(START)).map(drop)
}

/// Says whether it still runs; waits a little, since it is asked again at once.
fn state(id: &str, dir: &Path) -> io::Result<()> {
    let pid = pid_in(dir)?;
    let status = match rustix::process::Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(process)) => {
            let mut asked = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            if poll(&mut asked, PollTimeout::from(PATIENCE))? == 0 {
                "running"
            } else {
                "stopped"
            }
        }
        Some(Err(rustix::io::Errno::SRCH)) | None => "stopped",
        Some(Err(errno)) => return Err(errno.into()),
    };
    let state = serde_json::json!({"ociVersion": "1.2.0", "id": id, "status": status, "pid": pid, "bundle": "/"});
    writeln!(io::stdout(), "{state}")
}

fn end(dir: &Path, signal: Signal) -> io::Result<()> {
    match kill(Pid::from_raw(pid_in(dir)?), signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn delete(dir: &Path) -> io::Result<()> {
    // What the command has left behind ends with it where it had a namespace of processes of its own.
    if pid_in(dir).is_ok() {
        end(dir, Signal::SIGKILL)?;
    }
    if let Ok(made) = fs_err::read(dir.join(MADE)) {
        furnish::remove(&made)?;
    }
    let root = PathBuf::from(String::from_utf8_lossy(&fs_err::read(dir.join(ROOT))?).into_owned());
    runs::end(&root)?;
    fs_err::remove_dir_all(dir)
}
