//! The functions on memory that compiled code calls and a C library would have. Everything here is small, so they are
//! simple. Volatile accesses keep the compiler from making calls of the same functions out of the loops.

/// Copies what does not overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: both are `count` bytes long.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    to
}

/// Fills.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: it is `count` bytes long. The byte is passed as an integer.
        unsafe { to.add(at).write_volatile(byte.to_le_bytes()[0]) };
    }
    to
}

/// Compares.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: both are `count` bytes long.
        let (one, other) = unsafe { (one.add(at).read_volatile(), other.add(at).read_volatile()) };
        if one != other {
            return i32::from(one) - i32::from(other);
        }
    }
    0
}

/// Tells whether there is a difference.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    // SAFETY: the same contract.
    unsafe { memcmp(one, other, count) }
}
