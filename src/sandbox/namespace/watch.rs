//! The supervisor's loop while its sandbox runs. Polls descriptors and files, and kills the entrance.

use std::os::{fd::AsFd, unix::net::UnixStream};

use kiln_inside::room::Meter;
use kiln_records::{Code, Failure, guest::GuestReport};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use super::{cgroup::Cgroup, files::Files, guest::Guest, network::Slirp, words::Words};

/// Interval at which the supervisor checks whether the sandbox has ended or has to end, in milliseconds. Neither event
/// has a descriptor that `poll` could watch together with the others, short of Linux-only process handles.
const LOOK_EVERY_MS: u16 = 20;

/// Everything that the loop looks after.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    /// For a sandbox with an agent: holds the request to end, and takes the usage.
    pub(super) files: Option<Files>,
    /// For a task that ends with kiln: its end.
    pub(super) socket: Option<&'a UnixStream>,
    pub(super) words: Option<Words>,
    /// For a sandbox with a machine: its messages.
    pub(super) guest: Option<Guest>,
    pub(super) slirp: Option<Slirp>,
    pub(super) meter: Meter,
}

impl Watch<'_> {
    /// Waits for the entrance, and kills it, and so the sandbox, when it has to end. Returns its exit code, and the
    /// loss that ended it, if any.
    pub(super) fn until_the_end_of(&mut self, entrance: Pid, cgroup: &Cgroup) -> (i32, Option<Failure>) {
        let mut lost = None;
        let mut killed = false;
        loop {
            match waitpid(entrance, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => break (self.last_words(code), lost),
                Ok(WaitStatus::Signaled(_, signal, _)) => break (self.last_words(128 + signal as i32), lost),
                Err(Errno::ECHILD) => break (self.last_words(1), lost),
                _ => {}
            }
            let kiln_left = self.wait(killed);
            if killed {
                continue;
            }
            if let Some(files) = &self.files
                && let Some(usage) = self.meter.tick(&cgroup.counters())
            {
                // On a full disk the next record may find space.
                let _ = files.write_usage(&usage);
            }
            lost = self.slirp.as_mut().and_then(Slirp::is_lost);
            // A request that cannot be looked for is found at the next look.
            let asked = (self.files.as_ref()).is_some_and(|files| files.is_to_end().unwrap_or(false));
            if kiln_left || lost.is_some() || asked {
                killed = true;
                let _ = kill(entrance, Signal::SIGKILL);
            }
        }
    }

    /// Waits briefly for events. Returns whether kiln has released the sandbox.
    fn wait(&mut self, killed: bool) -> bool {
        let socket = self.socket.filter(|_| !killed).map(AsFd::as_fd);
        let words = self.words.as_ref().and_then(Words::source);
        let guest = self.guest.as_ref().and_then(Guest::source);
        let mut watched: Vec<_> = [socket, words, guest]
            .into_iter()
            .flatten()
            .map(|source| PollFd::new(source, PollFlags::POLLIN))
            .collect();
        let _ = poll(&mut watched, PollTimeout::from(LOOK_EVERY_MS));
        let kiln_left = socket.is_some() && watched[0].any().unwrap_or(false);
        if let Some(words) = &mut self.words {
            words.copy();
        }
        if let Some(guest) = &mut self.guest
            && guest.listen()
        {
            self.meter.inodes_of_machine(guest.inodes());
        }
        kiln_left
    }

    /// The report on the machine's errand, if it had one. `exit_code` is QEMU's.
    pub(super) fn end_of_machine(&mut self, exit_code: i32) -> Option<GuestReport> {
        let report = self.guest.as_mut()?.report();
        if let Some(guest) = &self.guest {
            self.meter.inodes_of_machine(guest.inodes());
        }
        let lost = || {
            let detail = format!("the virtual machine ended before its agent did (QEMU: {exit_code})");
            GuestReport {
                exit_code: exit_code.max(1),
                failure: Some(
                    Failure::new(Code::VmLost, detail)
                        .hint("the last output of its kernel and of QEMU is in the last words"),
                ),
                ..GuestReport::default()
            }
        };
        Some(report.unwrap_or_else(lost))
    }

    /// Copies the remaining output; returns the exit code unchanged.
    fn last_words(&mut self, code: i32) -> i32 {
        while self.words.as_mut().is_some_and(Words::copy) {}
        code
    }
}
