//! The files of an initrd. Works on readers, with limits: an initrd's content may be hostile. No I/O of its own.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result};

use crate::compression::Compression;

/// The most bytes that an initrd may unpack to.
const MOST_UNPACKED: u64 = 4 << 30;

/// The longest name of a file in it.
const LONGEST_NAME: u64 = 4096;

/// The length of an entry's header in cpio's "new" format.
const HEADER: usize = 110;

/// How far an initrd was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// To its end.
    Whole,
    /// Until enough was seen.
    Enough,
    /// It goes on in a format that is not known here.
    Unknown,
}

/// A file of an initrd, as its header has it.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Its path.
    pub name: &'a [u8],
    /// Its type and permissions, as of `st_mode`.
    pub mode: u32,
    /// Bytes of its content.
    pub size: u64,
}

/// Looks at a file and its content, of which it need not read anything. Whether it has seen enough.
type Look<'a> = &'a mut dyn FnMut(Entry<'_>, &mut dyn Read) -> Result<bool>;

/// Has `look` look at the names of all files, in their order, until it has seen enough and says so.
///
/// # Errors
///
/// When it cannot be read, or is damaged.
pub fn names(input: &mut dyn BufRead, look: &mut dyn FnMut(&[u8]) -> bool) -> Result<Extent> {
    files(input, &mut |entry, _| Ok(look(entry.name)))
}

/// Has `look` look at all files, in their order, until it has seen enough and says so.
///
/// # Errors
///
/// When it cannot be read, or is damaged, or `look` fails.
pub fn files(input: &mut dyn BufRead, look: Look<'_>) -> Result<Extent> {
    archives(input, look, true)
}

/// Reads archives one after the other, as the kernel does; the last one is usually packed.
fn archives(input: &mut dyn BufRead, look: Look<'_>, may_be_packed: bool) -> Result<Extent> {
    loop {
        let start = loop {
            let start = input.fill_buf()?;
            let padding = start.iter().take_while(|byte| **byte == 0).count();
            if padding == 0 {
                break start;
            }
            input.consume(padding);
        };
        if start.is_empty() {
            return Ok(Extent::Whole);
        }
        if start.starts_with(b"0707") {
            if archive(input, look)? {
                return Ok(Extent::Enough);
            }
            continue;
        }
        return match Compression::detect(start).filter(|_| may_be_packed) {
            Some(packed) => {
                let unpacked = packed.reader(input)?.take(MOST_UNPACKED);
                archives(&mut BufReader::new(unpacked), look, false)
            }
            None => Ok(Extent::Unknown),
        };
    }
}

/// Reads an archive up to its end, or until enough was seen; whether that was so.
fn archive(input: &mut dyn BufRead, look: Look<'_>) -> Result<bool> {
    loop {
        let mut header = [0; HEADER];
        input.read_exact(&mut header)?;
        let (size, length) = (field(&header, 54)?, field(&header, 94)?);
        if !header.starts_with(b"0707") || length > LONGEST_NAME {
            return Err(damaged());
        }
        let mut name = Vec::new();
        let padded = (HEADER as u64 + length).next_multiple_of(4) - HEADER as u64;
        input.take(padded).read_to_end(&mut name)?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if name == b"TRAILER!!!" {
            return Ok(false);
        }
        let mode = u32::try_from(field(&header, 14)?).map_err(|_| damaged())?;
        let mut content = input.take(size);
        if look(Entry { name, mode, size }, &mut content)? {
            return Ok(true);
        }
        let left = content.limit() + (size.next_multiple_of(4) - size);
        if std::io::copy(&mut input.take(left), &mut std::io::sink())? < left {
            return Err(damaged());
        }
    }
}

/// A number of eight hexadecimal digits.
fn field(header: &[u8; HEADER], at: usize) -> Result<u64> {
    let digits = std::str::from_utf8(&header[at..at + 8]).map_err(|_| damaged())?;
    u64::from_str_radix(digits, 16).map_err(|_| damaged())
}

fn damaged() -> Error {
    Error::new(
        ErrorKind::InvalidData,
        "the initrd is damaged: it is no cpio archive to its end",
    )
}
