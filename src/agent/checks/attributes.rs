//! Takes access control lists from the files of a root, for a squashfs cannot have them. Changes files of the root, and follows
//! no link of it.
//!
//! In the mode of a file with such a list, the place of the group's rights has the list's mask: without the list, the group
//! would get what only an account of the list had.

use std::{
    ffi::CStr,
    fs::Permissions,
    io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use rustix::fs::{lgetxattr, llistxattr, lremovexattr};

use super::Finished;
use crate::{normalize::walk, unpack::group_of_list};

/// The most bytes of all names, or of one value, in Linux.
const LARGEST: usize = 64 << 10;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Takes all lists away, and says for how many files.
pub(super) fn take_lists(finished: &Finished) -> Vec<String> {
    let mut room = vec![0; LARGEST];
    let mut taken = (0_u64, None);
    let walked = walk(&finished.root, |path, found| {
        if !found.is_symlink() && take(path, found.mode(), &mut room)? {
            taken.0 += 1;
            let first = || path.strip_prefix(&finished.root).unwrap_or(path).to_owned();
            taken.1.get_or_insert_with(first);
        }
        Ok(())
    });
    let mut said = Vec::new();
    if let Err(error) = walked {
        said.push(format!(
            "access control lists may have been lost without a correct mode: {error}"
        ));
    }
    if let (count, Some(first)) = taken {
        let others = if count > 1 {
            format!(" and {} more", count - 1)
        } else {
            String::new()
        };
        said.push(format!(
            "the image does not have the access control lists of /{}{others}",
            first.display()
        ));
    }
    said
}

/// Takes the lists of one file. Returns whether it had any.
fn take(path: &Path, mode: u32, room: &mut [u8]) -> io::Result<bool> {
    let Ok(length) = llistxattr(path, &mut *room) else {
        // A file system without attributes, or none that can be listed.
        return Ok(false);
    };
    if length == 0 {
        return Ok(false);
    }
    let lists: Vec<&str> = room[..length]
        .split_inclusive(|byte| *byte == 0)
        .filter_map(|name| CStr::from_bytes_with_nul(name).ok()?.to_str().ok())
        .filter_map(|name| [ACCESS, DEFAULT].into_iter().find(|known| *known == name))
        .collect();
    for name in &lists {
        let group = if *name == ACCESS {
            let length = lgetxattr(path, *name, &mut *room)?;
            group_of_list(&room[..length])
        } else {
            None
        };
        lremovexattr(path, *name)?;
        if let Some(group) = group {
            fs_err::set_permissions(path, Permissions::from_mode(mode & 0o7777 & !0o070 | group << 3))?;
        }
    }
    Ok(!lists.is_empty())
}

#[cfg(test)]
mod tests {
    use kiln_records::arch::Arch;
    use rustix::fs::{XattrFlags, setxattr};

    use super::*;

    fn list(entries: &[(u8, u8)]) -> Vec<u8> {
        let mut list = vec![2, 0, 0, 0];
        for (tag, rights) in entries {
            let id: u32 = if *tag == 2 { 1 } else { u32::MAX };
            list.extend([*tag, 0, *rights, 0]);
            list.extend(id.to_le_bytes());
        }
        list
    }

    #[test]
    fn lists_are_taken_and_modes_are_right() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("file"), dir.path().join("other"));
        fs_err::write(&file, "x").unwrap();
        fs_err::write(&other, "x").unwrap();
        fs_err::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        fs_err::set_permissions(&other, Permissions::from_mode(0o664)).unwrap();
        let entries = list(&[(1, 6), (2, 6), (4, 4), (16, 6), (32, 4)]);
        let finished = Finished::new(dir.path().to_owned(), Arch::X86_64, None);
        let is_possible = setxattr(&file, ACCESS, &entries, XattrFlags::empty()).is_ok();
        let mode = |path: &Path| fs_err::symlink_metadata(path).unwrap().mode() & 0o7777;
        if is_possible {
            assert_eq!(mode(&file), 0o664);
        }
        let said = take_lists(&finished);
        // A file system without lists has nothing to take.
        assert_eq!(said.len(), usize::from(is_possible), "{said:?}");
        assert_eq!((mode(&file), mode(&other)), (0o644, 0o664));
        assert_eq!(take_lists(&finished), Vec::<String>::new());
    }
}
