//! The C library's own functions, which this library's functions replace.

use core::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

/// The next library that defines a name, after the calling one.
const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;

pub const ENOENT: c_int = 2;
pub const ENOSYS: c_int = 38;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn __errno_location() -> *mut c_int;
    pub static mut environ: *mut *mut c_char;
    pub fn abort() -> !;
    pub fn execve(path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
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
}

pub fn errno() -> c_int {
    // SAFETY: every thread has the variable.
    unsafe { *__errno_location() }
}

pub fn set_errno(value: c_int) {
    // SAFETY: every thread has the variable.
    unsafe { *__errno_location() = value }
}
