//! Copies an agent's standard error to a file of bounded size, as evidence. Reads a pipe and writes that file only.

use std::{
    collections::VecDeque,
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// The largest size of the file.
const MOST: usize = 64 * 1024;

/// How much of the end is kept when the file is full.
const TAIL: usize = 16 * 1024;

/// Copies a pipe to a file of bounded size, which always has the end of the output.
#[derive(Debug)]
pub(super) struct Words {
    pipe: File,
    is_open: bool,
    file: File,
    written: usize,
    tail: VecDeque<u8>,
}

impl Words {
    /// Copies from `pipe` to `file`, which is open for appending.
    pub(super) fn new(pipe: OwnedFd, file: File) -> std::io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&pipe, FcntlArg::F_GETFL)?);
        fcntl(&pipe, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Self {
            pipe: pipe.into(),
            is_open: true,
            file,
            written: 0,
            tail: VecDeque::with_capacity(TAIL),
        })
    }

    /// The descriptor to poll, until the last writer is gone.
    pub(super) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.is_open.then(|| self.pipe.as_fd())
    }

    /// Copies available data, up to a limit. Returns whether there was any.
    pub(super) fn copy(&mut self) -> bool {
        let mut buffer = [0; TAIL];
        match self.pipe.read(&mut buffer) {
            Ok(0) => self.is_open = false,
            Ok(count) => {
                self.keep(&buffer[..count]);
                return true;
            }
            Err(_) => {}
        }
        false
    }

    fn keep(&mut self, said: &[u8]) {
        self.tail.extend(said);
        let excess = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..excess);
        // A full disk loses output, not the sandbox.
        if self.written + said.len() <= MOST {
            self.written += said.len();
            let _ = self.file.write_all(said);
        } else {
            self.written = self.tail.len();
            let _ = self.file.set_len(0);
            let _ = self.file.write_all(self.tail.make_contiguous());
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::pipe2;

    use super::*;

    #[test]
    fn the_end_of_endless_words_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        let file = fs_err::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .unwrap()
            .into();
        let (out, into) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let mut words = Words::new(out, file).unwrap();
        let mut into = File::from(into);
        for number in 0..40_000 {
            writeln!(into, "line {number}").unwrap();
            if number % 100 == 0 {
                while words.copy() {}
                assert!(fs_err::metadata(&path).unwrap().len() <= MOST as u64);
            }
        }
        drop(into);
        while words.copy() {}
        assert!(words.source().is_none());
        let text = fs_err::read_to_string(&path).unwrap();
        assert!(text.ends_with("line 39998\nline 39999\n"), "{}", text.len());
    }
}
