//! Prepares an image's root for work in it, and afterwards restores everything except the changes made by that work.
//! Mounts in the root, and changes files of it.
//!
//! ```text
//!  ROOT/proc, /sys, /dev     the sandbox's own, mounted
//!  ROOT/etc/resolv.conf      the sandbox's, so that names are found
//!  ROOT/etc/cray/ca          the authorities that the sandbox trusts, where IMS has them
//! ```
//!
//! None of this is packaged: the original entries are restored with their owners, times and links.

use std::{
    fs::Permissions,
    io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use kiln_inside::room::{mounted_below, remove_tree};
use kiln_records::{Failure, Warning};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::{
        stat::{UtimensatFlags, utimensat},
        time::TimeSpec,
    },
};

use serde::{Deserialize, Serialize};

use super::{events::Events, process::blocking, processes};

/// The mounts over the root's own directories.
const MOUNTS: [&str; 3] = ["proc", "sys", "dev"];

/// The file of name servers.
const RESOLVER: &str = "etc/resolv.conf";

/// A root that is open for work.
#[derive(Debug, Serialize, Deserialize)]
pub struct OpenRoot {
    root: PathBuf,
    /// The directory for entries that were replaced.
    aside: PathBuf,
    inserted: Vec<Inserted>,
    /// Mode and owner of the root directory itself, if sshd would reject them.
    top: Option<(u32, u32, u32)>,
}

/// An entry that is in a root temporarily.
#[derive(Debug, Serialize, Deserialize)]
struct Inserted {
    path: PathBuf,
    /// The original entry, if there was one.
    before: Option<PathBuf>,
    is_dir: bool,
    /// What it has, if a program's own version of it is to stay.
    content: Option<Vec<u8>>,
}

impl OpenRoot {
    /// Opens a root. `aside` is a directory on the same file system, which is emptied.
    ///
    /// # Errors
    ///
    /// A mount or a file cannot be made. The root is unchanged then.
    pub fn open(root: &Path, aside: &Path, authorities: Option<&str>) -> Result<Self, Failure> {
        let mut open = Self {
            root: root.to_owned(),
            aside: aside.to_owned(),
            inserted: Vec::new(),
            top: None,
        };
        let opened = open.furnish(authorities);
        match opened {
            Ok(()) => Ok(open),
            Err(error) => {
                // No work is in it that a warning could save.
                open.restore()?;
                Err(Failure::io("cannot prepare the root for work", &error))
            }
        }
    }

    fn furnish(&mut self, authorities: Option<&str>) -> io::Result<()> {
        remake(&self.aside)?;
        self.guard_top()?;
        for name in MOUNTS {
            let (from, at) = (Path::new("/").join(name), self.root.join(name));
            self.dir(&at)?;
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(&from), &at, None::<&str>, flags, None::<&str>)?;
            // An unmount inside the root must not propagate to the sandbox.
            mount(
                None::<&str>,
                &at,
                None::<&str>,
                MsFlags::MS_PRIVATE | MsFlags::MS_REC,
                None::<&str>,
            )?;
        }
        if is_dir(&self.root.join("etc")) {
            let resolver = fs_err::read("/etc/resolv.conf").unwrap_or_default();
            self.file(RESOLVER, &resolver)?;
            // Whoever installs another manager of networks, or writes this file, means the image.
            if let Some(inserted) = self.inserted.last_mut() {
                inserted.content = Some(resolver);
            }
        }
        let known = self.root.join("etc/cray/ca/certificate_authority.crt");
        if let Some(authorities) = authorities
            && is_dir(&self.root.join("etc"))
            && fs_err::symlink_metadata(known).is_err()
        {
            self.dir(&self.root.join("etc/cray"))?;
            self.dir(&self.root.join("etc/cray/ca"))?;
            self.file("etc/cray/ca/certificate_authority.crt", authorities.as_bytes())?;
        }
        Ok(())
    }

    /// Gives the root an owner and mode with which sshd accepts it as a jail.
    fn guard_top(&mut self) -> io::Result<()> {
        let found = fs_err::symlink_metadata(&self.root)?;
        let (mode, uid, gid) = (found.mode() & 0o7777, found.uid(), found.gid());
        if uid != 0 || mode & 0o022 != 0 {
            self.top = Some((mode, uid, gid));
            fs_err::os::unix::fs::chown(&self.root, Some(0), None)?;
            fs_err::set_permissions(&self.root, Permissions::from_mode(mode & !0o022))?;
        }
        Ok(())
    }

    /// Puts a file into the root, at a path without links, for as long as it is open.
    pub fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        let path = self.root.join(path);
        let mut before = None;
        if fs_err::symlink_metadata(&path).is_ok() {
            let aside = self.aside.join(self.inserted.len().to_string());
            quietly(&path, || fs_err::rename(&path, &aside))?;
            before = Some(aside);
        }
        self.inserted.push(Inserted {
            path: path.clone(),
            before,
            is_dir: false,
            content: None,
        });
        quietly(&path, || fs_err::write(&path, content))
    }

    /// Makes sure that a directory exists for as long as the root is open.
    pub fn dir(&mut self, path: &Path) -> io::Result<()> {
        if is_dir(path) {
            return Ok(());
        }
        if fs_err::symlink_metadata(path).is_ok() {
            let text = format!("{} is in the image and is not a directory", path.display());
            return Err(io::Error::other(text));
        }
        quietly(path, || fs_err::create_dir(path))?;
        self.inserted.push(Inserted {
            path: path.to_owned(),
            before: None,
            is_dir: true,
            content: None,
        });
        Ok(())
    }

    /// Notes what is in the root, so that [`OpenRoot::recover`] can restore it if this agent dies.
    pub fn note(&self, at: &Path) -> io::Result<()> {
        fs_err::write(at, serde_json::to_vec(self)?)
    }

    /// Restores a root that the agent of another sandbox has left open, from what that has noted. Mounts have gone with
    /// the sandbox. A root that was restored already stays as it is.
    ///
    /// # Errors
    ///
    /// Something is mounted in the root, or what was noted cannot be read.
    pub fn recover(noted: &Path) -> Result<Vec<Warning>, Failure> {
        let failed = |error: io::Error| Failure::io("cannot restore the root of another sandbox", &error);
        let text = fs_err::read(noted).map_err(failed)?;
        let open: Self = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        open.restore()
    }

    /// Ends all other processes in the sandbox, and restores the root. Warns of what was not restored: somebody's work is not
    /// lost for a file that cannot be put back.
    ///
    /// # Errors
    ///
    /// Something goes on in the root, or is mounted in it: the root must not be packaged then.
    pub async fn close(self, events: &Events) -> Result<(), Failure> {
        processes::end_all().await?;
        for warning in blocking(move || self.restore()).await? {
            events.warn(warning).await;
        }
        Ok(())
    }

    fn restore(mut self) -> Result<Vec<Warning>, Failure> {
        unmount_below(&self.root).map_err(|error| Failure::io("cannot restore the root", &error))?;
        let mut warnings = Vec::new();
        let mut note = |what: &Path, done: io::Result<()>| {
            if let Err(error) = done {
                let failure = Failure::io(format_args!("cannot restore {} as it was", what.display()), &error);
                warnings.push(Warning::of(&failure, &failure));
            }
        };
        while let Some(inserted) = self.inserted.pop() {
            note(&inserted.path, take_back(&inserted));
        }
        if let Some((mode, uid, gid)) = self.top {
            let restored = fs_err::os::unix::fs::chown(&self.root, Some(uid), Some(gid))
                .and_then(|()| fs_err::set_permissions(&self.root, Permissions::from_mode(mode)));
            note(&self.root, restored);
        }
        note(&self.aside, super::outputs::remove(&self.aside));
        Ok(warnings)
    }
}

fn take_back(inserted: &Inserted) -> io::Result<()> {
    let Inserted {
        path,
        before,
        is_dir,
        content,
    } = inserted;
    if content.as_ref().is_some_and(|content| !is_still(path, content)) {
        return Ok(());
    }
    quietly(path, || {
        match fs_err::symlink_metadata(path) {
            Err(_) => {}
            // A directory with files of the user's belongs to the user now.
            Ok(_) if *is_dir => drop(fs_err::remove_dir(path)),
            Ok(found) if found.is_dir() => remove_tree(path)?,
            Ok(_) => fs_err::remove_file(path)?,
        }
        match before {
            Some(before) if path.parent().is_some_and(Path::exists) => fs_err::rename(before, path),
            _ => Ok(()),
        }
    })
}

/// Whether a path is a regular file with this content.
fn is_still(path: &Path, content: &[u8]) -> bool {
    fs_err::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == content.len() as u64)
        && fs_err::read(path).is_ok_and(|read| read == content)
}

/// Changes an entry of a directory, whose times are preserved.
pub fn quietly(path: &Path, change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let parent = path.parent().unwrap_or(path);
    let Ok(found) = fs_err::symlink_metadata(parent) else {
        return change();
    };
    change()?;
    let (read, written) = (
        TimeSpec::new(found.atime(), found.atime_nsec()),
        TimeSpec::new(found.mtime(), found.mtime_nsec()),
    );
    utimensat(
        nix::fcntl::AT_FDCWD,
        parent,
        &read,
        &written,
        UtimensatFlags::NoFollowSymlink,
    )?;
    Ok(())
}

fn is_dir(path: &Path) -> bool {
    fs_err::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

fn remake(dir: &Path) -> io::Result<()> {
    remove_tree(dir)?;
    fs_err::create_dir(dir)
}

/// Unmounts everything below a directory, last mounts first.
fn unmount_below(root: &Path) -> io::Result<()> {
    let root = fs_err::canonicalize(root)?;
    let places = mounted_below(&root)?;
    for place in places.into_iter().rev().filter(|place| *place != root) {
        // Detaching a mount also removes mounts on top of it; those are then no longer mounts.
        match umount2(&place, MntFlags::MNT_DETACH) {
            Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn opened(root: &Path, aside: &Path) -> OpenRoot {
        remake(aside).unwrap();
        OpenRoot {
            root: root.to_owned(),
            aside: aside.to_owned(),
            inserted: Vec::new(),
            top: None,
        }
    }

    fn put_back(mut open: OpenRoot) {
        while let Some(inserted) = open.inserted.pop() {
            take_back(&inserted).unwrap();
        }
    }

    #[test]
    fn what_was_in_the_way_comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (root, aside) = (dir.path().join("root"), dir.path().join("aside"));
        fs_err::create_dir_all(root.join("etc")).unwrap();
        symlink("../run/stub-resolv.conf", root.join("etc/resolv.conf")).unwrap();
        let long_ago = TimeSpec::new(1_000_000, 5);
        utimensat(
            nix::fcntl::AT_FDCWD,
            &root.join("etc"),
            &long_ago,
            &long_ago,
            UtimensatFlags::NoFollowSymlink,
        )
        .unwrap();
        let before = fs_err::symlink_metadata(root.join("etc/resolv.conf")).unwrap();

        let mut open = opened(&root, &aside);
        open.file("etc/resolv.conf", b"nameserver 10.0.0.1\n").unwrap();
        open.dir(&root.join("etc/cray")).unwrap();
        open.file("etc/cray/x", b"x").unwrap();
        assert_eq!(
            fs_err::read(root.join("etc/resolv.conf")).unwrap(),
            b"nameserver 10.0.0.1\n"
        );
        put_back(open);

        let after = fs_err::symlink_metadata(root.join("etc/resolv.conf")).unwrap();
        assert_eq!((after.ino(), after.mtime_nsec()), (before.ino(), before.mtime_nsec()));
        assert!(after.is_symlink() && !root.join("etc/cray").exists());
        let etc = fs_err::metadata(root.join("etc")).unwrap();
        assert_eq!((etc.mtime(), etc.mtime_nsec()), (1_000_000, 5));
    }

    #[test]
    fn a_file_of_name_servers_that_users_write_stays() {
        for (own, changed) in [(true, false), (false, false), (true, true), (false, true)] {
            let dir = tempfile::tempdir().unwrap();
            let (root, aside) = (dir.path().join("root"), dir.path().join("aside"));
            fs_err::create_dir_all(root.join("etc")).unwrap();
            let place = root.join(RESOLVER);
            if own {
                fs_err::write(&place, "of the image").unwrap();
            }
            let mut open = opened(&root, &aside);
            open.file(RESOLVER, b"of the sandbox").unwrap();
            open.inserted.last_mut().unwrap().content = Some(b"of the sandbox".to_vec());
            if changed {
                fs_err::remove_file(&place).unwrap();
                symlink("../run/of the user", &place).unwrap();
            }
            put_back(open);
            let is_link = fs_err::symlink_metadata(&place).is_ok_and(|found| found.is_symlink());
            assert_eq!((place.exists(), is_link), (own && !changed, changed), "{own} {changed}");
        }
    }

    #[test]
    fn what_users_did_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (root, aside) = (dir.path().join("root"), dir.path().join("aside"));
        fs_err::create_dir_all(root.join("etc")).unwrap();
        let mut open = opened(&root, &aside);
        open.file("etc/resolv.conf", b"").unwrap();
        open.dir(&root.join("etc/cray")).unwrap();
        fs_err::write(root.join("etc/cray/mine"), "").unwrap();
        put_back(open);
        assert!(!root.join("etc/resolv.conf").exists());
        assert!(root.join("etc/cray/mine").exists());
    }
}
