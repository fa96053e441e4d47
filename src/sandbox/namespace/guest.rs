//! The supervisor's end of a virtual machine's control port. Reads and writes one socket, and trusts nothing it reads.

use std::{
    io::{Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
};

use kiln_records::{
    Failure,
    guest::{Errand, GuestReport, News},
};

/// Longer lines are not genuine. The guest may be under hostile control by now.
const LONGEST_LINE: usize = 64 * 1024;

/// A machine with an errand, and what it has reported.
#[derive(Debug)]
pub(super) struct Guest {
    socket: UnixStream,
    is_open: bool,
    heard: Vec<u8>,
    /// Files, directories and links on its disk: at first, and now.
    inodes: Option<(u64, u64)>,
    report: Option<GuestReport>,
}

impl Guest {
    /// Writes the errand to the port, where it waits until the machine is up.
    pub(super) fn new(mut socket: UnixStream, errand: &Errand) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot give the machine its instructions", &error);
        let mut line = serde_json::to_string(errand).map_err(|error| failed(error.into()))?;
        line.push('\n');
        socket.write_all(line.as_bytes()).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            socket,
            is_open: true,
            heard: Vec::new(),
            inodes: None,
            report: None,
        })
    }

    /// The descriptor to poll while the machine may still send something.
    pub(super) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.is_open.then(|| self.socket.as_fd())
    }

    /// Reads everything available. Returns whether there was anything.
    pub(super) fn listen(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match self.socket.read(&mut buffer) {
            Ok(count) if count > 0 && self.heard.len() + count <= LONGEST_LINE => {
                self.heard.extend_from_slice(&buffer[..count]);
                while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.heard.drain(..=end).collect();
                    self.take(&line);
                }
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => false,
            // The machine is gone, or sends garbage.
            _ => {
                self.is_open = false;
                false
            }
        }
    }

    fn take(&mut self, line: &[u8]) {
        match serde_json::from_slice(line) {
            Ok(News::Disk { inodes, .. }) => {
                let first = self.inodes.map_or(inodes, |(first, _)| first);
                self.inodes = Some((first, inodes));
            }
            Ok(News::Ended(report)) => self.report = Some(report),
            Err(_) => self.is_open = false,
        }
    }

    /// How many files, directories and links its disk gained since the first message, and has in all.
    pub(super) fn inodes(&self) -> (u64, u64) {
        self.inodes
            .map_or((0, 0), |(first, now)| (now.saturating_sub(first), now))
    }

    /// The report on its errand, if it has finished.
    pub(super) fn report(&mut self) -> Option<GuestReport> {
        while self.is_open && self.listen() {}
        self.report.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_says_is_heard_and_nonsense_is_not() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut guest = Guest::new(ours, &Errand::Boot).unwrap();
        let mut errand = [0; 7];
        theirs.read_exact(&mut errand).unwrap();
        assert_eq!(&errand, b"\"boot\"\n");
        theirs
            .write_all(b"{\"disk\":{\"bytes\":1,\"inodes\":20}}\n{\"disk\":{\"by")
            .unwrap();
        assert!(guest.listen() && !guest.listen());
        theirs
            .write_all(b"tes\":1,\"inodes\":25}}\n{\"ended\":{\"exit_code\":3,\"oom_kills\":1}}\n")
            .unwrap();
        assert_eq!(guest.report().unwrap().exit_code, 3);
        assert_eq!(guest.inodes(), (5, 25));
        theirs.write_all(b"{\"disk\":\n").unwrap();
        assert!(guest.report().is_none() && guest.source().is_none());

        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut guest = Guest::new(ours, &Errand::Boot).unwrap();
        std::thread::spawn(move || while theirs.write_all(&[b'x'; 4096]).is_ok() {});
        while guest.source().is_some() {
            guest.listen();
        }
        assert!(guest.heard.len() <= LONGEST_LINE);
    }
}
