//! Takes over the extended attributes of an archive's entries, as GNU tar and others write them into its headers. Sets
//! attributes of files below the directory that the archive is unpacked into.

use std::{collections::BTreeMap, path::Path};

use kiln_records::{Code, Warning};
use rustix::fs::{XattrFlags, setxattr};

/// Before the names of extended attributes.
const ATTRIBUTE: &str = "SCHILY.xattr.";

/// Before the two access control lists of a file.
const LIST: &str = "SCHILY.acl.";

/// What is said of either.
const LISTS: &str = "access control lists";

/// The bits of a mode that are the group's.
const GROUP: u32 = 0o070;

/// The attributes of one entry.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    kept: Vec<(String, Vec<u8>)>,
    group: Option<u32>,
    lost: Vec<String>,
}

/// What was not kept: how many files had it, and the name of the first one.
#[derive(Debug, Default)]
pub struct Lost(BTreeMap<String, (u64, String)>);

impl Attributes {
    /// Those of an entry with these records in its extended header.
    pub(super) fn of(records: &[(String, Vec<u8>)]) -> Self {
        let mut found = Self::default();
        for (key, value) in records {
            if let Some(name) = key.strip_prefix(ATTRIBUTE) {
                found.add(name, value);
            } else if let Some(which) = key.strip_prefix(LIST) {
                found.lost.push(LISTS.to_owned());
                if which == "access" {
                    found.group = group_of(&String::from_utf8_lossy(value));
                }
            } else if key == "RHT.security.selinux" {
                found.lost.push("labels of SELinux".to_owned());
            }
        }
        found
    }

    fn add(&mut self, name: &str, value: &[u8]) {
        match name {
            "security.capability" => self.kept.push((name.to_owned(), value.to_owned())),
            name if name.starts_with("user.") => self.kept.push((name.to_owned(), value.to_owned())),
            "system.posix_acl_access" | "system.posix_acl_default" => {
                self.lost.push(LISTS.to_owned());
                if name == "system.posix_acl_access" {
                    self.group = self.group.or_else(|| group_of_list(value));
                }
            }
            "security.selinux" => self.lost.push("labels of SELinux".to_owned()),
            // Of another system, whose files the image does not become.
            name if name.starts_with("com.apple.") => {}
            name => self.lost.push(format!("the attribute {name}")),
        }
    }

    /// The mode of the entry without its access control list. With one, the place of the group's mode has the list's mask.
    pub(super) fn mode(&self, mode: u32) -> u32 {
        self.group.map_or(mode, |group| mode & !GROUP | group << 3)
    }

    /// Sets the attributes of a file, and notes in `lost` what it did not get.
    pub(super) fn apply(self, place: &Path, name: &[u8], lost: &mut Lost) {
        let mut kinds = self.lost;
        for (attribute, value) in self.kept {
            if setxattr(place, attribute.as_str(), &value, XattrFlags::empty()).is_err() {
                kinds.push(format!("the attribute {attribute}"));
            }
        }
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds {
            let first = || (0, String::from_utf8_lossy(name).into_owned());
            lost.0.entry(kind).or_insert_with(first).0 += 1;
        }
    }
}

impl Lost {
    /// A warning of each kind.
    pub fn warnings(&self) -> Vec<Warning> {
        let line = |(kind, (count, first)): (&String, &(u64, String))| {
            let first = first.escape_debug();
            let others = match count {
                1 => String::new(),
                _ => format!(" and {} more", count - 1),
            };
            let message = format!("{kind} of the recipe's {first}{others}: not kept, for an image cannot have them");
            Warning::new(Code::RecipeAttributes, message)
        };
        self.0.iter().map(line).collect()
    }
}

/// What the owning group may do by an access control list: what its own entry says, within the mask.
fn group_of(list: &str) -> Option<u32> {
    let (mut group, mut mask) = (None, 0o7);
    for entry in list.split([',', '\n']) {
        let mut fields = entry.trim().splitn(3, ':');
        let (Some(tag), Some(""), Some(rights)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let right = |letter: char, bit| {
            if rights.chars().take(3).any(|c| c == letter) {
                bit
            } else {
                0
            }
        };
        let rights = right('r', 4) | right('w', 2) | right('x', 1);
        match tag {
            "group" | "g" => group = Some(rights),
            "mask" | "m" => mask = rights,
            _ => {}
        }
    }
    group.map(|group| group & mask)
}

/// What the owning group may do by a list in the kernel's form (Linux's `posix_acl_xattr.h`): its own rights within the mask.
pub(crate) fn group_of_list(list: &[u8]) -> Option<u32> {
    let (mut group, mut mask) = (None, 0o7);
    for entry in list.get(4..)?.as_chunks::<8>().0 {
        match (entry[0], u32::from(entry[2]) & 0o7) {
            (0x04, rights) => group = Some(rights),
            (0x10, rights) => mask = rights,
            _ => {}
        }
    }
    group.map(|group| group & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_its_own_rights_within_the_mask() {
        for (list, group) in [
            ("user::rw-,user:1:rw-,group::r--,mask::rw-,other::r--", Some(4)),
            ("user::rwx\ngroup::rwx\ngroup:5:rwx\nmask::r-x\nother::---", Some(5)),
            ("user::rw-,group:bin:rw-,other::r--", None),
            ("u::rw-,g::-w-,o::r--", Some(2)),
            ("", None),
        ] {
            assert_eq!(group_of(list), group, "{list}");
        }
        let binary = |entries: &[(u8, u8)]| {
            let entry = |(tag, rights): &(u8, u8)| [*tag, 0, *rights, 0, 0xff, 0xff, 0xff, 0xff];
            let entries = entries.iter().flat_map(entry);
            [2, 0, 0, 0].into_iter().chain(entries).collect::<Vec<u8>>()
        };
        assert_eq!(
            group_of_list(&binary(&[(1, 6), (2, 6), (4, 4), (16, 6), (32, 4)])),
            Some(4)
        );
        assert_eq!(
            group_of_list(&binary(&[(1, 7), (4, 7), (8, 7), (16, 5), (32, 0)])),
            Some(5)
        );
        assert_eq!(group_of_list(&[2, 0]), None);
    }
}
