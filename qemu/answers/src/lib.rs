//! `answers.so`: loaded into every native twin, so that the program hears of the target's machine, not of the host's.
//!
//! | Asked | Answered |
//! |---|---|
//! | `uname` | with the target's machine |
//! | opening `/proc/cpuinfo` | with what the emulator shows |
//! | `/proc/self/exe` | with the program's own path, not the loader's |
//! | `dlopen` of a module of the target | with its twin; without one, by starting the program over under the emulator, if it has written nothing yet |
//! | opening a path with the host's multiarch name, which is compiled into the twin | with the target's, if there is no such file |
//!
//! It is linked with nothing. What it calls of the C library is looked up when it is loaded, in whatever version is
//! there; after that it takes no locks and allocates nothing, so signal handlers and forked children may ask.

#![no_std]

mod facts;
#[path = "../../../src/emulation/twins/key.rs"]
mod key;
#[path = "../../../src/emulation/twins/layout.rs"]
#[allow(dead_code, reason = "shared with Kiln")]
mod layout;
mod modules;
mod next;
mod overrides;
mod paths;
mod restart;
mod start;
mod text;

/// Nothing here panics but checks that the optimiser cannot rule out.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it has no conditions.
    unsafe { next::abort() }
}
