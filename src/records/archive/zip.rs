//! The format zip. Works on readers: no I/O of its own.

use std::io::{self, Read, Seek};

use jiff::{civil, tz::TimeZone};
use zip::{ExtraField, System, ZipArchive, read::ZipFile, result::ZipError};

use super::{PATH_BYTES, Raw, RawKind, Walk};
use crate::Failure;

/// The part of a mode that says what a file is, and its values (POSIX, `sys/stat.h`).
const KIND: u32 = 0o170_000;
const FIFO: u32 = 0o010_000;
const SOCKET: u32 = 0o140_000;
const DEVICES: [u32; 2] = [0o020_000, 0o060_000];

/// The first bytes of each entry of a zip file's directory.
const DIRECTORY_ENTRY: &[u8] = b"PK\x01\x02";

pub(super) fn read(mut archive: impl Read + Seek, walk: &mut Walk<'_, '_>) -> Result<(), Failure> {
    // The library keeps a list of all entries, so one that is too long is not read.
    let most = walk.limits.entries;
    if has_more_entries(&mut archive, most).map_err(|error| walk.damaged(error))? {
        return Err(walk.bomb(format_args!("more than {most} entries")));
    }
    let mut archive = ZipArchive::new(archive).map_err(|error| walk.damaged(error))?;
    for number in 0..archive.len() {
        if walk.is_over {
            break;
        }
        walk.begin_entry()?;
        let raw = archive.by_index_raw(number).map_err(|error| walk.damaged(error))?;
        let is_of_dos = raw.system() == System::Dos;
        let name = name(&raw, is_of_dos);
        let shown = String::from_utf8_lossy(&name).escape_debug().to_string();
        if raw.encrypted() {
            return Err(walk.not_archive(format_args!("its entry `{shown}` is encrypted")));
        }
        drop(raw);
        walk.count(name.len() as u64)?;
        let mut content = archive.by_index(number).map_err(|error| match error {
            ZipError::UnsupportedArchive(why) => {
                walk.not_archive(format_args!("its entry `{shown}` cannot be read: {why}"))
            }
            error => walk.damaged(error),
        })?;
        let is_directory = name.ends_with(b"/");
        let is_link = content.is_symlink();
        let (size, modified) = (content.size(), modified(&content));
        let mode = match content.unix_mode() {
            Some(mode) if !is_of_dos => mode,
            _ if is_directory => 0o755,
            _ => {
                walk.without_modes += 1;
                0o644
            }
        };
        let mut target = Vec::new();
        if is_link {
            let read = (&mut content).take(PATH_BYTES as u64 + 1).read_to_end(&mut target);
            walk.count(read.map_err(|error| walk.damaged(error))? as u64)?;
        }
        let kind = match mode & KIND {
            _ if is_link => RawKind::Symlink(&target),
            _ if is_directory => RawKind::Directory,
            FIFO => RawKind::Refused("is a fifo".to_owned()),
            SOCKET => RawKind::Refused("is a socket".to_owned()),
            device if DEVICES.contains(&device) => RawKind::Refused("is a device node".to_owned()),
            _ => RawKind::File,
        };
        let raw = Raw {
            name: &name,
            kind,
            mode,
            modified,
            size,
            extended: &[],
        };
        let mut nothing = io::empty();
        let content: &mut dyn Read = if is_link { &mut nothing } else { &mut content };
        walk.entry(&raw, content)?;
    }
    Ok(())
}

/// Whether the archive may list more entries than that.
fn has_more_entries(archive: &mut (impl Read + Seek), most: u64) -> io::Result<bool> {
    const PIECE: usize = 256 * 1024;
    archive.rewind()?;
    let (mut found, mut begun) = (0_u64, Vec::with_capacity(PIECE + DIRECTORY_ENTRY.len()));
    loop {
        let read = archive.by_ref().take(PIECE as u64).read_to_end(&mut begun)?;
        found += memchr::memmem::find_iter(&begun, DIRECTORY_ENTRY).count() as u64;
        if found > most || read == 0 {
            archive.rewind()?;
            return Ok(found > most);
        }
        // One may lie across two pieces, and none fits into what is kept.
        begun.drain(..begun.len().saturating_sub(DIRECTORY_ENTRY.len() - 1));
    }
}

/// The name of an entry in bytes. Programs for macOS write UTF-8 without saying so; others use the code page of DOS.
fn name(entry: &ZipFile<'_, impl Read>, is_of_dos: bool) -> Vec<u8> {
    let raw = entry.name_raw();
    let known = std::str::from_utf8(raw).map(str::to_owned);
    let Some(name) = known.ok().or_else(|| Some(entry.name().ok()?.into_owned())) else {
        return raw.to_vec();
    };
    // Some programs for Windows do not follow the format here, such as older versions of .NET.
    if is_of_dos && name.contains('\\') && !name.contains('/') {
        return name.replace('\\', "/").into_bytes();
    }
    name.into_bytes()
}

/// The time of an entry's last change: that of Unix if it is there, else the one of DOS, which has no time zone.
fn modified(entry: &ZipFile<'_, impl Read>) -> Option<u64> {
    let exact = entry.extra_data_fields().find_map(|field| match field {
        ExtraField::ExtendedTimestamp(time) => time.mod_time(),
        _ => None,
    });
    exact.map(u64::from).or_else(|| {
        let time = entry.last_modified()?;
        let part = |value: u8| i8::try_from(value).ok();
        let local = civil::DateTime::new(
            i16::try_from(time.year()).ok()?,
            part(time.month())?,
            part(time.day())?,
            part(time.hour())?,
            part(time.minute())?,
            part(time.second())?,
            0,
        );
        let moment = local.ok()?.to_zoned(TimeZone::UTC).ok()?;
        u64::try_from(moment.timestamp().as_second()).ok()
    })
}
