//! What this process was told: its own path, by `kiln-exec`, and the target's names, by a file of Kiln's.

use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicUsize, Ordering},
};

use rustix::{
    fs::{Mode, OFlags},
    io::{Errno, read},
};

use crate::{layout, text::LONGEST};

/// Bytes that are written once, before the program's own code runs, and only read from then on.
pub struct Once<const SIZE: usize> {
    bytes: UnsafeCell<[u8; SIZE]>,
    /// Zero until the bytes are there.
    length: AtomicUsize,
}

// SAFETY: the bytes are written by the constructor only, while the process has one thread; `length` publishes them.
unsafe impl<const SIZE: usize> Sync for Once<SIZE> {}

impl<const SIZE: usize> Once<SIZE> {
    const fn new() -> Self {
        Self {
            bytes: UnsafeCell::new([0; SIZE]),
            length: AtomicUsize::new(0),
        }
    }

    /// What was written; empty before.
    pub fn get(&self) -> &[u8] {
        let length = self.length.load(Ordering::Acquire);
        // SAFETY: nothing is written once the length says that there is something.
        let bytes = unsafe { &*self.bytes.get() };
        bytes.get(..length).unwrap_or_default()
    }

    /// Lets `write` fill the bytes and say how many there are. For the constructor only; does nothing a second time.
    pub fn fill(&self, write: impl FnOnce(&mut [u8; SIZE]) -> usize) {
        if self.length.load(Ordering::Acquire) == 0 {
            // SAFETY: the length is zero, so nobody reads, and there is one thread, so nobody else writes.
            let bytes = unsafe { &mut *self.bytes.get() };
            self.length.store(write(bytes).min(SIZE), Ordering::Release);
        }
    }
}

/// The path of the target's program, for which this one runs.
pub static EXE: Once<LONGEST> = Once::new();

/// The content of the file that tells of the target.
static TARGET: Once<256> = Once::new();

/// Reads the file that tells of the target.
pub fn read_target() {
    TARGET.fill(|bytes| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(layout::TARGET, flags, Mode::empty()) else {
            return 0;
        };
        loop {
            match read(&file, &mut *bytes) {
                Err(Errno::INTR) => {}
                result => return result.unwrap_or(0),
            }
        }
    });
}

/// The name of the target's machine, as `uname` gives it.
pub fn machine() -> &'static [u8] {
    line(0)
}

/// The name of the host's multiarch directories.
pub fn host_directory() -> &'static [u8] {
    line(1)
}

/// The name of the target's multiarch directories.
pub fn target_directory() -> &'static [u8] {
    line(2)
}

fn line(number: usize) -> &'static [u8] {
    TARGET
        .get()
        .split(|byte| *byte == b'\n')
        .nth(number)
        .unwrap_or_default()
}
