//! The system calls that `rustix` has not: it keeps what only C libraries need to itself, and has names of processes as
//! allocated strings only.

use core::{arch::asm, ffi::CStr};

/// Longest name of a process, with the zero at its end (`TASK_COMM_LEN`).
pub const LONGEST_NAME: usize = 16;

#[cfg(target_arch = "x86_64")]
const NUMBERS: Numbers = Numbers {
    execve: 59,
    prctl: 157,
    exit_group: 231,
};
#[cfg(target_arch = "aarch64")]
const NUMBERS: Numbers = Numbers {
    execve: 221,
    prctl: 167,
    exit_group: 94,
};

/// The kernel's numbers of calls.
struct Numbers {
    execve: usize,
    prctl: usize,
    exit_group: usize,
}

const PR_GET_NAME: usize = 16;

/// A system call with three arguments.
///
/// # Safety
///
/// That of the call.
unsafe fn call(number: usize, one: usize, two: usize, three: usize) -> isize {
    let result;
    // SAFETY: the kernel's convention: all other registers stay as they are.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") one,
            in("rsi") two,
            in("rdx") three,
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
            options(nostack),
        );
    }
    result
}

/// Becomes another program. Returns only when that does not work.
///
/// # Safety
///
/// Both lists end with a null pointer; what they point to are strings that end with a zero.
pub unsafe fn execve(path: &CStr, arguments: *const *const u8, environment: *const *const u8) {
    // SAFETY: that of this function.
    let _error = unsafe {
        call(
            NUMBERS.execve,
            path.as_ptr().addr(),
            arguments.expose_provenance(),
            environment.expose_provenance(),
        )
    };
}

/// Puts this process's name, with a zero at its end, into `name`.
pub fn process_name(name: &mut [u8; LONGEST_NAME]) {
    // SAFETY: the kernel writes that many bytes. There is no error.
    unsafe { call(NUMBERS.prctl, PR_GET_NAME, name.as_mut_ptr().expose_provenance(), 0) };
}

/// Ends the process.
pub fn exit(code: u8) -> ! {
    loop {
        // SAFETY: it takes no pointers, and does not return.
        unsafe { call(NUMBERS.exit_group, usize::from(code), 0, 0) };
    }
}
