//! The supervisor's loop while its sandbox runs. Polls descriptors and files, and kills the entrance.

use std::{
    os::{fd::AsFd, unix::net::UnixStream},
    time::{Duration, Instant},
};

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
use crate::sandbox::lease::Lease;

/// Interval at which the supervisor checks whether the sandbox has ended or has to end, in milliseconds. Neither event
/// has a descriptor that `poll` could watch together with the others, short of Linux-only process handles.
const LOOK_EVERY_MS: u16 = 20;

/// Interval at which it checks whether its server has a lease.
const LEASE_EVERY: Duration = Duration::from_millis(500);

/// The longest time for which a sandbox waits for its server's return: one that lives, whose database may be away, and one whose
/// process is gone. Other servers take the jobs of both within half a minute, if they have the database.
const LONGEST_STILL: Duration = Duration::from_mins(30);
const LONGEST_ORPHANED: Duration = Duration::from_mins(5);

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
    /// For a sandbox whose job another server may take.
    pub(super) lease: Option<LeaseWatch>,
}

/// The lease of a sandbox, and what its loss has led to.
#[derive(Debug)]
pub(super) struct LeaseWatch {
    lease: Lease,
    looked: Instant,
    /// Since when the sandbox has stood still, without the time while the host slept.
    still: Option<Instant>,
}

impl LeaseWatch {
    pub(super) fn new(lease: Lease) -> Self {
        let (looked, still) = (Instant::now(), None);
        Self { lease, looked, still }
    }

    /// Makes the sandbox stand still as long as its server has no lease. Returns why it has to end instead.
    fn look(&mut self, cgroup: &Cgroup) -> Option<Failure> {
        if self.looked.elapsed() < LEASE_EVERY {
            return None;
        }
        self.looked = Instant::now();
        let lost = |detail: String| {
            Failure::new(Code::ServerLost, detail).hint("the job is tried again; see why its server did not run")
        };
        match (self.lease.is_held(), self.still) {
            (true, Some(_)) => {
                self.still = None;
                let error = cgroup.stand_still(false).err()?;
                Some(lost(format!("the sandbox does not go on: {error}")))
            }
            (false, None) => {
                self.still = Some(Instant::now());
                let error = cgroup.stand_still(true).err()?;
                Some(lost(format!(
                    "its server shows no life, and the sandbox cannot wait for it: {error}"
                )))
            }
            (false, Some(since)) => {
                let longest = if self.lease.is_orphaned() {
                    LONGEST_ORPHANED
                } else {
                    LONGEST_STILL
                };
                let detail = format!("its server has shown no life for {} s", longest.as_secs());
                (since.elapsed() > longest).then(|| lost(detail))
            }
            (true, None) => None,
        }
    }
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
            if let Some(lease) = &mut self.lease {
                lost = lost.or(lease.look(cgroup));
            }
            // A request that cannot be looked for is found at the next look.
            let asked = (self.files.as_ref()).is_some_and(|files| files.is_to_end().unwrap_or(false));
            if kiln_left || lost.is_some() || asked {
                killed = true;
                if self.lease.as_ref().is_some_and(|lease| lease.still.is_some()) {
                    // Without its groups it cannot stand still.
                    let _ = cgroup.kill();
                }
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
