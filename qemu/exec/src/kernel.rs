//! System calls that `rustix` does not offer: it does not export those that only C libraries need, returns process
//! names only as allocated strings, and would panic if the kernel returned an invalid value.

use core::{arch::asm, ffi::CStr, mem::MaybeUninit, slice};

use rustix::{
    fd::{AsRawFd, BorrowedFd},
    fs::{CWD, OFlags},
    io::close,
};

use crate::stack::Text;

/// Longest name of a process, with the zero at its end (`TASK_COMM_LEN`).
pub const LONGEST_NAME: usize = 16;

#[cfg(target_arch = "x86_64")]
const NUMBERS: Numbers = Numbers {
    execve: 59,
    prctl: 157,
    openat: 257,
    pread64: 17,
    nanosleep: 35,
    exit_group: 231,
};
#[cfg(target_arch = "aarch64")]
const NUMBERS: Numbers = Numbers {
    execve: 221,
    prctl: 167,
    openat: 56,
    pread64: 67,
    nanosleep: 101,
    exit_group: 94,
};

/// The kernel's system call numbers.
struct Numbers {
    execve: usize,
    prctl: usize,
    openat: usize,
    pread64: usize,
    nanosleep: usize,
    exit_group: usize,
}

const PR_GET_NAME: usize = 16;

/// A system call with up to four arguments.
///
/// # Safety
///
/// As for the call itself.
unsafe fn call(number: usize, [one, two, three, four]: [usize; 4]) -> isize {
    let result;
    // SAFETY: the kernel's convention: all other registers are preserved.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") one,
            in("rsi") two,
            in("rdx") three,
            in("r10") four,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") one => result,
            in("x1") two,
            in("x2") three,
            in("x3") four,
            options(nostack),
        );
    }
    result
}

/// Replaces the program of this process. Returns only on failure.
///
/// # Safety
///
/// Both lists end with a null pointer, and their strings end with a zero.
pub unsafe fn execve(path: &CStr, arguments: *const *const u8, environment: *const *const u8) {
    // SAFETY: as for this function.
    let _error = unsafe {
        call(
            NUMBERS.execve,
            [
                path.as_ptr().expose_provenance(),
                arguments.expose_provenance(),
                environment.expose_provenance(),
                0,
            ],
        )
    };
}

/// Puts this process's name, with a zero at its end, into `name`.
pub fn process_name(name: &mut [u8; LONGEST_NAME]) {
    // SAFETY: the kernel writes that many bytes. There is no error.
    unsafe {
        call(
            NUMBERS.prctl,
            [PR_GET_NAME, name.as_mut_ptr().expose_provenance(), 0, 0],
        )
    };
}

/// Ends this process with a status from 0 to 255.
pub fn exit(status: u8) {
    // SAFETY: nothing of this process is needed any more.
    unsafe { call(NUMBERS.exit_group, [usize::from(status), 0, 0, 0]) };
}

/// Sleeps for less than a second. A signal may end the sleep early.
pub fn sleep(nanoseconds: u32) {
    // Seconds and nanoseconds, as the kernel reads them on 64-bit machines.
    let time = [0, i64::from(nanoseconds)];
    // SAFETY: the kernel reads both numbers during the call, and writes nothing.
    unsafe { call(NUMBERS.nanosleep, [time.as_ptr().expose_provenance(), 0, 0, 0]) };
}

/// The bytes of a file from `offset`: as many as there is space for, or as the file has.
pub fn read_at<'a>(file: BorrowedFd<'_>, offset: u64, room: &'a mut [MaybeUninit<u8>]) -> Option<&'a [u8]> {
    let (number, begin) = (file.as_raw_fd().cast_unsigned() as usize, room.as_mut_ptr());
    let offset = usize::try_from(offset).ok()?;
    // SAFETY: the kernel writes no more than there is space for.
    let result = unsafe { call(NUMBERS.pread64, [number, begin.expose_provenance(), room.len(), offset]) };
    let length = usize::try_from(result).ok()?;
    // SAFETY: that many bytes were written.
    Some(unsafe { slice::from_raw_parts(begin.cast(), length) })
}

/// An open file.
pub struct File(i32);

impl File {
    /// Opens a file that exists.
    pub fn open(path: &CStr, flags: OFlags) -> Option<Self> {
        // SAFETY: the path ends with a zero and lives during the call.
        unsafe { Self::open_at(path.as_ptr().cast(), flags) }
    }

    /// Opens a file that exists, at a path that the process was started with.
    pub fn open_text(path: Text, flags: OFlags) -> Option<Self> {
        // SAFETY: such a text ends with a zero and lives as long as the process.
        unsafe { Self::open_at(path.as_ptr(), flags) }
    }

    /// # Safety
    ///
    /// The path ends with a zero and lives during the call.
    unsafe fn open_at(path: *const u8, flags: OFlags) -> Option<Self> {
        let (directory, flags) = (CWD.as_raw_fd().cast_unsigned() as usize, flags.bits() as usize);
        // SAFETY: as for this function.
        let result = unsafe { call(NUMBERS.openat, [directory, path.expose_provenance(), flags, 0]) };
        let number = u32::try_from(result).ok()?;
        i32::try_from(number).ok().map(Self)
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open as long as `self` lives.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: nothing else closes it.
        unsafe { close(self.0) };
    }
}
