//! Packs the extended attributes of a recipe's files, in the form in which GNU tar has them. Reads attributes.

use std::{
    ffi::CStr,
    fmt::Write as _,
    io::{self, Write},
    path::Path,
};

use rustix::{
    fs::{lgetxattr, llistxattr},
    io::Errno,
};
use tar::Builder;

/// The most bytes of all names, or of one value, in Linux.
const LARGEST: usize = 64 << 10;

/// Appends the header of a file's attributes, if it has any that a recipe may bring. The others are the machine's own.
pub(super) fn append(archive: &mut Builder<impl Write>, path: &Path) -> io::Result<()> {
    let mut room = vec![0; LARGEST];
    let length = match llistxattr(path, &mut room) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut names: Vec<_> = room[..length]
        .split_inclusive(|byte| *byte == 0)
        .filter_map(|name| CStr::from_bytes_with_nul(name).ok()?.to_str().ok())
        .collect();
    names.sort_unstable();
    let mut extensions = Vec::new();
    for name in names {
        let list = match name {
            "system.posix_acl_access" => Some("access"),
            "system.posix_acl_default" => Some("default"),
            "security.capability" => None,
            // What a desktop notes of a file differs between equal recipes.
            name if name.starts_with("user.") && !name.starts_with("user.xdg.") => None,
            _ => continue,
        };
        let mut value = vec![0; LARGEST];
        let length = lgetxattr(path, name, &mut value)?;
        value.truncate(length);
        extensions.push(match list {
            Some(which) => (format!("SCHILY.acl.{which}"), list_as_text(&value).into_bytes()),
            None => (format!("SCHILY.xattr.{name}"), value),
        });
    }
    if extensions.is_empty() {
        return Ok(());
    }
    archive.append_pax_extensions(extensions.iter().map(|(key, value)| (key.as_str(), value.as_slice())))
}

/// The text of an access control list (acl(5)) that has the kernel's form (Linux's `posix_acl_xattr.h`): after four bytes of a
/// version, entries of a tag, rights and an id.
fn list_as_text(list: &[u8]) -> String {
    let mut text = String::new();
    for &[tag, _, rights, _, a, b, c, d] in list.get(4..).unwrap_or_default().as_chunks::<8>().0 {
        let id = u32::from_le_bytes([a, b, c, d]);
        let (tag, id) = match tag {
            0x01 => ("user", None),
            0x02 => ("user", Some(id)),
            0x04 => ("group", None),
            0x08 => ("group", Some(id)),
            0x10 => ("mask", None),
            _ => ("other", None),
        };
        if !text.is_empty() {
            text.push(',');
        }
        let id = id.map_or_else(String::new, |id| id.to_string());
        let letter = |bit, letter| if rights & bit == 0 { '-' } else { letter };
        let _ = write!(
            text,
            "{tag}:{id}:{}{}{}",
            letter(4, 'r'),
            letter(2, 'w'),
            letter(1, 'x')
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_written_as_tar_has_it() {
        let entries: [(u8, u8, u32); 5] = [
            (1, 6, u32::MAX),
            (2, 6, 1),
            (4, 4, u32::MAX),
            (16, 6, u32::MAX),
            (32, 4, u32::MAX),
        ];
        let mut list = vec![2, 0, 0, 0];
        for (tag, rights, id) in entries {
            list.extend([tag, 0, rights, 0]);
            list.extend(id.to_le_bytes());
        }
        assert_eq!(
            list_as_text(&list),
            "user::rw-,user:1:rw-,group::r--,mask::rw-,other::r--"
        );
    }
}
