//! Restarts a program under the emulator. Reads the process's I/O counters, and replaces the program by `execve`.
//!
//! A module without a twin, such as one that the recipe itself compiles or gets from outside its packages, can only be
//! loaded by the emulated program. Programs usually load modules before they do anything else; as long as this one has
//! written nothing, its restart cannot be noticed.

use core::{
    ffi::c_char,
    ptr::null_mut,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::read,
};

use crate::{facts, layout, next, paths::bytes_of, text::Text};

type List = *mut *mut c_char;

/// The process's arguments and variables where the kernel put them. Libraries may shorten the list of variables in
/// place; to extend it they copy it.
static ARGUMENTS: AtomicPtr<*mut c_char> = AtomicPtr::new(null_mut());
static VARIABLES: AtomicPtr<*mut c_char> = AtomicPtr::new(null_mut());

/// How often the process had written when the program began. It may have run another program before.
static WRITTEN: AtomicU64 = AtomicU64::new(UNKNOWN);

/// The kernel does not report it.
const UNKNOWN: u64 = u64::MAX;

/// Stores the lists. For the constructor, which knows that the list has space for one more variable.
pub fn remember(arguments: List, variables: List) {
    ARGUMENTS.store(arguments, Ordering::Relaxed);
    VARIABLES.store(variables, Ordering::Relaxed);
    WRITTEN.store(written(), Ordering::Relaxed);
}

/// Restarts the program. Returns when that is impossible, because it would do something twice, or would not find its
/// standard input again.
pub fn emulated() {
    let (arguments, variables) = (ARGUMENTS.load(Ordering::Relaxed), VARIABLES.load(Ordering::Relaxed));
    let mut program = Text::new();
    if arguments.is_null() || variables.is_null() || program.push(facts::EXE.get()).is_none() {
        return;
    }
    let before = WRITTEN.load(Ordering::Relaxed);
    // SAFETY: the list of the process's arguments.
    if before == UNKNOWN || written() != before || !unsafe { has_its_script(arguments) } {
        return;
    }
    let mut switch = Text::new();
    let parts = [layout::SWITCH.as_bytes(), b"=off"];
    if parts.into_iter().any(|part| switch.push(part).is_none()) {
        return;
    }
    // SAFETY: the list ends with a null pointer, after which there is space for another one, as the constructor
    // checked.
    unsafe {
        let mut end = variables;
        while !(*end).is_null() {
            end = end.add(1);
        }
        end.write(switch.as_ptr().cast_mut());
        end.add(1).write(null_mut());
        next::execve(program.as_ptr(), arguments.cast(), variables.cast());
        end.write(null_mut());
    }
}

/// How often this process, and the children that it waited for, have written.
fn written() -> u64 {
    let mut bytes = [0; 512];
    let Ok(file) = open("/proc/self/io", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return UNKNOWN;
    };
    let length = read(&file, &mut bytes).unwrap_or(0);
    let text = bytes.get(..length).unwrap_or_default();
    let mut lines = text.split(|byte| *byte == b'\n');
    let number = lines.find_map(|line| core::str::from_utf8(line.strip_prefix(b"syscw: ")?).ok()?.parse().ok());
    number.unwrap_or(UNKNOWN)
}

/// Whether an argument may be a script or its text. An interpreter without one reads its script from standard input,
/// and has already read it.
///
/// # Safety
///
/// `arguments` is a list of texts that ends with a null pointer.
unsafe fn has_its_script(arguments: List) -> bool {
    for at in 1.. {
        // SAFETY: guaranteed by the caller; the loop ends at the list's end.
        let argument = unsafe { bytes_of(*arguments.add(at)) };
        match argument {
            None => return false,
            Some(text) if !text.starts_with(b"-") => return true,
            Some(_) => {}
        }
    }
    false
}
