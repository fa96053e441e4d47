//! Looks at what the CPU keeps of results that differ, before it is lost. For hosts whose CPU raises no signal for them.
//!
//! An aarch64 CPU keeps in FPSR that an operation was invalid: 0/0, or a number too large for its integer. Kiln's tracer
//! looks at the register when a thread ends. A program that becomes another one begins anew with an empty register, so it
//! is looked at here before; and a program that empties the register itself is not a twin.

use core::{
    arch::{asm, naked_asm},
    ffi::c_int,
};

use crate::{
    next::{ENOSYS, Next, set_errno},
    restart,
};

/// The bit of FPSR for an invalid operation (Arm ARM, C5.2.9).
const INVALID: u64 = 1;

/// The address of the C library's function `next`, by which the program becomes another one. Does not return if it had
/// a result that differs: children of a program come here, too, so it cannot start over.
extern "C" fn before_exec(next: &'static Next) -> usize {
    let status: u64;
    // SAFETY: every aarch64 has this register, and it is only read.
    unsafe { asm!("mrs {}, fpsr", out(reg) status, options(nomem, nostack, preserves_flags)) };
    if status & INVALID != 0 {
        restart::give_up(&[b"it had 0/0, or a number too large for its integer, which have other results"]);
    }
    let address = next.address();
    if address.is_null() {
        missing as *const () as usize
    } else {
        address as usize
    }
}

/// In place of a function that the C library does not have.
extern "C" fn missing() -> c_int {
    set_errno(ENOSYS);
    -1
}

/// Defines functions that look at the register and go on as the C library's. Some take any number of arguments, so all
/// registers that may have arguments are kept, and the stack is left as it is.
macro_rules! looking_before {
    ($($static:ident = $name:ident;)*) => {
        $(
            static $static: Next = Next::called(concat!(stringify!($name), "\0"));

            /// Like the C library's function.
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    "hint #34", // BTI C
                    "stp x29, x30, [sp, #-80]!",
                    "mov x29, sp",
                    "stp x0, x1, [sp, #16]",
                    "stp x2, x3, [sp, #32]",
                    "stp x4, x5, [sp, #48]",
                    "stp x6, x7, [sp, #64]",
                    "adrp x0, {next}",
                    "add x0, x0, :lo12:{next}",
                    "bl {before_exec}",
                    "mov x16, x0",
                    "ldp x0, x1, [sp, #16]",
                    "ldp x2, x3, [sp, #32]",
                    "ldp x4, x5, [sp, #48]",
                    "ldp x6, x7, [sp, #64]",
                    "ldp x29, x30, [sp], #80",
                    "br x16",
                    next = sym $static,
                    before_exec = sym before_exec,
                )
            }
        )*

        /// Looks up every function that is called here. Later would be too late: the loader takes locks for it.
        pub fn look_up() {
            for next in [$(&$static),*] {
                next.address();
            }
        }
    };
}

looking_before! {
    EXECVE = execve;
    EXECV = execv;
    EXECVP = execvp;
    EXECVPE = execvpe;
    EXECL = execl;
    EXECLP = execlp;
    EXECLE = execle;
    FEXECVE = fexecve;
    EXECVEAT = execveat;
}
