//! Chooses the file to load when a program asks for a module of the target. Opens files for reading.

use rustix::{
    fs::{Access, FileType, Mode, OFlags, access, fstat, open},
    io::{Errno, read},
};

use crate::{key, layout, paths, text::Text};

/// The offset of the machine in an ELF file.
const MACHINE: usize = 18;

/// The machine of this library.
const OWN_MACHINE: [u8; 2] = if cfg!(target_arch = "x86_64") {
    [62, 0]
} else {
    [183, 0]
};

/// The choice for a module.
#[expect(clippy::large_enum_variant, reason = "there is no heap")]
pub enum Module {
    /// The file itself, which need not exist.
    Itself,
    /// Another file in its place.
    Other(Text),
    /// None: the file is the target's, and has no twin.
    Foreign,
}

/// The choice for the file at `path`.
pub fn in_place_of(path: &[u8]) -> Module {
    let mut text = Text::new();
    if !path.contains(&b'/') || text.push(path).is_none() {
        return Module::Itself;
    }
    match twin_of(&text) {
        Ok(module) => module,
        // The path may be one that is compiled into the twin.
        Err(Errno::NOENT) => {
            let Some(text) = paths::of_target(path) else {
                return Module::Itself;
            };
            match twin_of(&text) {
                Ok(Module::Itself) => Module::Other(text),
                Ok(module) => module,
                Err(_) => Module::Itself,
            }
        }
        Err(_) => Module::Itself,
    }
}

/// The choice for the file at `path`, if it exists.
fn twin_of(path: &Text) -> Result<Module, Errno> {
    let path = path.as_c_str().ok_or(Errno::INVAL)?;
    // The path may lead to anything: opening it must not block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::empty())?;
    let status = fstat(&file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Ok(Module::Itself);
    }
    let mut head = [0; key::HEAD];
    let mut length = 0;
    while let Some(rest) = head.get_mut(length..)
        && !rest.is_empty()
    {
        match read(&file, rest) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    let head = head.get(..length).unwrap_or_default();
    let twin = key::build_id(head).and_then(|id| path_of(id, status.st_size.cast_unsigned(), status.st_mtime));
    let is_there = |twin: &Text| twin.as_c_str().is_some_and(|twin| access(twin, Access::EXISTS).is_ok());
    Ok(match twin.filter(is_there) {
        Some(twin) => Module::Other(twin),
        None if is_foreign(head) => Module::Foreign,
        None => Module::Itself,
    })
}

/// Whether a file begins like a 64-bit little-endian ELF file for another machine.
fn is_foreign(head: &[u8]) -> bool {
    head.starts_with(b"\x7fELF\x02\x01")
        && head
            .get(MACHINE..MACHINE + 2)
            .is_some_and(|machine| machine != OWN_MACHINE)
}

fn path_of(build_id: &[u8], size: u64, modified: i64) -> Option<Text> {
    let mut key = [0; key::LONGEST_KEY];
    let length = key::write_key(&mut key, build_id, size, modified)?;
    let mut path = Text::new();
    path.push(layout::BIN.as_bytes())?;
    path.push(key.get(..length)?)?;
    Some(path)
}
