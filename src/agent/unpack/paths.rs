//! Decides which names and links of an archive stay inside the target directory. Pure: no I/O.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

/// The longest path in bytes, as in Linux.
const PATH_BYTES: usize = 4096;

/// The longest name in bytes, as in Linux.
const NAME_BYTES: usize = 255;

/// An entry's name as a relative path of plain names; empty for the top itself. An error says why it is refused.
pub(super) fn clean(name: &[u8]) -> Result<PathBuf, &'static str> {
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

/// Checks that the symbolic link at `place` stays inside, even if its target leads through other links.
///
/// `..` is allowed only at the target's beginning: from there it goes up through the real directories above the link,
/// and every later name goes down, or through another link that passed this same check. In the overlay tree `root/`,
/// whose files kiwi copies into the image, absolute targets are names of the image and stay unchanged. Because of
/// them, the agent opens files of a recipe through [`inside`](crate::template::inside) only.
pub(super) fn check_target(place: &Path, target: &[u8]) -> Result<(), &'static str> {
    const OUTSIDE: &str = "is a symbolic link that leads outside the recipe";
    if target.is_empty() || target.contains(&0) || target.len() > PATH_BYTES {
        return Err("is a symbolic link with an impossible target");
    }
    let target = Path::new(OsStr::from_bytes(target));
    if target.has_root() {
        let above = place.parent().into_iter().flat_map(Path::components);
        // The second name counts when the archive has a single top directory.
        let overlay = above.take(2).any(|part| part.as_os_str() == "root");
        return if overlay { Ok(()) } else { Err(OUTSIDE) };
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
