//! Ends what a native program must not do, since the CPUs' results differ: it starts over under the emulator, or is
//! aborted. Installs a signal handler.
//!
//! | Trap | Set |
//! |---|---|
//! | an instruction that computes with `long double` | in the twin's file, by `src/agent/twins/truth/traps.rs` |
//! | a function of libm whose results were seen to differ, or that was not looked at | here, by its name |
//!
//! Programs that are examined call none of these functions. Those with an entry in `qemu/twins.toml` may, and mostly do
//! not, such as Python for `math.erf`.

use core::{
    ffi::{c_int, c_ulong, c_void},
    ptr::null_mut,
};

use crate::{
    next::{self, SigAction},
    restart,
};

const SIGILL: c_int = 4;
/// The handler gets a context, and does not keep the signal from the program that it may start.
const FLAGS: c_int = 0x4 | 0x4000_0000;

/// For the constructor.
pub fn set() {
    let action = SigAction {
        handler: Some(trapped),
        mask: [0; 1024 / 8 / size_of::<c_ulong>()],
        flags: FLAGS,
        restorer: null_mut(),
    };
    // SAFETY: the structure is the C library's; a handler may be called at any time.
    unsafe { next::sigaction(SIGILL, &raw const action, null_mut()) };
}

extern "C" fn trapped(_: c_int, _: *mut c_void, _: *mut c_void) {
    restart::emulated(&[b"long double has another format"]);
}

/// Defines functions that are never carried out. What their callers pass and expect does not matter.
macro_rules! never {
    ($($name:ident)*) => {
        $(
            /// Never returns.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() {
                restart::emulated(&[stringify!($name).as_bytes(), b" has other results"]);
            }
        )*
    };
}

// Those for `double` that are not here gave the same bits on an x86_64 with fused multiplications and under the emulator,
// for 90 000 arguments of all sizes each: aarch64 with glibc 2.36; aarch64, riscv64 and ppc64le with glibc 2.41. These
// differed, on all of them.
never! {
    cbrt
    erf
    erfc
    exp2
    hypot
}

// Those that were not looked at.
never! {
    exp10
    pow10
    drem
    gamma
    j0
    j1
    jn
    y0
    y1
    yn
    lgamma_r
    gamma_r
    acosf
    acoshf
    asinf
    asinhf
    atanf
    atan2f
    atanhf
    cbrtf
    cosf
    coshf
    erff
    erfcf
    expf
    exp2f
    exp10f
    expm1f
    hypotf
    j0f
    j1f
    jnf
    y0f
    y1f
    ynf
    lgammaf
    lgammaf_r
    logf
    log10f
    log1pf
    log2f
    powf
    sinf
    sincosf
    sinhf
    tanf
    tanhf
    tgammaf
    cabs
    carg
    cacos
    cacosh
    casin
    casinh
    catan
    catanh
    ccos
    ccosh
    cexp
    clog
    clog10
    cpow
    csin
    csinh
    csqrt
    ctan
    ctanh
}
