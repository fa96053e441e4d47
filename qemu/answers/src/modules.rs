//! Chooses the file to load when a program asks for a module of the target. Opens files for reading.

use rustix::{
    fs::{Access, FileType, Mode, OFlags, access, fstat, open},
    io::{Errno, read},
    thread::{Timespec, nanosleep},
};

use crate::{key, layout, paths, restart, text::Text};

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

/// The longest wait for a twin, and the pause between two questions for it.
const LONGEST_WAIT_MS: i64 = 30_000;
const PAUSE_MS: i64 = 20;

/// The choice for the file at `path`. If it is the target's and has no twin, waits for the agent to look at the root: its
/// package may have been unpacked a moment ago.
pub fn awaited(path: &[u8]) -> Module {
    let mut module = in_place_of(path);
    // The agent waits for what it tries, and does not look meanwhile.
    let first = match module {
        Module::Foreign if !restart::is_on_trial() => looks(),
        _ => return module,
    };
    let mut waited = 0;
    while matches!(module, Module::Foreign) && first != layout::NO_LOOKS && waited < LONGEST_WAIT_MS {
        let pause = Timespec {
            tv_sec: 0,
            tv_nsec: PAUSE_MS * 1_000_000,
        };
        let _ = nanosleep(&pause);
        waited += PAUSE_MS;
        // Asked first: what was published until then is seen.
        let looked = looks();
        module = in_place_of(path);
        if looked == layout::NO_LOOKS || looked >= first.saturating_add(2) {
            break;
        }
    }
    module
}

/// How often the agent has looked at the root.
fn looks() -> u64 {
    let mut bytes = [0; size_of::<u64>()];
    match open(layout::LOOKS, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(|file| read(&file, &mut bytes)) {
        Ok(Ok(8)) => u64::from_ne_bytes(bytes),
        _ => layout::NO_LOOKS,
    }
}

/// The choice for the file at `path` at this moment.
fn in_place_of(path: &[u8]) -> Module {
    if !path.contains(&b'/') {
        return by_name(path);
    }
    let mut text = Text::new();
    if text.push(path).is_none() {
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

/// The choice for a library that the loader searches for. Those that depend on the CPU are not beside the twins.
fn by_name(name: &[u8]) -> Module {
    let mut path = Text::new();
    // An empty name stands for the program itself.
    let is_there = name.is_empty()
        || path.push(layout::LIB.as_bytes()).is_some()
            && path.push(b"/").is_some()
            && path.push(name).is_some()
            && path.as_c_str().is_some_and(|path| access(path, Access::EXISTS).is_ok());
    if is_there { Module::Itself } else { Module::Foreign }
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
