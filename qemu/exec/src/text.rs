//! The layout's paths in the kernel's form: with a zero at the end. Pure: no I/O.

use core::ffi::CStr;

/// `text` and a zero, when `N` is one more than its length.
pub const fn with_end<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < text.len() {
        bytes[at] = text.as_bytes()[at];
        at += 1;
    }
    bytes
}

/// The same as a string; for constants only, since other bytes do not compile.
pub const fn terminated(bytes: &[u8]) -> &CStr {
    match CStr::from_bytes_with_nul(bytes) {
        Ok(text) => text,
        Err(_) => panic!("a zero at the end and nowhere else"),
    }
}
