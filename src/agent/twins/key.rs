//! The key by which a twin is found: the target file's GNU build-id, size and modification time. Pure: no I/O.
//!
//! The build-id identifies the program that the linker made, so an upgraded package has other keys and never finds a
//! twin of another version. Size and time show that the file is as its package installed it. Paths play no role: a
//! renamed or moved file is still the same program.
//!
//! `kiln-exec` computes keys in processes that are about to become another program, so this file needs only `core`,
//! allocates nothing and cannot panic.

/// How many bytes at the beginning of a file are searched for the build-id.
pub const HEAD: usize = 4096;

/// The longest key.
pub const LONGEST_KEY: usize = 2 * LONGEST_BUILD_ID + 2 + 32;

/// SHA-1 ids have 20 bytes, SHA-256 ids have 32.
const LONGEST_BUILD_ID: usize = 32;

const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;

/// The build-id of a 64-bit little-endian ELF file whose first bytes are `head`. `None` if it is not in them.
#[must_use]
pub fn build_id(head: &[u8]) -> Option<&[u8]> {
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = usize::try_from(u64_at(head, 32)?).ok()?;
    let (entry_size, count) = (usize::from(u16_at(head, 54)?), usize::from(u16_at(head, 56)?));
    (0..count).find_map(|index| {
        let entry = head.get(table.checked_add(index.checked_mul(entry_size)?)?..)?;
        if u32_at(entry, 0)? != PT_NOTE {
            return None;
        }
        let begin = usize::try_from(u64_at(entry, 8)?).ok()?;
        let size = usize::try_from(u64_at(entry, 32)?).ok()?;
        id_among_notes(head.get(begin..begin.checked_add(size)?)?)
    })
}

/// Notes are aligned to four bytes; those aligned to eight contain no build-id.
fn id_among_notes(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let name_size = usize::try_from(u32_at(notes, 0)?).ok()?;
        let id_size = usize::try_from(u32_at(notes, 4)?).ok()?;
        let name_end = 12_usize.checked_add(name_size)?.checked_next_multiple_of(4)?;
        let id_end = name_end.checked_add(id_size)?;
        if u32_at(notes, 8)? == NT_GNU_BUILD_ID && notes.get(12..16)? == b"GNU\0" {
            return notes
                .get(name_end..id_end)
                .filter(|id| (8..=LONGEST_BUILD_ID).contains(&id.len()));
        }
        notes = notes.get(id_end.checked_next_multiple_of(4)?..)?;
    }
}

/// Writes a key, `BUILD_ID-SIZE-MTIME` in hexadecimal, to `out`. Returns its length; `None` when `out` is too short.
///
/// `size` is in bytes, `modified` in seconds since 1970.
#[must_use]
pub fn write_key(out: &mut [u8], build_id: &[u8], size: u64, modified: i64) -> Option<usize> {
    let mut at = 0;
    for byte in build_id {
        for digit in [byte >> 4, byte & 15] {
            *out.get_mut(at)? = hex_digit(digit);
            at += 1;
        }
    }
    for number in [size, modified.cast_unsigned()] {
        *out.get_mut(at)? = b'-';
        at += 1;
        let digits = (64 - number.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            *out.get_mut(at)? = hex_digit(((number >> (4 * digit)) & 15) as u8);
            at += 1;
        }
    }
    Some(at)
}

const fn hex_digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'a' + value - 10 }
}

/// A little-endian number; `None` if it is not all there.
#[must_use]
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// A little-endian number; `None` if it is not all there.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// A little-endian number; `None` if it is not all there.
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}
