//! `answers.so`: loaded into every native twin, so that the program sees the target's machine, not the host's. Wraps
//! functions of the C library, and opens files in their place.
//!
//! | Question | Answer |
//! |---|---|
//! | `uname` | the target's machine |
//! | opening `/proc/cpuinfo`, by whatever path | the file that the emulator shows |
//! | opening `/proc/self/cmdline` or `environ`, by whatever path | the same without what starts a twin |
//! | `/proc/self/exe` | the program's own path, not the loader's |
//! | `dlopen` of a module of the target | its twin; without one, the program is restarted under the emulator if it has changed and consumed nothing yet, else aborted |
//! | computing with `long double`, results that are no numbers, and functions of libm with other results | restarted or aborted, as above |
//! | opening a path with the host's multiarch name, which is compiled into the twin | the same path with the target's, if there is no such file |
//!
//! It is linked with nothing. The functions of the C library that it calls are looked up at load time, in whatever
//! version is there; after that it takes no locks and allocates nothing, so it works in signal handlers and forked
//! children.

#![no_std]

#[path = "../../../src/agent/twins/call.rs"]
#[allow(dead_code, reason = "shared with Kiln")]
mod call;
mod changes;
mod facts;
#[cfg(not(target_arch = "x86_64"))]
mod kept;
#[path = "../../../src/agent/twins/key.rs"]
mod key;
#[path = "../../../src/agent/twins/layout.rs"]
#[allow(dead_code, reason = "shared with Kiln")]
mod layout;
mod modules;
mod next;
mod overrides;
mod paths;
mod proc;
mod restart;
mod signals;
mod start;
mod text;
mod traps;
mod writers;

/// Nothing here panics, except for checks that the optimiser cannot rule out.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: the function has no conditions.
    unsafe { next::abort() }
}
