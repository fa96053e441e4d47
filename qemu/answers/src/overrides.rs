//! The functions that programs call instead of the C library's. They pass calls on to it, with other paths where
//! necessary.
//!
//! `open` and similar functions take a mode only when they create a file. Here it is always passed on: if there is
//! none, the value is an arbitrary register that is never read.

use core::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr::null_mut,
};

use crate::{
    changes, facts,
    modules::{self, Module},
    next::{ENOENT, Next, errno},
    paths, proc, restart,
    text::Text,
    writers,
};

/// `struct utsname` of Linux: six names of this size.
const NAME: usize = 65;
const MACHINE: usize = 4 * NAME;

/// Calls `call` with `path`, or with the path that stands for it.
///
/// # Safety
///
/// `path` is null or a text that ends with a zero byte.
unsafe fn with_path<T>(path: *const c_char, call: impl Fn(*const c_char) -> T, has_failed: impl Fn(&T) -> bool) -> T {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { paths::bytes_of(path) }.unwrap_or_default();
    if bytes.starts_with(b"/proc/")
        && let Some(result) = with_other(bytes, paths::in_place_of, &call)
    {
        return result;
    }
    let result = call(path);
    if has_failed(&result)
        && errno() == ENOENT
        && let Some(result) = with_other(bytes, paths::of_target, &call)
    {
        return result;
    }
    result
}

/// Calls `call` with the other path of `path`, if it has one. A separate function, because it takes the space of a
/// path on the stack, which is small in some signal handlers.
#[cold]
#[inline(never)]
fn with_other<T>(path: &[u8], other: fn(&[u8]) -> Option<Text>, call: impl Fn(*const c_char) -> T) -> Option<T> {
    other(path).map(|other| call(other.as_ptr()))
}

/// Defines functions that open the file at a path.
macro_rules! opening {
    (@first $first:ident $($more:ident)*) => { $first };
    (@directory) => { writers::CURRENT };
    (@directory $directory:ident) => { $directory };
    ($($static:ident = fn $name:ident [$($before:ident: $before_type:ty)?] path [$($after:ident: $after_type:ty),*] -> $result:ty, $failure:expr;)*) => {
        $(
            static $static: Next = Next::called(concat!(stringify!($name), "\0"));

            /// Like the C library's function, for the path that stands for the given one.
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($before: $before_type,)? path: *const c_char $(, $after: $after_type)*) -> $result {
                type Function = unsafe extern "C" fn($($before_type,)? *const c_char $(, $after_type)*) -> $result;
                // SAFETY: the type is that of the C library's function of this name.
                let Some(next) = (unsafe { $static.function::<Function>() }) else {
                    return $failure;
                };
                let failure: $result = $failure;
                let changes = changes::Opens::note(opening!(@first $($after)*));
                let has_failed = |result: &$result| *result == failure;
                // SAFETY: guaranteed by the caller.
                let result = unsafe { with_path(path, |path| next($($before,)? path $(, $after)*), has_failed) };
                if result != failure {
                    // SAFETY: the file was opened a moment ago.
                    unsafe { proc::put_into(result) };
                }
                if changes && result != failure {
                    let directory = opening!(@directory $($before)?);
                    // SAFETY: guaranteed by the caller.
                    writers::changed(directory, unsafe { paths::bytes_of(path) });
                }
                result
            }
        )*

        /// Looks up every function that is called here. Later would be too late: the loader takes locks for it.
        pub fn look_up() {
            for next in [$(&$static,)* &UNAME, &READLINK, &READLINKAT, &READLINK_CHK, &READLINKAT_CHK, &DLOPEN] {
                next.address();
            }
        }
    };
}

opening! {
    OPEN = fn open [] path [flags: c_int, mode: c_uint] -> c_int, -1;
    OPEN64 = fn open64 [] path [flags: c_int, mode: c_uint] -> c_int, -1;
    OPEN_2 = fn __open_2 [] path [flags: c_int] -> c_int, -1;
    OPEN64_2 = fn __open64_2 [] path [flags: c_int] -> c_int, -1;
    OPENAT = fn openat [dir: c_int] path [flags: c_int, mode: c_uint] -> c_int, -1;
    OPENAT64 = fn openat64 [dir: c_int] path [flags: c_int, mode: c_uint] -> c_int, -1;
    OPENAT_2 = fn __openat_2 [dir: c_int] path [flags: c_int] -> c_int, -1;
    OPENAT64_2 = fn __openat64_2 [dir: c_int] path [flags: c_int] -> c_int, -1;
    FOPEN = fn fopen [] path [mode: *const c_char] -> *mut c_void, null_mut();
    FOPEN64 = fn fopen64 [] path [mode: *const c_char] -> *mut c_void, null_mut();
}

static UNAME: Next = Next::new(c"uname");
static READLINK: Next = Next::new(c"readlink");
static READLINKAT: Next = Next::new(c"readlinkat");
static READLINK_CHK: Next = Next::new(c"__readlink_chk");
static READLINKAT_CHK: Next = Next::new(c"__readlinkat_chk");
static DLOPEN: Next = Next::new(c"dlopen");

/// Puts the path of the program into `buffer`, like `readlink`. `None` when the path is not this program's link.
///
/// # Safety
///
/// `path` is null or a text that ends with a zero byte; `buffer` has space for `size` bytes.
unsafe fn own_link(path: *const c_char, buffer: *mut c_char, size: usize) -> Option<isize> {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { paths::bytes_of(path) }?;
    let own = facts::EXE.get();
    if own.is_empty() || !paths::is_own_program(bytes) {
        return None;
    }
    let length = own.len().min(size);
    // SAFETY: the buffer has the space, and the program's path is in memory of this library.
    unsafe { buffer.copy_from_nonoverlapping(own.as_ptr().cast(), length) };
    isize::try_from(length).ok()
}

/// Defines functions that read a link.
macro_rules! reading_links {
    ($($static:ident = fn $name:ident [$($before:ident: $before_type:ty)?] link [$($after:ident: $after_type:ty)?];)*) => {
        $(
            /// Like the C library's function, except for the link to the program itself.
            ///
            /// # Safety
            ///
            /// As for the C library's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                $($before: $before_type,)? path: *const c_char, buffer: *mut c_char, size: usize $(, $after: $after_type)?
            ) -> isize {
                type Function =
                    unsafe extern "C" fn($($before_type,)? *const c_char, *mut c_char, usize $(, $after_type)?) -> isize;
                // SAFETY: guaranteed by the caller.
                if let Some(length) = unsafe { own_link(path, buffer, size) } {
                    return length;
                }
                // SAFETY: the type is that of the C library's function of this name.
                let Some(next) = (unsafe { $static.function::<Function>() }) else {
                    return -1;
                };
                // SAFETY: guaranteed by the caller.
                unsafe { next($($before,)? path, buffer, size $(, $after)?) }
            }
        )*
    };
}

reading_links! {
    READLINK = fn readlink [] link [];
    READLINKAT = fn readlinkat [dir: c_int] link [];
    READLINK_CHK = fn __readlink_chk [] link [room: usize];
    READLINKAT_CHK = fn __readlinkat_chk [dir: c_int] link [room: usize];
}

/// Like the C library's function, except for the machine's name, which is the target's.
///
/// # Safety
///
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uname(names: *mut c_char) -> c_int {
    type Function = unsafe extern "C" fn(*mut c_char) -> c_int;
    // SAFETY: the type is that of the C library's function of this name.
    let Some(next) = (unsafe { UNAME.function::<Function>() }) else {
        return -1;
    };
    // SAFETY: guaranteed by the caller.
    let result = unsafe { next(names) };
    let machine = facts::machine();
    if result == 0 && !machine.is_empty() && machine.len() < NAME {
        // SAFETY: the kernel has written all six names, so there is space for them.
        unsafe {
            let place = names.add(MACHINE);
            place.write_bytes(0, NAME);
            place.copy_from_nonoverlapping(machine.as_ptr().cast(), machine.len());
        }
    }
    result
}

/// Like the C library's function, except that a module of the target is replaced by its twin.
///
/// # Safety
///
/// As for the C library's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    type Function = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: the type is that of the C library's function of this name.
    let Some(next) = (unsafe { DLOPEN.function::<Function>() }) else {
        return null_mut();
    };
    // SAFETY: guaranteed by the caller.
    let module = unsafe { paths::bytes_of(path) }.map(modules::awaited);
    let path = match &module {
        Some(Module::Other(file)) => file.as_ptr(),
        Some(Module::Foreign) => {
            // SAFETY: guaranteed by the caller.
            let path = unsafe { paths::bytes_of(path) }.unwrap_or_default();
            restart::emulated(&[path, b" has no native twin"])
        }
        Some(Module::Itself) | None => path,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { next(path, flags) }
}
