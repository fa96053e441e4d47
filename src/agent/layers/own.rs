//! Finds what a root must not have in common with another one: keys and other secrets that scripts of packages made while
//! it was built. Reads and writes files of the root.
//!
//! The rule: a file that was written since the job began, and that not every user of the image may read, is a secret,
//! unless it is known to have none. A root with a secret that cannot be made anew is never shared. An initrd, which scripts of
//! kernels make, is private as a whole; the rule holds for each file in it that is not one of the root.

use std::{
    io::{self, BufReader, Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use kiln_records::initrd::{Entry, Extent, files};
use uuid::Uuid;

use crate::twins::Root;

/// Files that are private and have no secret of this root.
const KNOWN: [&str; 4] = ["var/log", "var/cache/ldconfig/aux-cache", "etc/subuid-", "etc/subgid-"];

/// Private files that have no secret if their content passes a check.
const CHECKED: [(&str, Check); 8] = [
    ("etc/shadow", has_no_password),
    ("etc/shadow-", has_no_password),
    ("etc/gshadow", has_no_password),
    ("etc/gshadow-", has_no_password),
    ("etc/passwd-", has_no_password),
    ("etc/group-", has_no_password),
    // debconf's answers that are passwords, and the cookies of repositories, as libzypp keeps them.
    ("var/cache/debconf/passwords.dat", has_no_answer),
    ("var/lib/YaST2/cookies", has_no_cookie),
];

/// Whether a file's content has no secret.
type Check = fn(&[u8]) -> bool;

/// The kinds of SSH host keys that a root may have.
const KEYS: [&str; 4] = ["rsa", "ecdsa", "ed25519", "dsa"];

/// The largest file whose content is looked at, in bytes.
const LONGEST: u64 = 1 << 20;

/// What is a root's own.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Own {
    /// Files that are made anew for each root, by their paths in it.
    pub(super) anew: Vec<String>,
    /// Files with what may be secrets.
    pub(super) secrets: Vec<String>,
}

/// The kind of an SSH host key at this path, if it is one.
pub(super) fn kind_of_key(path: &str) -> Option<&str> {
    let kind = path.strip_prefix("etc/ssh/ssh_host_")?.strip_suffix("_key")?;
    KEYS.contains(&kind).then_some(kind)
}

/// Looks for what is the root's own since `begun`, in seconds since 1970, in all but these `others`.
///
/// # Errors
///
/// The root cannot be read.
pub(super) fn find(root: &Path, begun: i64, others: &[PathBuf]) -> io::Result<Own> {
    let mut own = Own::default();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        for entry in fs_err::read_dir(root.join(&dir))? {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            let found = fs_err::symlink_metadata(entry.path())?;
            if others.contains(&path) {
                continue;
            }
            if found.is_dir() {
                dirs.push(path);
                continue;
            }
            if !found.is_file() || found.size() == 0 || found.mode() & 0o004 != 0 || found.mtime() < begun {
                continue;
            }
            let shown = path.to_string_lossy().into_owned();
            if kind_of_key(&shown).is_some() {
                own.anew.push(shown);
            } else if !is_harmless(root, &path, found.size())? && !is_harmless_initrd(root, &path)? {
                own.secrets.push(shown);
            }
        }
    }
    own.anew.sort();
    own.secrets.sort();
    Ok(own)
}

fn is_harmless(root: &Path, path: &Path, size: u64) -> io::Result<bool> {
    if KNOWN.iter().any(|known| path.starts_with(known)) {
        return Ok(true);
    }
    match path.to_str().and_then(check_of) {
        Some(check) if size <= LONGEST => Ok(check(&fs_err::read(root.join(path))?)),
        _ => Ok(false),
    }
}

/// The check of the file at `path` in a root or an initrd, if there is one.
fn check_of(path: &str) -> Option<Check> {
    let known = CHECKED.into_iter().find(|(known, _)| *known == path);
    known.map(|(_, check)| check)
}

/// Whether nobody can log in with a password that a file of accounts has.
fn has_no_password(text: &[u8]) -> bool {
    // crypt(5): a password that is no hash cannot be entered. `x` says that it is in the shadow file.
    let locked = |password: &str| password.bytes().all(|byte| matches!(byte, b'*' | b'!')) || password == "x";
    let text = String::from_utf8_lossy(text);
    let mut passwords = text.lines().filter_map(|line| line.split(':').nth(1));
    passwords.all(locked)
}

/// Whether a file of debconf's answers has none.
fn has_no_answer(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let mut values = text.lines().filter_map(|line| line.strip_prefix("Value:"));
    values.all(|value| value.trim().is_empty())
}

/// Whether a file of curl's cookies has none. Only the mark of a hidden cookie looks like a comment.
fn has_no_cookie(text: &[u8]) -> bool {
    let mut lines = text.split(|byte| *byte == b'\n');
    lines.all(|line| line.trim_ascii().is_empty() || (line.starts_with(b"#") && !line.starts_with(b"#HttpOnly_")))
}

/// Whether this is an initrd in which nothing can be a secret of this root.
fn is_harmless_initrd(root: &Path, path: &Path) -> io::Result<bool> {
    let name = path.strip_prefix("boot").ok().and_then(Path::to_str);
    if !name.is_some_and(|name| name.starts_with("init") && !name.contains('/')) {
        return Ok(false);
    }
    let opened = Root::open(root)?;
    let mut has_secret = false;
    let extent = files(
        &mut BufReader::new(fs_err::File::open(root.join(path))?),
        &mut |entry, content| {
            has_secret = is_secret(&opened, entry, content)?;
            Ok(has_secret)
        },
    );
    // One that cannot be read to its end may have anything.
    Ok(!has_secret && extent.is_ok_and(|extent| extent == Extent::Whole))
}

/// Whether a file of an initrd may be a secret: those that not everybody may read, unless the root has the same, and the
/// root's own name.
fn is_secret(root: &Root, entry: Entry<'_>, content: &mut dyn Read) -> io::Result<bool> {
    const KIND: u32 = 0o170_000;
    const FILE: u32 = 0o100_000;
    let Ok(name) = std::str::from_utf8(entry.name) else {
        return Ok(true);
    };
    let name = name.trim_start_matches("./").trim_start_matches('/');
    let is_name = name == "etc/machine-id";
    if entry.mode & KIND != FILE || entry.size == 0 || (entry.mode & 0o004 != 0 && !is_name) {
        return Ok(false);
    }
    if entry.size > LONGEST {
        return Ok(true);
    }
    let mut text = Vec::new();
    content.read_to_end(&mut text)?;
    if is_name {
        return Ok(text.trim_ascii() != b"uninitialized");
    }
    Ok(match check_of(name) {
        Some(check) => !check(&text),
        None => root.content(Path::new(name), LONGEST) != Some(text),
    })
}

/// Gives a root that was another one's names of its own: those of its machine, and of its installation of zypper.
///
/// # Errors
///
/// A file cannot be written.
pub(super) fn rename(root: &Path) -> io::Result<()> {
    let machine = Uuid::new_v4().simple().to_string();
    let ids = [
        ("etc/machine-id", machine.clone()),
        ("var/lib/dbus/machine-id", machine),
        ("var/lib/zypp/AnonymousUniqueId", Uuid::new_v4().to_string()),
    ];
    for (path, id) in ids {
        let path = root.join(path);
        let Ok(found) = fs_err::symlink_metadata(&path) else {
            continue;
        };
        // Links lead to the file that is written anyway; an empty one, or one that says so, waits for the first boot.
        if !found.is_file() || found.size() > 100 {
            continue;
        }
        let before = fs_err::read_to_string(&path)?;
        if before.trim().len() != id.len() {
            continue;
        }
        let end = if before.ends_with('\n') { "\n" } else { "" };
        // In place, so that owner and mode stay.
        let mut file = fs_err::OpenOptions::new().write(true).truncate(true).open(&path)?;
        file.write_all(format!("{id}{end}").as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    fn root(files: &[(&str, u32, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, mode, content) in files {
            let path = root.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(&path, content).unwrap();
            fs_err::set_permissions(&path, Permissions::from_mode(*mode)).unwrap();
        }
        root
    }

    #[test]
    fn what_is_private_and_new_is_a_secret_unless_it_is_known() {
        let root = root(&[
            ("etc/passwd", 0o644, "root:x:0:0"),
            ("etc/munge/munge.key", 0o400, "random"),
            ("etc/empty", 0o600, ""),
            ("etc/shadow", 0o640, "root:*:1::\ndaemon:!*:1::\n"),
            ("etc/gshadow", 0o640, "root:*::\n"),
            ("etc/shadow-", 0o600, "root:$y$j9T$x:1::\n"),
            ("etc/ssh/ssh_host_ed25519_key", 0o600, "key"),
            ("etc/ssh/ssh_host_ed25519_key.pub", 0o644, "public"),
            ("etc/ssh/ssh_host_new_key", 0o600, "key"),
            ("var/log/apt/term.log", 0o640, "Setting up"),
            ("var/cache/debconf/passwords.dat", 0o600, "Name: a\nValue: \n"),
            ("proc/secret", 0o600, "not the root's"),
        ]);
        let own = find(root.path(), 1, &[PathBuf::from("proc")]).unwrap();
        assert_eq!(own.anew, ["etc/ssh/ssh_host_ed25519_key"]);
        assert_eq!(
            own.secrets,
            ["etc/munge/munge.key", "etc/shadow-", "etc/ssh/ssh_host_new_key"]
        );
        // What a package brought is older than the job.
        assert_eq!(find(root.path(), i64::MAX, &[]).unwrap(), Own::default());
    }

    /// An archive in cpio's "new" format, of regular files.
    fn archive(files: &[(&str, u32, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, mode, content) in files.iter().chain(&[("TRAILER!!!", 0, "")]) {
            let [size, length] = [content.len(), name.len() + 1];
            let mode = 0o100_000 | mode;
            let header = format!(
                "070701{:08x}{mode:08x}{:032x}{size:08x}{:032x}{length:08x}{:08x}",
                0,
                1_u64 << 32,
                0,
                0
            );
            bytes.extend(format!("{header}{name}\0").bytes());
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend(content.bytes());
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn an_initrd_is_private_as_a_whole_and_has_no_secret() {
        let harmless = [
            ("etc/plain", 0o644, "made by dracut"),
            ("./etc/munge.conf", 0o640, "the package's"),
            ("etc/shadow", 0o600, "root:*:1::\n"),
            ("etc/machine-id", 0o444, "uninitialized\n"),
        ];
        let secrets_of = |initrd: &str, content: &[u8]| {
            let root = root(&[("etc/munge.conf", 0o644, "the package's"), (initrd, 0o600, "")]);
            fs_err::write(root.path().join(initrd), content).unwrap();
            find(root.path(), 1, &[]).unwrap().secrets
        };
        let with = |more| archive(&[&harmless[..], &[more]].concat());
        let none: [&str; 0] = [];
        assert_eq!(secrets_of("boot/initrd-6.4", &archive(&harmless)), none);
        assert_eq!(secrets_of("boot/initramfs-6.4.img", &archive(&harmless)), none);
        let is_secret = |content: &[u8]| secrets_of("boot/initrd-6.4", content) == ["boot/initrd-6.4"];
        assert!(is_secret(&with(("root/.ssh/id_ed25519", 0o600, "key"))));
        assert!(is_secret(&with(("etc/munge.conf", 0o640, "another"))));
        assert!(is_secret(&with(("etc/shadow", 0o600, "root:$y$j9T$x:1::\n"))));
        assert!(is_secret(&with((
            "etc/machine-id",
            0o444,
            "0123456789abcdef0123456789abcdef"
        ))));
        // What cannot be read to its end, and what lies elsewhere.
        let whole = archive(&harmless);
        assert!(is_secret(&whole[..whole.len() / 2]) && is_secret(b"what may that be") && is_secret(&[0x28, 0xb5]));
        assert_eq!(secrets_of("srv/initrd-6.4", &whole), ["srv/initrd-6.4"]);
    }

    #[test]
    fn cookies_of_a_repository_are_secrets() {
        let is_secret = |text: &str| {
            !find(root(&[("var/lib/YaST2/cookies", 0o600, text)]).path(), 1, &[])
                .unwrap()
                .secrets
                .is_empty()
        };
        let none = "# Netscape HTTP Cookie File\n# This file was generated by libcurl!\n\n";
        assert!(!is_secret(none));
        for cookie in [
            ".h\tTRUE\t/\tFALSE\t0\tid\tx\n",
            "#HttpOnly_.h\tTRUE\t/\tFALSE\t0\tid\tx\n",
        ] {
            assert!(is_secret(&format!("{none}{cookie}")), "{cookie}");
        }
    }

    #[test]
    fn an_asked_password_is_a_secret() {
        let root = root(&[("var/cache/debconf/passwords.dat", 0o600, "Name: a\nValue: secret\n")]);
        assert_eq!(
            find(root.path(), 1, &[]).unwrap().secrets,
            ["var/cache/debconf/passwords.dat"]
        );
    }

    #[test]
    fn each_root_has_its_own_name() {
        let old = "0123456789abcdef0123456789abcdef\n";
        let root = root(&[("etc/machine-id", 0o444, old), ("var/lib/dbus/machine-id", 0o644, "")]);
        rename(root.path()).unwrap();
        let read = |path: &str| fs_err::read_to_string(root.path().join(path)).unwrap();
        let new = read("etc/machine-id");
        assert!(new != old && new.len() == old.len(), "{new}");
        assert_eq!(read("var/lib/dbus/machine-id"), "");
    }
}
