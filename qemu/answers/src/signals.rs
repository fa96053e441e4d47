//! The signals that a trap raises. Their handler in the kernel is always this library's; what the program asks for is
//! stored here, and is done when the signal comes from elsewhere. Wraps functions of the C library.

use core::{
    ffi::{c_int, c_void},
    mem::transmute,
    ptr::null_mut,
    sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering},
};

use crate::next::{self, Next, SigAction};

pub const ILLEGAL: c_int = 4;
pub const ARITHMETIC: c_int = 8;

/// The handler gets a context, and does not keep the signal from the program that it may start.
const FLAGS: c_int = 0x4 | 0x4000_0000;
/// The flags that `signal` sets in glibc: calls that are interrupted go on.
const RESTARTED: c_int = 0x1000_0000;
/// The flags of the signals of System V: the handler works once, and may be interrupted by its own signal.
const ONCE: c_int = 0x8000_0000_u32.cast_signed() | 0x4000_0000;

const DEFAULT: usize = 0;
const IGNORED: usize = 1;

/// What the program asked for.
struct Wish {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

impl Wish {
    const fn new() -> Self {
        Self {
            handler: AtomicUsize::new(DEFAULT),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
        }
    }

    fn get(&self) -> SigAction {
        let mut action = SigAction::of(self.handler.load(Ordering::Relaxed), self.flags.load(Ordering::Relaxed));
        action.mask[0] = self.mask.load(Ordering::Relaxed);
        action
    }

    fn set(&self, action: &SigAction) {
        self.flags.store(action.flags, Ordering::Relaxed);
        self.mask.store(action.mask[0], Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Relaxed);
    }
}

static OF_ILLEGAL: Wish = Wish::new();
static OF_ARITHMETIC: Wish = Wish::new();

/// What the program asked for, if the signal is one of a trap.
fn wish(signal: c_int) -> Option<&'static Wish> {
    match signal {
        ILLEGAL => Some(&OF_ILLEGAL),
        ARITHMETIC => Some(&OF_ARITHMETIC),
        _ => None,
    }
}

/// Whether the program has a handler of its own for a signal of a trap.
pub fn is_handled(signal: c_int) -> bool {
    wish(signal).is_some_and(|wish| wish.handler.load(Ordering::Relaxed) > IGNORED)
}

/// Installs `handler` for a signal of a trap. For the constructor.
pub fn install(signal: c_int, handler: extern "C" fn(c_int, *mut Info, *mut c_void)) {
    let action = SigAction::of(handler as usize, FLAGS);
    let mut old = SigAction::of(DEFAULT, 0);
    // SAFETY: the structures are the C library's.
    if unsafe { next::sigaction(signal, &raw const action, &raw mut old) } == 0
        && let Some(wish) = wish(signal)
    {
        wish.set(&old);
    }
}

/// The beginning of `siginfo_t` of Linux.
#[repr(C)]
pub struct Info {
    signal: c_int,
    error: c_int,
    /// Positive if the CPU has raised the signal.
    pub code: c_int,
}

/// Does with a signal what the program asked for.
pub fn pass_on(signal: c_int, info: *mut Info, context: *mut c_void) {
    let Some(wish) = wish(signal) else { return };
    let wanted = wish.get();
    match wanted.handler {
        IGNORED => {}
        DEFAULT => {
            let action = SigAction::of(DEFAULT, 0);
            // SAFETY: the structure is the C library's. The signal ends the process.
            unsafe {
                next::sigaction(signal, &raw const action, null_mut());
                next::raise(signal);
            }
        }
        handler => {
            if wanted.flags & ONCE == ONCE {
                wish.set(&SigAction::of(DEFAULT, 0));
            }
            // SAFETY: the program said that this is a handler. One that expects fewer arguments ignores the others,
            // which are in registers.
            let handler = unsafe { transmute::<usize, extern "C" fn(c_int, *mut Info, *mut c_void)>(handler) };
            handler(signal, info, context);
        }
    }
}

/// Like the C library's function, except that the handlers of traps stay.
///
/// # Safety
///
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const SigAction, old: *mut SigAction) -> c_int {
    let Some(wish) = wish(signal) else {
        // SAFETY: guaranteed by the caller.
        return unsafe { next::sigaction(signal, new, old) };
    };
    let before = wish.get();
    // SAFETY: guaranteed by the caller.
    if let Some(new) = unsafe { new.as_ref() } {
        wish.set(new);
    }
    // SAFETY: guaranteed by the caller.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = before;
    }
    0
}

/// Defines functions that set a handler and return the one before.
macro_rules! setting {
    ($($static:ident = $name:ident, $flags:expr;)*) => {
        $(
            static $static: Next = Next::called(concat!(stringify!($name), "\0"));

            /// Like the C library's function, except that the handlers of traps stay.
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(signal: c_int, handler: usize) -> usize {
                type Function = unsafe extern "C" fn(c_int, usize) -> usize;
                if let Some(wish) = wish(signal) {
                    let before = wish.get().handler;
                    wish.set(&SigAction::of(handler, $flags));
                    return before;
                }
                // SAFETY: the type is that of the C library's function of this name.
                let Some(next) = (unsafe { $static.function::<Function>() }) else {
                    return usize::MAX;
                };
                // SAFETY: guaranteed by the caller.
                unsafe { next(signal, handler) }
            }
        )*

        /// Looks up every function that is called here. Later would be too late: the loader takes locks for it.
        pub fn look_up() {
            for next in [$(&$static,)* &next::SIGACTION, &next::EXECVE] {
                next.address();
            }
        }
    };
}

setting! {
    SIGNAL = signal, RESTARTED;
    BSD_SIGNAL = bsd_signal, RESTARTED;
    SSIGNAL = ssignal, RESTARTED;
    SYSV_SIGNAL = sysv_signal, ONCE;
    SYSV_SIGNAL_ = __sysv_signal, ONCE;
}
