//! Decides which names and links of an archive stay inside the target directory. Pure: no I/O.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use super::PATH_BYTES;

/// The longest name in bytes, as in Linux.
const NAME_BYTES: usize = 255;

/// An entry's name as a relative path of plain names; empty for the top itself. An error says why it is refused.
pub fn clean(name: &[u8]) -> Result<PathBuf, &'static str> {
    if name.contains(&0) {
        return Err("has a NUL byte in its name");
    }
    if name.len() > PATH_BYTES {
        return Err("has a path that is too long");
    }
    let mut clean = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(part) if part.len() > NAME_BYTES => return Err("has a name that is too long"),
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            Component::ParentDir => return Err("has `..` in its path"),
            Component::RootDir | Component::Prefix(_) => return Err("has an absolute path"),
        }
    }
    Ok(clean)
}

/// Checks that the symbolic link at `place` stays inside, even if its target leads through other links that pass this check.
///
/// `..` is allowed only at the target's beginning: from there it goes up through the real directories above the link,
/// and every later name goes down.
pub fn check_target(place: &Path, target: &Path) -> Result<(), &'static str> {
    const OUTSIDE: &str = "is a symbolic link that leads outside the recipe";
    if target.has_root() {
        return Err(OUTSIDE);
    }
    let mut room = place.components().count().saturating_sub(1);
    let mut went_down = false;
    for component in target.components() {
        match component {
            Component::ParentDir if went_down || room == 0 => return Err(OUTSIDE),
            Component::ParentDir => room -= 1,
            Component::Normal(_) => went_down = true,
            _ => {}
        }
    }
    Ok(())
}

/// A path of these bytes.
pub(super) fn of_bytes(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}
