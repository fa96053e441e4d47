//! Translates paths that mean something else to a twin than to the kernel. Touches no file.

use core::ffi::{CStr, c_char};

use rustix::fs::{Access, access};

use crate::{
    facts,
    text::{Text, find},
};

/// The bytes of a path given by a program. `None` for a null pointer, which is left to the C library.
///
/// # Safety
///
/// `path` is null or a text that ends with a zero byte, for as long as the result is used.
pub unsafe fn bytes_of<'a>(path: *const c_char) -> Option<&'a [u8]> {
    if path.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    Some(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// Whether `path` is the kernel's link to the program of this process.
pub fn is_own_program(path: &[u8]) -> bool {
    let Some(whose) = path.strip_prefix(b"/proc/").and_then(|rest| rest.strip_suffix(b"/exe")) else {
        return false;
    };
    whose == b"self" || whose == b"thread-self" || number(whose) == Some(rustix::process::getpid().as_raw_pid())
}

fn number(digits: &[u8]) -> Option<i32> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// The file to open instead of the one at `path`.
pub fn in_place_of(path: &[u8]) -> Option<Text> {
    if !is_own_program(path) {
        return None;
    }
    let mut text = Text::new();
    text.push(facts::EXE.get())?;
    access(text.as_c_str()?, Access::EXISTS).ok()?;
    Some(text)
}

/// `path` with the target's multiarch name in place of the host's. `None` if the host's is not in it.
pub fn of_target(path: &[u8]) -> Option<Text> {
    let (host, target) = (facts::host_directory(), facts::target_directory());
    let mut text = Text::new();
    let mut rest = path;
    while let Some(at) = find(rest, host) {
        text.push(rest.get(..at)?)?;
        text.push(target)?;
        rest = rest.get(at + host.len()..)?;
    }
    if text.bytes().is_empty() {
        return None;
    }
    text.push(rest)?;
    Some(text)
}
