//! Runs a program in the place of `kiln`: it gets kiln's signals, stops with it and decides how it ends. Starts
//! processes and sends signals to them.
//!
//! Becoming the program (`exec`) would do the same, but leaves nobody to remove the program's files.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use nix::{
    sys::{
        signal::{Signal, kill, raise},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// The signals that users and scripts send to `kiln` and mean for the program.
const FORWARDED: [Signal; 4] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP];

/// The end of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Code(u8),
    Signal(Signal),
}

/// Runs the program until it ends.
///
/// # Errors
///
/// The program cannot be started.
pub(super) async fn run(command: &mut Command) -> io::Result<End> {
    // Before the program starts, so that neither a signal nor its end is missed.
    let mut children = signal(SignalKind::child())?;
    let mut signals = signals()?;
    let program = Pid::from_raw(command.spawn()?.id().cast_signed());
    loop {
        tokio::select! {
            _ = children.recv() => {
                if let Some(end) = look_at(program)? {
                    return Ok(end);
                }
            }
            // The program is not waited for in between, so its process id is still its own.
            Some(signal) = signals.recv() => kill(program, signal)?,
        }
    }
}

/// The end of the program, if it has ended. A program that has stopped stops `kiln` too, so that the user's shell
/// notices and can continue both.
fn look_at(program: Pid) -> io::Result<Option<End>> {
    loop {
        match waitpid(program, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED))? {
            WaitStatus::Exited(_, code) => return Ok(Some(End::Code(u8::try_from(code).unwrap_or(u8::MAX)))),
            WaitStatus::Signaled(_, signal, _) => return Ok(Some(End::Signal(signal))),
            WaitStatus::Stopped(..) => raise(Signal::SIGSTOP)?,
            _ => return Ok(None),
        }
    }
}

/// The signals to forward, except those that `kiln` was told to ignore, as by `nohup`: the program ignores them too.
fn signals() -> io::Result<mpsc::Receiver<Signal>> {
    let ignored = ignored()?;
    let (sender, receiver) = mpsc::channel(FORWARDED.len());
    for forwarded in FORWARDED {
        let number = forwarded as i32;
        if ignored >> (number - 1) & 1 == 1 {
            continue;
        }
        let mut stream = signal(SignalKind::from_raw(number))?;
        let sender = sender.clone();
        tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(forwarded).await.is_ok() {} });
    }
    Ok(receiver)
}

/// The signals that this process ignores, one bit each.
fn ignored() -> io::Result<u64> {
    let status = fs_err::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    Ok(mask
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0))
}

impl End {
    /// Ends `kiln` in the same way. Everything that has to be cleaned up must be gone by now.
    pub(super) fn repeat(self) -> ExitCode {
        let number = match self {
            Self::Code(code) => return code.into(),
            Self::Signal(signal) => signal as i32,
        };
        // This process handles some signals, and exec gives them their default effect back. It returns only on failure.
        let _ = Command::new("/bin/sh")
            .args(["-c", "kill -\"$0\" $$", &number.to_string()])
            .exec();
        ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn end_of(script: &str) -> End {
        run(Command::new("sh").args(["-c", script])).await.unwrap()
    }

    #[tokio::test]
    async fn the_end_is_that_of_the_program() {
        assert_eq!(end_of("exit 0").await, End::Code(0));
        assert_eq!(end_of("exit 255").await, End::Code(255));
        assert_eq!(end_of("kill -TERM $$").await, End::Signal(Signal::SIGTERM));
        assert_eq!(end_of("kill -KILL $$").await, End::Signal(Signal::SIGKILL));
        let missing = run(&mut Command::new("/nowhere/at/all")).await;
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
