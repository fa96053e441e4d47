//! Removes what a sandbox leaves, however deep it is. Touches only what is below the given directory.
//!
//! A path has at most 4096 bytes, and a process only so many descriptors and so much stack, but directories can be
//! nested without limit. So nothing here follows a path down: what is inside a directory is moved to the top before
//! that directory is removed.

use std::{ffi::CStr, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, openat, renameat_with, unlinkat},
    io::Errno,
};

/// Removes a directory and everything in it. There may be none.
///
/// # Errors
///
/// Something in it cannot be removed, such as a mount point.
pub fn remove_tree(dir: &Path) -> std::io::Result<()> {
    match empty(dir).and_then(|()| Ok(unlinkat(CWD, dir, AtFlags::REMOVEDIR)?)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Removes everything in a directory.
///
/// # Errors
///
/// The directory does not exist, or something in it cannot be removed.
pub fn empty(dir: &Path) -> std::io::Result<()> {
    let top = openat(
        CWD,
        dir,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut top = Top { dir: top, moved: 0 };
    loop {
        let (mut found, mut gone) = (false, false);
        for_each(&top.dir.try_clone()?, |name| {
            found = true;
            gone |= top.remove(name)?;
            Ok(())
        })?;
        match (found, gone) {
            (false, _) => return Ok(()),
            (true, true) => {}
            (true, false) => return Err(std::io::ErrorKind::DirectoryNotEmpty.into()),
        }
    }
}

struct Top {
    dir: OwnedFd,
    /// How many entries were moved here.
    moved: u64,
}

impl Top {
    /// Removes an entry; what is in a directory may only come one step closer to its end. Returns whether the entry is
    /// gone.
    fn remove(&mut self, name: &CStr) -> Result<bool, Errno> {
        if !is_full(&self.dir, name)? {
            return Ok(true);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(&self.dir, name, flags, Mode::empty())?;
        for_each(&dir, |inside| {
            if is_full(&dir, inside)? {
                self.take_up(&dir, inside)?;
            }
            Ok(())
        })?;
        Ok(!is_full(&self.dir, name)?)
    }

    /// Moves a directory to the top, under a name that is free there.
    fn take_up(&mut self, from: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        loop {
            self.moved += 1;
            let free = format!("moved-{}", self.moved);
            match renameat_with(from, name, &self.dir, free, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                done => return done,
            }
        }
    }
}

/// Removes a file, a link or an empty directory. Returns whether it is a directory that is not empty.
fn is_full(dir: &OwnedFd, name: &CStr) -> Result<bool, Errno> {
    let removed = match unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => unlinkat(dir, name, AtFlags::REMOVEDIR),
        done => done,
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(false),
        Err(Errno::NOTEMPTY) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Calls `each` for the names in a directory. It may pass over some when they change meanwhile.
fn for_each(dir: &OwnedFd, mut each: impl FnMut(&CStr) -> Result<(), Errno>) -> Result<(), Errno> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if ![c".", c".."].contains(&entry.file_name()) {
            each(entry.file_name())?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::mkdirat;

    use super::*;

    /// Makes directories inside each other; no path leads to the last one.
    pub(in super::super) fn nest(dir: &Path, depth: usize) -> OwnedFd {
        let open = |at: &OwnedFd, name: &str| openat(at, name, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty());
        let mut at = openat(CWD, dir, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&at, "moved-1", Mode::RWXU).unwrap();
            at = open(&at, "moved-1").unwrap();
        }
        at
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs_err::create_dir_all(outside.join("kept")).unwrap();
        let tree = dir.path().join("tree");
        for beside in ["one", "two", "moved-2", "moved-3"] {
            fs_err::create_dir_all(tree.join(beside).join("moved-1/deeper")).unwrap();
            fs_err::write(tree.join(beside).join("file"), "").unwrap();
        }
        fs_err::os::unix::fs::symlink(&outside, tree.join("link")).unwrap();
        fs_err::os::unix::fs::symlink(&outside, tree.join("one/link")).unwrap();
        let last = nest(&tree, 10_000);
        mkdirat(&last, "last", Mode::RWXU).unwrap();
        fs_err::set_permissions(tree.join("two"), std::fs::Permissions::from_mode(0o700)).unwrap();

        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(outside.join("kept").exists(), "a link was followed");
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn what_cannot_be_removed_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs_err::write(&file, "").unwrap();
        assert!(remove_tree(&file).is_err(), "not a directory");
        assert!(file.exists());
        assert!(empty(&dir.path().join("none")).is_err());
    }
}
