//! Text of limited length that ends with a zero byte, as the C library needs it. Pure: no I/O.

use core::ffi::{CStr, c_char};

/// The kernel's limit for paths, including the zero byte.
pub const LONGEST: usize = 4096;

/// A path under construction.
pub struct Text {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Text {
    pub const fn new() -> Self {
        Self {
            bytes: [0; LONGEST],
            length: 0,
        }
    }

    /// Appends `part`. `None` when there is no space for it and the zero byte.
    pub fn push(&mut self, part: &[u8]) -> Option<()> {
        let end = self.length.checked_add(part.len())?;
        if end >= LONGEST {
            return None;
        }
        self.bytes.get_mut(self.length..end)?.copy_from_slice(part);
        *self.bytes.get_mut(end)? = 0;
        self.length = end;
        Some(())
    }

    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// The text for the C library, valid as long as `self`.
    pub fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    pub fn as_c_str(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.bytes).ok()
    }
}

/// The first place of `part` in `whole`.
pub fn find(whole: &[u8], part: &[u8]) -> Option<usize> {
    if part.is_empty() {
        return None;
    }
    whole.windows(part.len()).position(|window| window == part)
}
