//! The format tar, plain or compressed. Works on readers: no I/O of its own.

use std::{
    cell::{Cell, RefCell},
    io::{self, BufRead, Read},
    rc::Rc,
};

use tar::{Archive, EntryType};

use super::{
    Raw, RawKind, Walk,
    pax::{Headers, records},
};
use crate::{Failure, compression::Compression};

/// The most bytes of headers (long names, extended attributes) of one entry.
const HEADER_BYTES: u64 = 1 << 20;

/// Other formats, by their first bytes.
const OTHERS: [(&[u8], &str); 3] = [
    (b"7z\xbc\xaf\x27\x1c", "it is a 7z file"),
    (b"Rar!\x1a\x07", "it is a RAR file"),
    (b"hsqs", "it is a squashfs"),
];

pub(super) fn read(mut archive: impl BufRead, walk: &mut Walk<'_, '_>) -> Result<(), Failure> {
    let head = archive
        .fill_buf()
        .map_err(|error| Failure::io("cannot read the archive", &error))?;
    if let Some((_, why)) = OTHERS.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(walk.not_archive(why));
    }
    let reader: Box<dyn Read + '_> = match Compression::detect(head) {
        None => Box::new(archive),
        Some(compression) => compression.reader(archive).map_err(|error| walk.not_archive(error))?,
    };
    let allowance = Rc::new(Cell::new(HEADER_BYTES));
    let headers = Rc::new(RefCell::new(Headers::default()));
    let mut archive = Archive::new(Bounded {
        reader,
        allowance: Rc::clone(&allowance),
        headers: Rc::clone(&headers),
    });
    let mut entries = archive.entries().map_err(|error| walk.not_archive(error))?;
    while !walk.is_over {
        allowance.set(HEADER_BYTES);
        let Some(next) = entries.next() else { break };
        let mut entry = next.map_err(|error| match (allowance.get(), walk.entries) {
            (0, _) => walk.bomb("headers of more than 1 MiB"),
            (_, 0) => walk.not_archive(error),
            _ => walk.damaged(error),
        })?;
        walk.begin_entry()?;
        walk.count(HEADER_BYTES - allowance.get())?;
        // What reads the content counts it.
        allowance.set(u64::MAX);
        let extended = records(&headers.borrow_mut().take());
        let kind = entry.header().entry_type();
        if kind == EntryType::XGlobalHeader {
            continue;
        }
        let name = entry.path_bytes().into_owned();
        let target = entry.link_name_bytes().unwrap_or_default().into_owned();
        let raw = Raw {
            name: &name,
            kind: match kind {
                EntryType::Directory => RawKind::Directory,
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => RawKind::File,
                EntryType::Symlink => RawKind::Symlink(&target),
                EntryType::Link => RawKind::HardLink(&target),
                EntryType::Char | EntryType::Block => RawKind::Refused("is a device node".to_owned()),
                EntryType::Fifo => RawKind::Refused("is a fifo".to_owned()),
                other => RawKind::Refused(format!("is of the unknown kind `{}`", char::from(other.as_byte()))),
            },
            mode: entry.header().mode().unwrap_or(0o644),
            modified: entry.header().mtime().ok(),
            size: entry.size(),
            extended: &extended,
        };
        walk.entry(&raw, &mut entry)?;
    }
    Ok(())
}

/// A reader that fails when more than `allowance` bytes are read before the allowance is reset.
struct Bounded<'a> {
    reader: Box<dyn Read + 'a>,
    allowance: Rc<Cell<u64>>,
    headers: Rc<RefCell<Headers>>,
}

impl Read for Bounded<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let allowed = usize::try_from(self.allowance.get())
            .unwrap_or(usize::MAX)
            .min(buf.len());
        if allowed == 0 && !buf.is_empty() {
            return Err(io::Error::other("too many bytes of headers"));
        }
        let read = self.reader.read(&mut buf[..allowed])?;
        let is_content = self.allowance.get() > HEADER_BYTES;
        self.headers.borrow_mut().pass(&buf[..read], is_content);
        self.allowance.set(self.allowance.get() - read as u64);
        Ok(read)
    }
}
