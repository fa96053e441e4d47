//! Reading files of the root that is built, which is somebody else's: programs of a recipe change it meanwhile.

use std::{
    fs::{File, Metadata},
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    time::SystemTime,
};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};

/// The root directory of an image.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// Opens the directory `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(open(path, flags, Mode::empty())?))
    }

    /// Opens the regular file at `path`, as a process in the root would find it. None when something else is there, a
    /// symbolic link included.
    ///
    /// No link leads out of the root, and nothing but a regular file is ever opened: opening a FIFO would wait for
    /// its other end, and opening a device can do anything.
    pub fn file(&self, path: &Path) -> io::Result<Option<(File, Metadata)>> {
        let place = self.place(path)?;
        if !place.metadata()?.is_file() {
            return Ok(None);
        }
        // A file that is open by its place only can be opened for reading without looking up its name again.
        let by_number = format!("/proc/self/fd/{}", place.as_raw_fd());
        let (file, _) = fs_err::File::open(by_number)?.into_parts();
        let metadata = file.metadata()?;
        Ok(Some((file, metadata)))
    }

    /// When what is at `path` was last modified; a directory is when a name in it is.
    pub fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        self.place(path)?.metadata()?.modified()
    }

    /// What is at `path`, of whatever kind, opened by its place only.
    fn place(&self, path: &Path) -> io::Result<File> {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Ok(File::from(openat2(&self.0, path, how)?))
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::fs::symlink};

    use nix::unistd::mkfifo;

    use super::*;

    fn text_at(root: &Root, path: &str) -> Option<String> {
        let mut text = String::new();
        root.file(Path::new(path)).ok()??.0.read_to_string(&mut text).ok()?;
        Some(text)
    }

    #[test]
    fn links_stay_in_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path();
        fs_err::create_dir_all(top.join("root/usr/bin")).unwrap();
        fs_err::write(top.join("root/usr/bin/tool"), "inside").unwrap();
        fs_err::write(top.join("tool"), "outside").unwrap();
        symlink("usr/bin", top.join("root/bin")).unwrap();
        symlink("/../..", top.join("root/up")).unwrap();
        symlink(top, top.join("root/out")).unwrap();
        let root = Root::open(&top.join("root")).unwrap();
        assert_eq!(text_at(&root, "/bin/tool").as_deref(), Some("inside"));
        assert_eq!(text_at(&root, "/../../usr/bin/tool").as_deref(), Some("inside"));
        assert_eq!(text_at(&root, "/up/usr/bin/tool").as_deref(), Some("inside"));
        assert_eq!(text_at(&root, "/up/tool"), None);
        assert_eq!(text_at(&root, "/out/tool"), None);
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        mkfifo(&dir.path().join("fifo"), Mode::S_IRUSR).unwrap();
        symlink("/fifo", dir.path().join("link")).unwrap();
        symlink("/dev/null", dir.path().join("null")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        for path in ["/fifo", "/link", "/null", "/"] {
            assert!(matches!(root.file(Path::new(path)), Ok(None)), "{path}");
        }
        assert!(root.file(Path::new("/missing")).is_err());
    }
}
