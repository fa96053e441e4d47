//! The kernel's questions about calls of programs (`seccomp_unotify(2)`), and the programs that made them. Reads and writes the
//! memory of programs of the sandbox, and gives them descriptors.

use std::os::{
    fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    unix::fs::FileExt,
};

use nix::{errno::Errno, libc};

/// A question.
pub(super) type Asked = libc::seccomp_notif;

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It returns this.
    Returns(i32),
    /// It fails.
    Fails(Errno),
    /// The kernel does it, as if nobody had been asked.
    GoesOn,
}

/// Where the kernel asks. When this is dropped, the calls that it asks about get `ENOSYS`.
#[derive(Debug)]
pub(super) struct Listener(OwnedFd);

impl Listener {
    /// That of a filter whose descriptor the kernel has just made.
    pub(super) fn of(listener: RawFd) -> Self {
        Self(owned(listener))
    }

    /// Waits for the next question. There are no more after an error.
    pub(super) fn next(&self) -> Result<Asked, Errno> {
        loop {
            // SAFETY: the kernel demands zeroes, and the structure consists of numbers.
            #[expect(unsafe_code, reason = "a structure of the kernel")]
            let mut asked: Asked = unsafe { std::mem::zeroed() };
            match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) {
                Ok(_) => return Ok(asked),
                // A signal to this thread, or to the one that asked.
                Err(Errno::EINTR | Errno::ENOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Answers a question. Whoever asked may be gone, which changes nothing.
    pub(super) fn answer(&self, asked: &Asked, answer: Answer) {
        let mut response = libc::seccomp_notif_resp {
            id: asked.id,
            val: 0,
            error: 0,
            flags: 0,
        };
        match answer {
            Answer::Returns(value) => response.val = i64::from(value),
            Answer::Fails(errno) => response.error = -(errno as i32),
            Answer::GoesOn => {
                response.flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or_default();
            }
        }
        let _ = self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut response);
    }

    /// Fails if whoever asked does not wait any more: the number of the process may be another one's by now.
    pub(super) fn still_waits(&self, asked: &Asked) -> Result<(), Errno> {
        let mut id = asked.id;
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw mut id).map(drop)
    }

    /// Gives a copy of a descriptor to the program that asked, with these flags. Returns its number there.
    pub(super) fn give(&self, asked: &Asked, given: &OwnedFd, flags: i32) -> Result<i32, Errno> {
        let mut given = libc::seccomp_notif_addfd {
            id: asked.id,
            flags: 0,
            srcfd: u32::try_from(given.as_raw_fd()).unwrap_or(u32::MAX),
            newfd: 0,
            newfd_flags: flags.cast_unsigned(),
        };
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut given)
    }

    fn ioctl<T>(&self, request: libc::Ioctl, argument: *mut T) -> Result<i32, Errno> {
        // SAFETY: the argument is the structure of the request, and lives during the call.
        #[expect(unsafe_code, reason = "ioctls have no safe form")]
        Errno::result(unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) })
    }
}

/// A program that asked.
pub(super) struct Program {
    pub(super) pid: u32,
    memory: fs_err::File,
}

impl Program {
    /// The one that asked, if it still waits.
    pub(super) fn that(listener: &Listener, asked: &Asked) -> Result<Self, Errno> {
        let memory = fs_err::OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{}/mem", asked.pid));
        let memory = memory.map_err(|_| Errno::EPERM)?;
        // From here on, the file is that program's memory, whatever becomes of the program.
        listener.still_waits(asked)?;
        Ok(Self { pid: asked.pid, memory })
    }

    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.memory.file().read_exact_at(into, at).map_err(|_| Errno::EFAULT)
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.memory.file().write_all_at(bytes, at).map_err(|_| Errno::EFAULT)
    }
}

/// A descriptor that the kernel has just made.
pub(super) fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: nothing else knows it.
    #[expect(unsafe_code, reason = "the descriptor is this process's own from here on")]
    unsafe {
        OwnedFd::from_raw_fd(fd)
    }
}
