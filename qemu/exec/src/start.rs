//! The entry point for the kernel, and the jump to the emulator's.
//!
//! Eight bytes after the entry point is a placeholder of eight bytes, which Kiln finds by its content and replaces by
//! the distance from this entry point to the emulator's.

use core::arch::global_asm;

use crate::{run, stack::Stack};

// The ABI gives a program only the stack pointer and, on x86_64, rdx = 0 (on aarch64 x0 = 0).
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.start, \"ax\", @progbits",
    ".balign 8",
    ".globl _start",
    ".type _start, @function",
    "_start:",
    "jmp 3f",
    ".balign 8",
    "2: .ascii \"KILNEXEC\"",
    "3:",
    "mov rbx, rsp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {enter}",
    "mov rsp, rbx",
    "xor ebx, ebx",
    "xor edx, edx",
    "lea rax, [rip + _start]",
    "add rax, [rip + 2b]",
    "jmp rax",
    ".popsection",
    enter = sym enter,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.start, \"ax\", @progbits",
    ".balign 8",
    ".globl _start",
    ".type _start, @function",
    "_start:",
    "b 3f",
    ".balign 8",
    "2: .ascii \"KILNEXEC\"",
    "3:",
    "mov x19, sp",
    "mov x0, sp",
    "bl {enter}",
    "mov sp, x19",
    "mov x19, #0",
    "mov x0, #0",
    "adr x16, _start",
    "ldr x17, 2b",
    "add x16, x16, x17",
    "br x16",
    ".popsection",
    enter = sym enter,
);

unsafe extern "C" fn enter(bottom: *const usize) {
    // SAFETY: the code above passes the stack pointer as the kernel set it.
    run(&unsafe { Stack::read(bottom) });
}
