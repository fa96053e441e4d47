//! Ties a program that the supervisor starts to the supervisor's life. Starts nothing itself.

use std::{os::unix::process::CommandExt, process::Command};

use nix::{
    sys::{prctl, signal::Signal},
    unistd::{getpid, getppid},
};

/// Has `command`'s process killed when this one dies, which must have one thread: the kernel looks at the thread.
pub(super) fn dies_with_us(command: &mut Command) -> &mut Command {
    let supervisor = getpid();
    // SAFETY: between fork and exec only system calls are made.
    #[expect(unsafe_code, reason = "nothing else runs in the child before the program")]
    unsafe {
        command.pre_exec(move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // The supervisor may have died before the call.
            if getppid() == supervisor {
                Ok(())
            } else {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
        })
    }
}
