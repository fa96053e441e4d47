//! Connects a sandbox's network through slirp4netns, which sends the sandbox's traffic like an ordinary program of the
//! host. It needs no right, changes nothing on the host, and refuses the host's loopback. Runs that program.

use std::{
    io::Read,
    os::fd::{AsFd, AsRawFd},
    process::{Child, Command, Stdio},
};

use kiln_records::{Code, Failure};
use nix::{
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::{Pid, pipe2},
};

use super::child::dies_with_us;

/// The program's name.
const SLIRP: &str = "slirp4netns";

/// The largest frame: fewer frames cost less CPU, and none of them is ever on a real wire.
const MTU: u32 = 65_520;

/// The address at which it resolves names, by asking the host's resolver.
const RESOLVER: &str = "10.0.2.3";

/// The program is ready within milliseconds.
const PATIENCE_MS: u16 = 10_000;

/// A sandbox's network. Dropping it removes the network.
#[derive(Debug)]
pub(super) struct Slirp {
    child: Child,
}

impl Slirp {
    /// Connects the network namespace of `inside`, and waits until the connection works.
    ///
    /// # Errors
    ///
    /// `no_network` with the program's message.
    pub(super) fn start(inside: Pid) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(Code::NoNetwork, format!("cannot start {SLIRP}: {error}"));
        let (ready_out, ready_in) = pipe2(OFlag::O_CLOEXEC).map_err(|errno| failed(errno.into()))?;
        fcntl(&ready_in, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|errno| failed(errno.into()))?;
        let mut command = Command::new(SLIRP);
        command
            .args([
                "--configure",
                "--disable-host-loopback",
                "--enable-sandbox",
                "--enable-seccomp",
            ])
            .arg(format!("--mtu={MTU}"))
            .arg(format!("--ready-fd={}", ready_in.as_raw_fd()))
            .args([&inside.to_string(), "tap0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        dies_with_us(&mut command);
        let child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                failed(error).hint("install the package `slirp4netns`: sandboxes reach the network through it")
            }
            _ => failed(error),
        })?;
        let mut slirp = Self { child };
        drop(ready_in);
        let mut watched = [PollFd::new(ready_out.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut watched, PollTimeout::from(PATIENCE_MS));
        let is_ready = watched[0]
            .revents()
            .is_some_and(|events| events.contains(PollFlags::POLLIN));
        if is_ready { Ok(slirp) } else { Err(slirp.refused()) }
    }

    /// Ends the program, and makes a failure of its last output.
    fn refused(&mut self) -> Failure {
        self.end();
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        let last = said
            .lines()
            .rfind(|line| !line.starts_with("WARNING"))
            .unwrap_or("it gave no reason");
        let failure = Failure::new(
            Code::NoNetwork,
            format!("{SLIRP} cannot give the sandbox a network: {last}"),
        );
        if said.contains("/dev/net/tun") {
            failure.hint("the user that runs Kiln must be able to open /dev/net/tun, as all users can on most systems")
        } else {
            failure
        }
    }

    /// The failure, if the network ended by itself.
    pub(super) fn is_lost(&mut self) -> Option<Failure> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(Failure::new(
            Code::NetworkLost,
            format!("the sandbox's network is gone: {SLIRP} ended with {status}"),
        ))
    }

    fn end(&mut self) {
        // Errors mean that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Slirp {
    fn drop(&mut self) {
        self.end();
    }
}

/// `/etc/resolv.conf` for a sandbox with its own network: the host's search domains and options, but the resolver of
/// that network, since the host's may be on its loopback.
pub(super) fn resolv_conf(of_host: &str) -> String {
    let stays = |line: &&str| !line.trim_start().starts_with("nameserver");
    let mut text: String = of_host.lines().filter(stays).flat_map(|line| [line, "\n"]).collect();
    text.push_str("nameserver ");
    text.push_str(RESOLVER);
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_asked_for_where_the_sandbox_can_reach() {
        assert_eq!(
            resolv_conf("search site.example\n nameserver 127.0.0.53\nnameserver ::1\noptions edns0"),
            "search site.example\noptions edns0\nnameserver 10.0.2.3\n"
        );
    }
}
