//! Process 1 of a sandbox: furnishes it, starts the one program it is for, and reaps whatever that leaves.

use std::{
    io::Write,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    mount::MsFlags,
    sys::{
        prctl,
        stat::{Mode, umask},
        wait::{WaitStatus, waitpid},
    },
    unistd::{Pid, pipe2, sethostname},
};

use super::{
    HOST_COMMAND_DIR,
    entrance::Outlets,
    files::Files,
    kernel::{Kernel, Linux},
    machine::{self, OpenedMachine, open_machine},
    mounts::{AGENT, COMPANIONS, JOBLESS_LAYERS, Sources, furnish},
    plan::{AgentTask, Plan, Task},
    rights,
};
use crate::records::{Failure, guest::AGENT_ENVIRONMENT, protocol::AgentFacts};

/// Descriptors of the paths that a plan names, opened before we lose the right to walk to them.
#[derive(Debug)]
pub(super) struct Opened {
    dir: OwnedFd,
    sources: Option<OpenedSources>,
    machine: Option<OpenedMachine>,
}

#[derive(Debug)]
struct OpenedSources {
    toolbox: OwnedFd,
    agent: OwnedFd,
    companions: Vec<(&'static str, OwnedFd)>,
    doors: OwnedFd,
}

/// Opens what the plan names. Must run inside the new mount namespace, since only its mounts can be bound in it.
pub(super) fn open_sources(plan: &Plan) -> Result<Opened, Failure> {
    let handle = |path: &Path| {
        open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| Failure::new("sandbox_start", format!("cannot open {}: {errno}", path.display())))
    };
    let sources = |agent: &AgentTask| -> Result<_, Failure> {
        let copy = Files::of(&plan.dir).agent();
        unreadable_copy(&agent.agent, &copy).map_err(|error| Failure::io("cannot copy the agent", &error))?;
        Ok(OpenedSources {
            toolbox: handle(&agent.toolbox)?,
            agent: handle(&copy)?,
            companions: companions(&agent.agent)
                .map(|(name, path)| handle(&path).map(|file| (name, file)))
                .collect::<Result<_, Failure>>()?,
            doors: handle(&agent.doors)?,
        })
    };
    Ok(Opened {
        dir: handle(&plan.dir)?,
        sources: plan.agent().filter(|agent| agent.machine.is_none()).map(sources).transpose()?,
        machine: plan.machine().map(|machine| open_machine(plan, machine)).transpose()?,
    })
}

/// What lies beside the agent and goes into the sandbox with it.
pub(super) fn companions(agent: &Path) -> impl Iterator<Item = (&'static str, PathBuf)> {
    COMPANIONS
        .into_iter()
        .map(|name| (name, agent.with_file_name(name)))
        .filter(|(_, path)| path.exists())
}

/// Makes a copy of a program that may be run by everybody and read by its owner only, who is nobody inside. The kernel
/// then shields the processes that run it: no root of a sandbox reads their memory, environment or descriptors
/// (`would_dump` in the kernel's `fs/exec.c`).
fn unreadable_copy(program: &Path, copy: &Path) -> std::io::Result<()> {
    let mut file = fs_err::File::create(copy)?;
    std::io::copy(&mut fs_err::File::open(program)?, &mut file)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o711))
}

pub(super) fn link_to(fd: &OwnedFd) -> PathBuf {
    // Process 1 has its own /proc only after furnishing; the old one names it by the same self link.
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// Does the plan's task. Returns the exit code of its program.
pub(super) fn main(plan: &Plan, opened: &Opened, outlets: Outlets) -> Result<i32, Failure> {
    let _ = prctl::set_name(c"kiln-init");
    // The directories made here become the sandbox's own; a user's stricter mask would lock others out of `/`.
    umask(Mode::from_bits_truncate(0o022));
    if let (Some(machine), Some(opened), Some(control)) = (plan.machine(), &opened.machine, &outlets.control) {
        let command = machine::prepare(&mut Linux, plan, machine, opened, control, outlets.stderr)?;
        rights::drop_all()?;
        return run_and_reap(command);
    }
    match (&plan.task, &opened.sources) {
        (Task::RunAgent(agent), Some(sources)) => {
            clear_layers(&link_to(&opened.dir)).map_err(|error| Failure::io("cannot clear the sandbox", &error))?;
            let sources = Sources {
                toolbox: link_to(&sources.toolbox),
                disk: link_to(&opened.dir),
                agent: link_to(&sources.agent),
                companions: sources
                    .companions
                    .iter()
                    .map(|(name, file)| (*name, link_to(file)))
                    .collect(),
                doors: link_to(&sources.doors),
            };
            let hostname = agent.hostname();
            sethostname(&hostname)
                .map_err(|errno| Failure::new("sandbox_start", format!("cannot name the sandbox: {errno}")))?;
            furnish(&mut Linux, &sources, &agent.name, &hostname, &agent.resolv_conf)?;
            let input = standard_input(&agent.facts).map_err(|error| Failure::io("cannot start the agent", &error))?;
            let mut command = Command::new(AGENT);
            command
                .env_clear()
                .envs(AGENT_ENVIRONMENT)
                .current_dir("/")
                .stdin(Stdio::from(input));
            if let Some(stderr) = outlets.stderr {
                command.stderr(Stdio::from(stderr));
            }
            rights::drop_network()?;
            run_and_reap(command)
        }
        (Task::RunHostCommand { argv, env }, _) => {
            show_only_work_dir(&opened.dir)?;
            let mut command = Command::new(argv.first().map_or("", String::as_str));
            command
                .args(argv.get(1..).unwrap_or_default())
                .env_clear()
                .envs(env.iter().cloned());
            command.current_dir(HOST_COMMAND_DIR).stdin(Stdio::null());
            run_and_reap(command)
        }
        (Task::Empty, _) => empty(&link_to(&opened.dir))
            .map(|()| 0)
            .map_err(|error| Failure::io("cannot empty the sandbox", &error)),
        (Task::RunAgent(_) | Task::TryMachine(_), _) => Err(Failure::new("sandbox_start", "the plan was not opened")),
    }
}

/// Removes what a sandbox before this one left in the disk space, except the job's own.
fn clear_layers(disk: &Path) -> std::io::Result<()> {
    for layer in JOBLESS_LAYERS {
        let path = disk.join(layer);
        if path.exists() {
            fs_err::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// What the agent reads: the facts, which fit into a pipe.
fn standard_input(facts: &AgentFacts) -> std::io::Result<OwnedFd> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
    let mut text = serde_json::to_string(facts)?;
    text.push('\n');
    std::fs::File::from(writer).write_all(text.as_bytes())?;
    Ok(reader)
}

/// Shows a host program its own process table and, at a path that everybody can walk to, its directory.
fn show_only_work_dir(dir: &OwnedFd) -> Result<(), Failure> {
    let kernel = &mut Linux;
    let work = Path::new(HOST_COMMAND_DIR);
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    kernel.mount("", Path::new("/"), "", MsFlags::MS_REC | MsFlags::MS_PRIVATE, "")?;
    kernel.mount("kiln", Path::new("/tmp"), "tmpfs", safe, "mode=1777")?;
    kernel.mkdir(work)?;
    kernel.mount(&link_to(dir).display().to_string(), work, "", MsFlags::MS_BIND, "")?;
    kernel.mount("proc", Path::new("/proc"), "proc", safe | MsFlags::MS_NOEXEC, "")
}

/// Removes everything below `dir`.
fn empty(dir: &Path) -> std::io::Result<()> {
    for entry in fs_err::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            fs_err::remove_dir_all(&path)?;
        } else {
            fs_err::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Starts the program and waits for it, and for every orphan that is handed to process 1 meanwhile.
fn run_and_reap(mut command: Command) -> Result<i32, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command
        .spawn()
        .map_err(|error| Failure::new("sandbox_start", format!("cannot run {program}: {error}")))?;
    let main = Pid::from_raw(i32::try_from(child.id()).unwrap_or(-1));
    loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == main => return Ok(code),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == main => return Ok(128 + signal as i32),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Failure::new("sandbox_lost", format!("lost {program}: {errno}"))),
        }
    }
}
