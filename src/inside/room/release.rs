//! The release of Linux that programs of a sandbox are told: a file without a name, which only process 1 and the agent have open.
//! Reads and writes that file.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::fs::FileExt,
    },
};

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    libc,
};
use rustix::fs::{MemfdFlags, memfd_create};

/// The room for a release in the kernel's structure, with the zero at its end.
pub(super) const ROOM: usize = 65;

/// The release that programs are told; the kernel's own as long as there is none.
#[derive(Debug)]
pub struct Release(fs_err::File);

impl Release {
    /// Makes one. Programs that this process starts inherit it.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn new() -> io::Result<Self> {
        // Some systems have only files that cannot be run, and older kernels do not know the word for that.
        let made = memfd_create("kiln-release", MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| memfd_create("kiln-release", MemfdFlags::empty()))?;
        Ok(Self::of(made))
    }

    /// The one with this number, which this process has inherited. Programs that it starts do not.
    ///
    /// # Errors
    ///
    /// There is none with this number.
    pub fn inherited(number: RawFd) -> io::Result<Self> {
        // SAFETY: only what is open, and is such a file, is taken; nothing else here knows it.
        #[expect(unsafe_code, reason = "the descriptor is this process's own from here on")]
        let fd = unsafe {
            // Only files of memory have seals, even if none can be set.
            if libc::fcntl(number, libc::F_GET_SEALS) < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(number)
        };
        fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        Ok(Self::of(fd))
    }

    fn of(fd: OwnedFd) -> Self {
        Self(fs_err::File::from_parts(fd.into(), "release"))
    }

    /// The number by which a program that this process starts knows it.
    pub fn number(&self) -> RawFd {
        self.0.file().as_raw_fd()
    }

    /// Has programs told this release, or the kernel's own.
    ///
    /// # Errors
    ///
    /// It is too long, or memory is short.
    pub fn set(&self, release: Option<&str>) -> io::Result<()> {
        let text = release.unwrap_or_default().as_bytes();
        let mut padded = [0; ROOM];
        // The last one stays zero.
        let place = padded[..ROOM - 1]
            .get_mut(..text.len())
            .ok_or(io::ErrorKind::InvalidInput)?;
        place.copy_from_slice(text);
        self.0.file().write_all_at(&padded, 0)
    }

    /// The release, padded with zeroes, if there is one.
    pub(super) fn get(&self) -> Option<[u8; ROOM]> {
        let mut padded = [0; ROOM];
        self.0.file().read_exact_at(&mut padded, 0).ok()?;
        (padded[0] != 0).then_some(padded)
    }
}

impl AsFd for Release {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_read_until_it_is_taken_back() {
        let release = Release::new().unwrap();
        assert_eq!(release.get(), None);
        for text in ["6.1.0-40-amd64", "6.1.0"] {
            release.set(Some(text)).unwrap();
            let read = release.get().unwrap();
            assert_eq!(read.split(|byte| *byte == 0).next(), Some(text.as_bytes()));
            assert!(read[text.len()..].iter().all(|byte| *byte == 0));
        }
        assert!(release.set(Some(&"6".repeat(ROOM))).is_err());
        release.set(None).unwrap();
        assert_eq!(release.get(), None);
        assert!(Release::inherited(1_000_000).is_err());
    }
}
