//! Looks at the directories and links at the top of a root. Reads the root.

use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::Finished;

/// Directories that every account must be able to enter.
const OPEN: [&str; 8] = ["", "etc", "usr", "usr/bin", "usr/lib", "usr/sbin", "usr/share", "var"];

/// Directories that every account writes to.
const SHARED: [&str; 2] = ["tmp", "var/tmp"];

/// Names at the top that are links into `/usr` in distributions with a merged `/usr`.
const MERGED: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

fn mode(path: &Path) -> Option<u32> {
    let found = fs_err::symlink_metadata(path).ok()?;
    found.is_dir().then(|| found.mode() & 0o7777)
}

/// Directories with modes that make a node useless, or let everybody change it.
pub(super) fn modes(finished: &Finished) -> Vec<String> {
    let mut found = Vec::new();
    for name in OPEN {
        let Some(mode) = mode(&finished.root.join(name)) else {
            continue;
        };
        if mode & 0o005 != 0o005 {
            found.push(format!(
                "/{name} has mode {mode:04o}: only some accounts can use what is in it"
            ));
        } else if mode & 0o002 != 0 {
            found.push(format!(
                "/{name} has mode {mode:04o}: every account can change what is in it"
            ));
        }
    }
    for name in SHARED {
        if let Some(mode) = mode(&finished.root.join(name)).filter(|mode| mode & 0o1777 != 0o1777) {
            found.push(format!("/{name} has mode {mode:04o} and not 1777"));
        }
    }
    found
}

/// Regular files in the places of devices: what a script wrote where no device was.
pub(super) fn devices(finished: &Finished) -> Vec<String> {
    let Some(_) = mode(&finished.root.join("dev")) else {
        return Vec::new();
    };
    let mut names: Vec<_> = fs_err::read_dir(finished.root.join("dev"))
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    let say = |name: std::ffi::OsString| format!("/dev/{} is a regular file, and no device", name.display());
    names.into_iter().map(say).collect()
}

/// Links of the distribution that have become directories.
pub(super) fn links(finished: &Finished) -> Vec<String> {
    let at = |name: &str| finished.root.join(name);
    let leads_to_usr = |name: &str| {
        let target = fs_err::read_link(at(name)).unwrap_or_default();
        target == PathBuf::from("usr").join(name) || target == PathBuf::from("/usr").join(name)
    };
    let mut found = Vec::new();
    // In a root without merged /usr, all of these are directories.
    if MERGED.iter().any(|name| leads_to_usr(name)) {
        for name in MERGED {
            if mode(&at(name)).is_some() && mode(&at("usr").join(name)).is_some() {
                found.push(format!(
                    "/{name} is a directory beside /usr/{name}, where this distribution has a link to it"
                ));
            }
        }
    }
    // systemd mounts /run, and everything else looks for it there.
    let has_systemd = ["usr/lib/systemd/systemd", "lib/systemd/systemd"]
        .iter()
        .any(|path| fs_err::symlink_metadata(at(path)).is_ok());
    for (name, target) in [("var/run", "/run"), ("var/lock", "/run/lock")] {
        let has_content = |path: &Path| -> io::Result<bool> { Ok(fs_err::read_dir(path)?.next().is_some()) };
        let place = at(name);
        if has_systemd && mode(&place).is_some() && has_content(&place).unwrap_or(true) {
            found.push(format!(
                "/{name} is a directory, where programs expect a link to {target}"
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt, os::unix::fs::symlink};

    use kiln_records::arch::Arch;

    use super::*;

    fn root() -> (tempfile::TempDir, Finished) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for name in ["etc", "usr/bin", "usr/lib/systemd", "usr/sbin", "var", "dev", "tmp"] {
            fs_err::create_dir_all(root.join(name)).unwrap();
        }
        fs_err::write(root.join("usr/lib/systemd/systemd"), "").unwrap();
        for name in ["bin", "lib", "sbin"] {
            symlink(format!("usr/{name}"), root.join(name)).unwrap();
        }
        symlink("/run", root.join("var/run")).unwrap();
        chmod(root, "", 0o755);
        chmod(root, "tmp", 0o1777);
        let finished = Finished::new(root.to_owned(), Arch::X86_64, None);
        (dir, finished)
    }

    fn chmod(root: &Path, name: &str, mode: u32) {
        fs_err::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_root_as_distributions_make_it_is_right() {
        let (_dir, finished) = root();
        for look in [modes, devices, links] {
            assert_eq!(look(&finished), Vec::<String>::new());
        }
    }

    #[test]
    fn modes_for_some_and_for_all_are_found() {
        let (dir, finished) = root();
        for (name, mode) in [("etc", 0o700), ("usr", 0o777), ("", 0o750), ("tmp", 0o755)] {
            chmod(dir.path(), name, mode);
        }
        let found = modes(&finished);
        let wanted = [
            "/ has mode 0750",
            "/etc has mode 0700",
            "/usr has mode 0777",
            "/tmp has mode 0755",
        ];
        assert_eq!(found.len(), wanted.len(), "{found:?}");
        for (found, wanted) in found.iter().zip(wanted) {
            assert!(found.starts_with(wanted), "{found}");
        }
    }

    #[test]
    fn files_for_devices_are_found() {
        let (dir, finished) = root();
        fs_err::write(dir.path().join("dev/null"), "lost").unwrap();
        symlink("/proc/self/fd", dir.path().join("dev/fd")).unwrap();
        assert_eq!(devices(&finished), ["/dev/null is a regular file, and no device"]);
    }

    #[test]
    fn directories_for_links_are_found() {
        let (dir, finished) = root();
        let root = dir.path();
        fs_err::remove_file(root.join("lib")).unwrap();
        fs_err::remove_file(root.join("var/run")).unwrap();
        fs_err::create_dir_all(root.join("lib/modules")).unwrap();
        fs_err::create_dir_all(root.join("var/run/site")).unwrap();
        let found = links(&finished);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("/lib is a directory") && found[1].starts_with("/var/run is"),
            "{found:?}"
        );
        // All of them are directories where /usr is not merged.
        for name in ["bin", "sbin"] {
            fs_err::remove_file(root.join(name)).unwrap();
            fs_err::create_dir(root.join(name)).unwrap();
        }
        assert_eq!(links(&finished).len(), 1);
    }
}
