//! Recognises the files of `/proc` that tell a twin from its original, once a program has opened them, by whatever path,
//! and puts what the emulator shows in their place.

use core::{
    ffi::{c_int, c_void},
    mem::ManuallyDrop,
};

use rustix::{
    fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
    fs::{FileType, MemfdFlags, Mode, OFlags, SeekFrom, Stat, fstat, memfd_create, open, seek, stat},
    io::{DupFlags, FdFlags, dup3, fcntl_getfd, pread, write},
};

use crate::{call, changes, layout};

unsafe extern "C" {
    fn fileno(stream: *mut c_void) -> c_int;
}

/// What a function that opens a file returns.
pub trait Opened: Copy {
    /// The descriptor of the file. Negative if there is none.
    ///
    /// # Safety
    ///
    /// The value is of a call that succeeded, and nothing has closed it.
    unsafe fn descriptor(self) -> c_int;
}

impl Opened for c_int {
    unsafe fn descriptor(self) -> c_int {
        self
    }
}

/// A stream of the C library.
impl Opened for *mut c_void {
    unsafe fn descriptor(self) -> c_int {
        // SAFETY: guaranteed by the caller.
        unsafe { fileno(self) }
    }
}

/// Makes the descriptor one of the emulator's file, if it is one of the kernel's. Nothing has been read from it yet.
///
/// # Safety
///
/// As for [`Opened::descriptor`].
pub unsafe fn put_into(file: impl Opened) {
    // SAFETY: guaranteed by the caller.
    let number = unsafe { file.descriptor() };
    if number < 0 {
        return;
    }
    // SAFETY: the descriptor is open.
    let opened = unsafe { BorrowedFd::borrow_raw(number) };
    if let Ok(status) = fstat(opened)
        && may_be_of_proc(&status)
        && let Some(other) = instead_of(opened, &status)
    {
        replace(opened, number, &other);
    }
}

/// Whether a file can be one of these. Nearly all files that programs open cannot.
fn may_be_of_proc(status: &Stat) -> bool {
    let permissions = status.st_mode & 0o7777;
    status.st_size == 0
        && [0o444, 0o400].contains(&permissions)
        && FileType::from_raw_mode(status.st_mode) == FileType::RegularFile
}

/// The file that the emulator shows in place of this one. `None` too if it cannot be made: the kernel's stays then, as
/// its cpuinfo does while the root has no program to read the emulator's.
#[cold]
#[inline(never)]
fn instead_of(opened: BorrowedFd<'_>, status: &Stat) -> Option<OwnedFd> {
    let is = |path| stat(path).is_ok_and(|known| (known.st_dev, known.st_ino) == (status.st_dev, status.st_ino));
    if is("/proc/cpuinfo") {
        open(layout::CPUINFO, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    } else if is("/proc/self/cmdline") {
        copy(opened, call::of_program)
    } else if is("/proc/self/environ") {
        copy(opened, |list| Some((&[], call::variables_of_program(list).1)))
    } else {
        None
    }
}

/// A list of words, of whose beginning only the parts are kept that a function returns.
fn copy(kernels: BorrowedFd<'_>, kept: fn(&[u8]) -> Option<call::Parts<'_>>) -> Option<OwnedFd> {
    let mut bytes = [0; 4096];
    let mut at = 0;
    let mut read = |bytes: &mut [u8; 4096]| {
        let length = pread(kernels, &mut *bytes, at).ok()?;
        at += length as u64;
        Some(length)
    };
    let length = read(&mut bytes)?;
    let (first, rest) = kept(bytes.get(..length)?)?;
    let made = memfd_create("proc", MemfdFlags::CLOEXEC).ok()?;
    put(&made, first)?;
    put(&made, rest)?;
    loop {
        match read(&mut bytes)? {
            0 => break,
            length => put(&made, bytes.get(..length)?)?,
        }
    }
    seek(&made, SeekFrom::Start(0)).ok()?;
    Some(made)
}

/// Writes all bytes to a file of this library's own, which is no change that the program has made.
fn put(file: &OwnedFd, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        let written = write(file, bytes).ok()?;
        changes::forgive_write();
        bytes = bytes.get(written..)?;
    }
    Some(())
}

/// Makes the descriptor one of the `other` file. Without success it is the kernel's file, as it was.
fn replace(opened: BorrowedFd<'_>, number: c_int, other: &OwnedFd) {
    let closes = fcntl_getfd(opened).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC));
    let flags = if closes { DupFlags::CLOEXEC } else { DupFlags::empty() };
    // SAFETY: the descriptor is open, and stays the program's.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    let _ = dup3(other.as_fd(), &mut place, flags);
}
