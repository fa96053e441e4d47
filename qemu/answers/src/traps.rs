//! Ends what a native program must not do, since the CPUs' results differ: it starts over under the emulator, or is
//! aborted. Sets up the CPU's floating-point unit, and signal handlers.
//!
//! | Trap | Set |
//! |---|---|
//! | an instruction that computes with `long double` | in the twin's file, by `src/agent/twins/truth/traps.rs` |
//! | a result that no number stands for: 0/0, a number too large for the integer that it is converted to | here, in an x86_64 CPU |
//! | a division of integers by zero, which only x86_64 ends with a signal | by the CPU itself |
//! | a function of libm whose results were seen to differ, or that was not looked at | here, by its name |
//!
//! Programs that are examined call none of these functions. Those with an entry in `qemu/twins.toml` may, and mostly do
//! not, such as Python for `math.erf`.

use core::ffi::{c_int, c_void};

use crate::{
    restart,
    signals::{self, Info},
};

/// `FPE_INTDIV` and `FPE_FLTINV` of Linux.
const DIVISION_BY_ZERO: c_int = 1;
const INVALID: c_int = 7;

/// For the constructor.
pub fn set() {
    signals::look_up();
    signals::install(signals::ILLEGAL, illegal);
    signals::install(signals::ARITHMETIC, arithmetic);
    trap_invalid_operations();
}

/// Has the CPU raise a signal instead of a NaN, or of the integer that stands for a number that is too large. That NaN is
/// negative on x86_64 and on no other CPU, and the integer is the smallest one on x86_64 and the nearest one elsewhere.
/// Threads inherit the setting. Handlers of signals run without it, as the kernel decides.
#[cfg(target_arch = "x86_64")]
fn trap_invalid_operations() {
    /// The bit of MXCSR that has an invalid operation raise no signal (Intel SDM, volume 1, 10.2.3).
    const MASKED: u32 = 1 << 7;
    let mut control: u32 = 0;
    // SAFETY: every x86_64 has this register; the two instructions only store and load it.
    unsafe {
        core::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags));
        control &= !MASKED;
        core::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, preserves_flags));
    }
}

/// Other CPUs need not have such a signal, and mostly do not. There, what the CPU keeps of such operations is
/// [looked at](crate::kept).
#[cfg(not(target_arch = "x86_64"))]
fn trap_invalid_operations() {
    crate::kept::look_up();
}

extern "C" fn illegal(signal: c_int, info: *mut Info, context: *mut c_void) {
    if is_of_cpu(info).is_some() {
        restart::emulated(&[b"long double has another format"]);
    }
    signals::pass_on(signal, info, context);
}

extern "C" fn arithmetic(signal: c_int, info: *mut Info, context: *mut c_void) {
    match is_of_cpu(info) {
        Some(INVALID) => restart::emulated(&[b"0/0, and a number too large for its integer, have other results"]),
        // A program with a handler of its own expects the signal, and does the same without it.
        Some(DIVISION_BY_ZERO) if !signals::is_handled(signal) => {
            restart::emulated(&[b"an integer divided by zero has another result"]);
        }
        _ => signals::pass_on(signal, info, context),
    }
}

/// What the CPU has seen, if the signal is from it.
fn is_of_cpu(info: *mut Info) -> Option<c_int> {
    // SAFETY: the kernel passes the structure to handlers that ask for it.
    let info = unsafe { info.as_ref() }?;
    (info.code > 0).then_some(info.code)
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

// Those that change which operations raise a signal, or store the state of the floating-point unit, whose format differs.
never! {
    feholdexcept
    feupdateenv
    fegetenv
    fesetenv
    fegetmode
    fesetmode
    fegetexcept
    feenableexcept
    fedisableexcept
}

// Those that have a CPU forget that an operation was invalid, where it keeps no more than that.
#[cfg(not(target_arch = "x86_64"))]
never! {
    feclearexcept
    fesetexcept
    fesetexceptflag
    setcontext
    swapcontext
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
