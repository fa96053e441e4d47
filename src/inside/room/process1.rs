//! The work of process 1 of a sandbox inside its namespaces: starts a program and reaps orphans. Touches the disk
//! space of the sandbox.

use std::{
    io::{ErrorKind, Write},
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::Path,
    process::{Command, Stdio},
};

use kiln_records::{Code, Failure, protocol::AgentFacts};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::wait::{WaitStatus, waitpid},
    unistd::{Pid, pipe2},
};

use super::{
    Release,
    mounts::{AGENT, JOBLESS_LAYERS},
    remove_tree,
};

/// The word before the number of the release among the agent's arguments.
pub const RELEASE: &str = "release";

/// The agent, with its facts on standard input and this process's outputs, and the release of Linux that it has programs told.
///
/// # Errors
///
/// A pipe cannot be made.
pub fn agent(facts: &AgentFacts) -> Result<(Command, Release), Failure> {
    let failed = |error: std::io::Error| Failure::io("cannot start the agent", &error);
    let input = standard_input(facts).map_err(failed)?;
    let release = Release::new().map_err(failed)?;
    let mut command = Command::new(AGENT);
    command
        .args([RELEASE, &release.number().to_string()])
        .env_clear()
        .envs(ENVIRONMENT)
        .envs(facts.proxy.iter().flat_map(|proxy| proxy.variables.iter().cloned()))
        .current_dir("/")
        .stdin(Stdio::from(input));
    Ok((command, release))
}

/// The environment of the agent, beside the way to a proxy; nothing of the host's is passed on.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
];

/// The agent's standard input: the facts, in a pipe that holds all of them, since nobody reads yet. Authorities may be
/// larger than a usual pipe.
fn standard_input(facts: &AgentFacts) -> std::io::Result<OwnedFd> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
    let mut text = serde_json::to_string(facts)?;
    text.push('\n');
    let needed = i32::try_from(text.len()).map_err(|_| ErrorKind::FileTooLarge)?;
    if needed > fcntl(&writer, FcntlArg::F_GETPIPE_SZ)? {
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(needed))?;
    }
    std::fs::File::from(writer).write_all(text.as_bytes())?;
    Ok(reader)
}

/// Removes the layers that an earlier sandbox left in the disk space, but not the job's own files.
pub fn clear_layers(disk: &Path) -> std::io::Result<()> {
    JOBLESS_LAYERS
        .iter()
        .try_for_each(|layer| remove_tree(&disk.join(layer)))
}

/// Makes a copy of a program that every user may run but only its owner may read, whose id does not exist inside. The
/// kernel then protects the processes that run it: no root of a sandbox reads their memory, environment or descriptors
/// (`would_dump` in the kernel's `fs/exec.c`).
pub fn unreadable_copy(program: &Path, copy: &Path) -> std::io::Result<()> {
    let mut file = fs_err::File::create(copy)?;
    std::io::copy(&mut fs_err::File::open(program)?, &mut file)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o711))
}

/// Starts the program and waits for it, reaping every orphan that process 1 inherits meanwhile.
pub fn run_and_reap(mut command: Command) -> Result<i32, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command.spawn().map_err(|error| {
        let code = match error.kind() {
            ErrorKind::NotFound => Code::ProgramMissing,
            _ => Code::SandboxStart,
        };
        Failure::new(code, format!("cannot run {program}: {error}"))
    })?;
    let main = Pid::from_raw(i32::try_from(child.id()).unwrap_or(-1));
    loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == main => return Ok(code),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == main => return Ok(128 + signal as i32),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Failure::new(Code::SandboxLost, format!("lost {program}: {errno}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use kiln_records::JobId;

    use super::*;

    #[test]
    fn facts_with_every_authority_of_a_host_do_not_wait_for_a_reader() {
        let facts = AgentFacts {
            gateway: None,
            ca_bundle: Some("x".repeat(300_000)),
            server: "https://kiln:9000".to_owned(),
            job: JobId::new(),
            token: "token".to_owned(),
            doors: Vec::new(),
            proxy: None,
        };
        let mut text = String::new();
        let reader = standard_input(&facts).unwrap();
        std::fs::File::from(reader).read_to_string(&mut text).unwrap();
        assert_eq!(serde_json::from_str::<AgentFacts>(&text).unwrap(), facts);
    }
}
