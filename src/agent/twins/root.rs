//! Reads files of a root, which is not trusted: its programs may change it at any time. Opens regular files for
//! reading only.

use std::{
    ffi::OsString,
    fs::{File, Metadata},
    io::{self, Read},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    time::SystemTime,
};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};

/// The path of an open file, which leads to that file whatever became of its name.
pub(crate) fn by_fd(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The root directory of an image.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// Opens the directory `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(open(path, flags, Mode::empty())?))
    }

    /// Opens the regular file at `path`, as a process in the root would find it. `None` for anything else, including a
    /// symbolic link.
    ///
    /// Links cannot lead out of the root, and only regular files are ever opened: opening a FIFO would wait for its
    /// other end, and opening a device can have any effect.
    pub fn file(&self, path: &Path) -> io::Result<Option<(File, Metadata)>> {
        Self::opened(&self.place(path, OFlag::O_NOFOLLOW)?)
    }

    /// Opens a found file, if it is a regular one.
    fn opened(place: &File) -> io::Result<Option<(File, Metadata)>> {
        if !place.metadata()?.is_file() {
            return Ok(None);
        }
        // A descriptor that refers to a path only can be reopened for reading without another lookup of the name.
        let (file, _) = fs_err::File::open(by_fd(place))?.into_parts();
        let metadata = file.metadata()?;
        Ok(Some((file, metadata)))
    }

    /// The content of the regular file at `path`, following links within the root. `None` if it does not exist or has
    /// more than `most` bytes.
    pub fn content(&self, path: &Path, most: u64) -> Option<Vec<u8>> {
        let (file, _) = Self::opened(&self.place(path, OFlag::empty()).ok()?).ok()??;
        let mut bytes = Vec::new();
        let read = file.take(most + 1).read_to_end(&mut bytes).ok()? as u64;
        (read <= most).then_some(bytes)
    }

    /// [`Root::content`] as text; invalid UTF-8 is replaced.
    pub fn text(&self, path: &Path, most: u64) -> Option<String> {
        let bytes = self.content(path, most)?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The names in the directory at `path`, following links within the root, sorted; empty if it does not exist.
    pub fn names(&self, path: &Path) -> Vec<OsString> {
        let listed = self
            .place(path, OFlag::empty())
            .and_then(|dir| fs_err::read_dir(by_fd(&dir)));
        let mut names: Vec<_> = listed
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        names.sort_unstable();
        names
    }

    /// The path of a directory, without the leading `/`, once all links in it are followed within the root.
    pub fn real(&self, path: &Path) -> Option<PathBuf> {
        let top = fs_err::read_link(by_fd(&self.0)).ok()?;
        // An empty path has no file.
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let place = self.place(path, OFlag::O_DIRECTORY).ok()?;
        let real = fs_err::read_link(by_fd(&place)).ok()?;
        real.strip_prefix(top).ok().map(Path::to_owned)
    }

    /// The modification time of `path`; a directory changes with the names in it.
    pub fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        self.place(path, OFlag::O_NOFOLLOW)?.metadata()?.modified()
    }

    /// A file of any kind at `path`, opened as a reference only.
    fn place(&self, path: &Path, links: OFlag) -> io::Result<File> {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | links | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Ok(File::from(openat2(&self.0, path, how)?))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::unistd::mkfifo;

    use super::*;

    fn text_at(root: &Root, path: &str) -> Option<String> {
        root.text(Path::new(path), 6)
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
        assert_eq!(root.names(Path::new("/up/bin")), ["tool"]);
        let real = |path: &str| root.real(Path::new(path));
        assert_eq!(real("bin"), Some("usr/bin".into()));
        assert_eq!(
            (real(""), real("up"), real("out")),
            (Some("".into()), Some("".into()), None)
        );
        assert!(root.names(Path::new("/out")).is_empty() && root.names(Path::new("/bin/tool")).is_empty());
        fs_err::write(top.join("root/long"), "7 bytes").unwrap();
        assert_eq!(text_at(&root, "/long"), None);
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
