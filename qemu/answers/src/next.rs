//! The C library's own functions, which this library's functions replace.

use core::{
    ffi::{CStr, c_char, c_int, c_ulong, c_void},
    mem::transmute_copy,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::layout;

/// The next library that defines a name, after the calling one.
const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;

pub const ENOENT: c_int = 2;
pub const ENOSYS: c_int = 38;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn __errno_location() -> *mut c_int;
    pub static mut environ: *mut *mut c_char;
    static stdin: *const Stream;
    pub fn abort() -> !;
    pub fn raise(signal: c_int) -> c_int;
}

/// `struct sigaction` of glibc on 64-bit machines.
#[repr(C)]
pub struct SigAction {
    /// The address of a function; 0 stands for the default, and 1 for nothing.
    pub handler: usize,
    pub mask: [c_ulong; 1024 / 8 / size_of::<c_ulong>()],
    pub flags: c_int,
    pub restorer: *mut c_void,
}

impl SigAction {
    pub const fn of(handler: usize, flags: c_int) -> Self {
        Self {
            handler,
            mask: [0; 1024 / 8 / size_of::<c_ulong>()],
            flags,
            restorer: null_mut(),
        }
    }
}

pub static SIGACTION: Next = Next::new(c"sigaction");

/// The C library's `sigaction`, which this library wraps.
///
/// # Safety
///
/// As for the C library's function.
pub unsafe fn sigaction(signal: c_int, new: *const SigAction, old: *mut SigAction) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *const SigAction, *mut SigAction) -> c_int;
    // SAFETY: the type is that of the C library's function of this name.
    let Some(next) = (unsafe { SIGACTION.function::<Function>() }) else {
        return -1;
    };
    // SAFETY: guaranteed by the caller.
    unsafe { next(signal, new, old) }
}

pub static EXECVE: Next = Next::new(c"execve");

/// The C library's `execve`, which this library wraps on some hosts.
///
/// # Safety
///
/// As for the C library's function.
pub unsafe fn execve(path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int {
    type Function = unsafe extern "C" fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int;
    // SAFETY: the type is that of the C library's function of this name.
    let Some(next) = (unsafe { EXECVE.function::<Function>() }) else {
        return -1;
    };
    // SAFETY: guaranteed by the caller.
    unsafe { next(path, arguments, variables) }
}

/// Ends the process by the signal that says that only the emulated program can go on.
pub fn give_up() -> ! {
    let action = SigAction::of(0, 0);
    // SAFETY: the structure is the C library's. A program that blocks the signal is aborted.
    unsafe {
        sigaction(layout::GIVEN_UP, &raw const action, null_mut());
        raise(layout::GIVEN_UP);
        abort()
    }
}

/// The beginning of glibc's `FILE`, which programs see in its headers.
#[repr(C)]
struct Stream {
    flags: c_int,
    read_next: *const c_char,
    read_end: *const c_char,
    read_begin: *const c_char,
}

/// The flags of a stream that has met the end of its file or an error.
const ENDED: c_int = 0x10 | 0x20;

/// Whether the C library's stream has read from standard input.
pub fn stdin_was_read() -> bool {
    // SAFETY: the variable points to the library's stream, unless the program has set it.
    // Python sets up an unbuffered stream before it reads anything, and such a stream has a buffer of its own.
    unsafe { stdin.as_ref() }.is_none_or(|stream| stream.read_end != stream.read_begin || stream.flags & ENDED != 0)
}

/// A function of the C library by name.
pub struct Next {
    name: &'static CStr,
    function: AtomicPtr<c_void>,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            function: AtomicPtr::new(null_mut()),
        }
    }

    /// As [`Self::new`], for a name that a macro puts together. It ends with its only zero byte, or nothing compiles.
    pub const fn called(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self::new(name),
            Err(_) => unreachable!(),
        }
    }

    /// Its address; null if the C library has no such function. The constructor looks up every function once: only
    /// constructors of libraries that run earlier can ask before it.
    pub fn address(&self) -> *mut c_void {
        let known = self.function.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { dlsym(RTLD_NEXT, self.name.as_ptr()) };
        self.function.store(found, Ordering::Relaxed);
        found
    }

    /// The function, to be called. If the C library has none, `errno` says so.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to that function.
    pub unsafe fn function<F: Copy>(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = self.address();
        if address.is_null() {
            set_errno(ENOSYS);
            return None;
        }
        // SAFETY: guaranteed by the caller.
        Some(unsafe { transmute_copy(&address) })
    }
}

pub fn errno() -> c_int {
    // SAFETY: every thread has the variable.
    unsafe { *__errno_location() }
}

pub fn set_errno(value: c_int) {
    // SAFETY: every thread has the variable.
    unsafe { *__errno_location() = value }
}
