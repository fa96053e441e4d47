//! Which file to load when a program asks for a module of the target.

use rustix::{
    fs::{Access, FileType, Mode, OFlags, access, fstat, open},
    io::{Errno, read},
};

use crate::{key, layout, paths, text::Text};

/// The file to be loaded in place of the one at `path`. None when that one is to be loaded, or to fail, itself.
pub fn in_place_of(path: &[u8]) -> Option<Text> {
    if !path.contains(&b'/') {
        return None;
    }
    let mut text = Text::new();
    text.push(path)?;
    match twin_of(&text) {
        Ok(twin) => twin,
        // A path that is compiled into the twin.
        Err(Errno::NOENT) => {
            let text = paths::of_target(path)?;
            twin_of(&text).ok()?.or(Some(text))
        }
        Err(_) => None,
    }
}

/// The twin of the file at `path`, if it has one.
fn twin_of(path: &Text) -> Result<Option<Text>, Errno> {
    let path = path.as_c_str().ok_or(Errno::INVAL)?;
    // A path may lead to anything: nothing here may wait.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::empty())?;
    let status = fstat(&file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Ok(None);
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
    let twin = head
        .get(..length)
        .and_then(key::build_id)
        .and_then(|id| path_of(id, status.st_size.cast_unsigned(), status.st_mtime));
    let is_there = |twin: &Text| twin.as_c_str().is_some_and(|twin| access(twin, Access::EXISTS).is_ok());
    Ok(twin.filter(is_there))
}

fn path_of(build_id: &[u8], size: u64, modified: i64) -> Option<Text> {
    let mut key = [0; key::LONGEST_KEY];
    let length = key::write_key(&mut key, build_id, size, modified)?;
    let mut path = Text::new();
    path.push(layout::BIN.as_bytes())?;
    path.push(key.get(..length)?)?;
    Some(path)
}
