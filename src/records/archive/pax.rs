//! The extended headers of entries in tar archives (POSIX, `pax`). Works on bytes: no I/O of its own.

use tar::{EntryType, Header};

/// The bytes of a block, of which archives consist.
const BLOCK: usize = 512;

/// The blocks before the content of an entry, as they pass. The library that reads archives takes a line of a header for a
/// record, but a value may have several lines, as GNU tar writes lists.
#[derive(Debug, Default)]
pub(super) struct Headers {
    /// The number of bytes that have passed.
    position: u64,
    bytes: Vec<u8>,
}

impl Headers {
    /// Notes bytes of the archive that are read.
    pub(super) fn pass(&mut self, bytes: &[u8], is_content: bool) {
        let before = usize::try_from(self.position % BLOCK as u64).unwrap_or_default();
        self.position += bytes.len() as u64;
        if is_content {
            self.bytes.clear();
            return;
        }
        // The rest of a block belongs to the content before.
        let rest = if self.bytes.is_empty() {
            (BLOCK - before) % BLOCK
        } else {
            0
        };
        self.bytes.extend(bytes.get(rest..).unwrap_or_default());
    }

    /// The headers of the present entry.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// The records of the extended header among the headers of an entry.
pub(super) fn records(headers: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut rest = headers;
    while let Some((block, after)) = rest.split_first_chunk::<BLOCK>() {
        let header = Header::from_byte_slice(block);
        let kind = header.entry_type();
        let Some(size) = header.entry_size().ok().and_then(|size| usize::try_from(size).ok()) else {
            break;
        };
        if kind == EntryType::XHeader {
            found = after.get(..size).map(records_of).unwrap_or_default();
        } else if !(kind.is_gnu_longname() || kind.is_gnu_longlink() || kind == EntryType::XGlobalHeader) {
            break;
        }
        rest = size
            .checked_next_multiple_of(BLOCK)
            .and_then(|size| after.get(size..))
            .unwrap_or_default();
    }
    found
}

/// The records in the content of an extended header (POSIX, `pax`): a length, which counts the whole record, a key and a value.
fn records_of(mut content: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let next = |content: &[u8]| {
        let space = content.iter().take(8).position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&content[..space]).ok()?.parse().ok()?;
        let record = content.get(space + 1..length.checked_sub(1)?)?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        let key = String::from_utf8_lossy(&record[..equals]).into_owned();
        Some((length, key, record[equals + 1..].to_vec()))
    };
    while let Some((length, key, value)) = next(content) {
        found.push((key, value));
        content = &content[length..];
    }
    found
}
