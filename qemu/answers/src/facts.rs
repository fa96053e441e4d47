//! The facts that this process gets from Kiln: its own path, from `kiln-exec`, and the target's names, from a file.
//! Reads that file once.

use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicUsize, Ordering},
};

use rustix::{
    fs::{Mode, OFlags},
    io::{Errno, read},
};

use crate::{layout, text::LONGEST};

/// Bytes that are written once, before the program's own code runs, and only read afterwards.
pub struct Once<const SIZE: usize> {
    bytes: UnsafeCell<[u8; SIZE]>,
    /// Zero until the bytes are there.
    length: AtomicUsize,
}

// SAFETY: only the constructor writes the bytes, while the process has one thread; `length` publishes them.
unsafe impl<const SIZE: usize> Sync for Once<SIZE> {}

impl<const SIZE: usize> Once<SIZE> {
    const fn new() -> Self {
        Self {
            bytes: UnsafeCell::new([0; SIZE]),
            length: AtomicUsize::new(0),
        }
    }

    /// The bytes; empty before they are written.
    pub fn get(&self) -> &[u8] {
        let length = self.length.load(Ordering::Acquire);
        // SAFETY: nothing is written once the length is not zero.
        let bytes = unsafe { &*self.bytes.get() };
        bytes.get(..length).unwrap_or_default()
    }

    /// Lets `write` fill the bytes and return their number. For the constructor only; does nothing the second time.
    pub fn fill(&self, write: impl FnOnce(&mut [u8; SIZE]) -> usize) {
        if self.length.load(Ordering::Acquire) == 0 {
            // SAFETY: the length is zero, so there are no readers, and there is one thread, so there is no other
            // writer.
            let bytes = unsafe { &mut *self.bytes.get() };
            self.length.store(write(bytes).min(SIZE), Ordering::Release);
        }
    }
}

/// The path of the target's program, which this process stands for.
pub static EXE: Once<LONGEST> = Once::new();

/// The content of the file about the target.
static TARGET: Once<256> = Once::new();

/// Reads the file about the target.
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

/// The name of the target's machine, as `uname` returns it.
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
