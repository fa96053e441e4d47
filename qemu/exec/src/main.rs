//! `kiln-exec`: decides for each start of a program of the image whether it runs as its native twin or under the
//! emulator.
//!
//! It is not a separate program. Kiln puts it in front of the emulator's entry point, and the sandbox's `binfmt_misc`
//! starts the joined file. Without a twin it jumps to the emulator's own entry point with everything as the kernel
//! left it, so programs run here exactly as under the plain emulator: in nested roots, with other credentials, from
//! files that are deleted or unreadable. If there is a twin, a second `execve` starts it.
//!
//! Since it is loaded as a part of another program, it has neither writable data nor relocations. It allocates nothing
//! on the way to the emulator, and cannot panic.

#![no_std]
#![no_main]

#[path = "../../../src/agent/twins/call.rs"]
#[allow(dead_code, reason = "shared with Kiln")]
mod call;
mod counts;
mod decide;
mod kernel;
#[path = "../../../src/agent/twins/key.rs"]
#[allow(dead_code, reason = "shared with Kiln")]
mod key;
#[path = "../../../src/agent/twins/layout.rs"]
#[allow(dead_code, reason = "shared with Kiln")]
mod layout;
mod loadable;
mod loader;
mod stack;
mod start;
mod text;
mod twin;

/// Becomes the twin, if there is one, or ends with the loader's answer, if it is known; otherwise returns.
fn run(stack: &stack::Stack) {
    let mut path = [0; decide::LONGEST_PATH];
    let native = decide::native(stack, &mut path);
    let counts = counts::Counts::open();
    match native {
        Some(decide::Native::Twin(twin)) => {
            counts.twin();
            twin::become_it(stack, &twin);
            counts.no_twin();
        }
        Some(decide::Native::Answered(status)) => {
            counts.twin();
            kernel::exit(status);
        }
        None => {}
    }
    counts.emulated();
}

unsafe extern "C" {
    /// Not defined anywhere: the program links only if the compiler proves that nothing panics.
    safe fn kiln_exec_must_not_panic() -> !;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    kiln_exec_must_not_panic()
}
