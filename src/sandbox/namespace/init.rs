//! Process 1 of a sandbox: sets up its mounts, starts its one program, and reaps orphans. Mounts in its namespace, and
//! touches the plan's directory.

use std::{
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Stdio},
};

use kiln_inside::{
    emulation::binfmt,
    room::{
        Scope, confine, empty,
        kernel::{Kernel, Linux},
        mounts::{Sources, companions, furnish},
        process1::{self, clear_layers, run_and_reap, unreadable_copy},
    },
};
use kiln_records::{Code, Failure};
use nix::{
    fcntl::{OFlag, open},
    mount::MsFlags,
    sys::{
        prctl,
        stat::{Mode, umask},
    },
    unistd::sethostname,
};

use super::{
    HOST_COMMAND_DIR,
    files::{Files, link_to},
    image::{self, OpenedImage, open_image},
    machine::{self, OpenedMachine, open_machine},
    plan::{AgentTask, Plan, Task},
    rights,
};

/// Where what is inside says something to the supervisor, apart from its exit code.
#[derive(Debug)]
pub(super) struct Outlets {
    /// Takes the words of the agent.
    pub(super) stderr: Option<OwnedFd>,
    /// QEMU's end of the control port.
    pub(super) control: Option<OwnedFd>,
}

/// Descriptors of the paths that a plan names, opened before we lose the right to walk to them.
#[derive(Debug)]
pub(super) struct Opened {
    dir: OwnedFd,
    sources: Option<OpenedSources>,
    machine: Option<OpenedMachine>,
    image: Option<OpenedImage>,
}

#[derive(Debug)]
struct OpenedSources {
    toolbox: OwnedFd,
    agent: OwnedFd,
    companions: Vec<(&'static str, OwnedFd)>,
    doors: OwnedFd,
}

/// Opens the paths of the plan. Must run inside the new mount namespace, since only its mounts can be bound in it.
pub(super) fn open_sources(plan: &Plan) -> Result<Opened, Failure> {
    let handle = |path: &Path| {
        open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| Failure::new(Code::SandboxStart, format!("cannot open {}: {errno}", path.display())))
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
        sources: plan
            .agent()
            .filter(|agent| agent.machine.is_none())
            .map(sources)
            .transpose()?,
        machine: plan.machine().map(|machine| open_machine(plan, machine)).transpose()?,
        image: plan.image().map(|image| open_image(plan, image)).transpose()?,
    })
}

/// Does the plan's task. Returns the exit code of its program.
pub(super) fn main(plan: &Plan, opened: &Opened, outlets: Outlets) -> Result<i32, Failure> {
    let _ = prctl::set_name(c"kiln-init");
    // The directories made here become the sandbox's own; a user's stricter umask would lock other ids out of `/`.
    umask(Mode::from_bits_truncate(0o022));
    if let (Some(machine), Some(opened), Some(control)) = (plan.machine(), &opened.machine, &outlets.control) {
        let command = machine::prepare(&mut Linux, plan, machine, opened, control, outlets.stderr)?;
        // No program for 32 bits runs here, so nobody answers.
        drop(confine(Scope::AllCalls, None)?);
        rights::drop_all()?;
        return run_and_reap(command);
    }
    if let (Some(image), Some(opened)) = (plan.image(), &opened.image) {
        let command = image::prepare(&mut Linux, image, opened)?;
        // No program for 32 bits runs here, so nobody answers.
        drop(confine(Scope::AllCalls, None)?);
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
                .map_err(|errno| Failure::new(Code::SandboxStart, format!("cannot name the sandbox: {errno}")))?;
            furnish(&mut Linux, &sources, &agent.name, &hostname, &agent.resolv_conf)?;
            let (mut command, release) = process1::agent(&agent.facts)?;
            if let Some(stderr) = outlets.stderr {
                command.stderr(Stdio::from(stderr));
            }
            let questions = confine(Scope::AllCalls, Some(release))?;
            rights::drop_network()?;
            questions.answer()?;
            run_and_reap(command)
        }
        (Task::RunHostCommand { argv, env, emulator }, _) => {
            show_only_work_dir(&opened.dir)?;
            if let Some(entry) = emulator {
                binfmt::register(entry)?;
            }
            let mut command = Command::new(argv.first().map_or("", String::as_str));
            command
                .args(argv.get(1..).unwrap_or_default())
                .env_clear()
                .envs(env.iter().cloned());
            command.current_dir(HOST_COMMAND_DIR).stdin(Stdio::null());
            confine(Scope::AllCalls, None)?.answer()?;
            run_and_reap(command)
        }
        (Task::Empty, _) => empty(&link_to(&opened.dir))
            .map(|()| 0)
            .map_err(|error| Failure::io("cannot empty the sandbox", &error)),
        (Task::RunAgent(_) | Task::TryMachine(_) | Task::BootImage(_), _) => {
            Err(Failure::new(Code::SandboxStart, "the plan was not opened"))
        }
    }
}

/// Gives a host program its own process table, and its directory at a path that every user can walk to.
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
