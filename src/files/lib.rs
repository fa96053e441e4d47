//! Opens and reads files that others bring: in directories, on sticks, in archives that were unpacked. Reads files only.
//!
//! Such a file may be a link to anywhere, a device that never ends, or a fifo that nobody writes to. So only regular files are
//! opened, without waiting; of a directory that somebody names, only those within it; and no more is read than the caller
//! can use.

use std::{
    io::{self, Read},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, fcntl_setfl, openat, openat2},
    io::Errno,
};

/// A regular file that a user names. Links to it are followed.
///
/// # Errors
///
/// It cannot be opened, or is anything else.
pub fn open(path: &Path) -> io::Result<fs_err::File> {
    let opened = openat(CWD, path, FLAGS, Mode::empty());
    regular(opened.map_err(|errno| named(path, errno))?, path)
}

/// A regular file in a directory that a user names, by its path there. Links within the directory are followed, and none that leads out
/// of it.
///
/// # Errors
///
/// It cannot be opened, is anything else, or is not within the directory ([`leads_out`]).
pub fn open_beneath(dir: &Path, file: &Path) -> io::Result<fs_err::File> {
    let path = dir.join(file);
    let failed = |errno| named(&path, errno);
    let top = openat(
        CWD,
        dir,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let top = top.map_err(failed)?;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let opened = match openat2(&top, file, FLAGS, Mode::empty(), within) {
        // Linux has it since 5.6, and filters of system calls may not.
        Err(Errno::NOSYS | Errno::PERM) => open_and_look(&top, file),
        opened => opened,
    };
    regular(opened.map_err(failed)?, &path)
}

/// The content of a regular file that a user names.
///
/// # Errors
///
/// As [`open`], and `FileTooLarge` when it has more than `most` bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    bounded(open(path)?, most)
}

/// The content of a regular file in a directory that a user names.
///
/// # Errors
///
/// As [`open_beneath`], and `FileTooLarge` when it has more than `most` bytes.
pub fn read_beneath(dir: &Path, file: &Path, most: u64) -> io::Result<Vec<u8>> {
    bounded(open_beneath(dir, file)?, most)
}

/// The content of a file that a user names as an option's value, such as a key: also a fifo, as `<(…)` of a shell is one, which is
/// waited for.
///
/// # Errors
///
/// It cannot be read, is a directory or a device, or has more than `most` bytes.
pub fn read_given(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    if fs_err::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        // Opening a fifo waits for who writes to it.
        return bounded(fs_err::File::open(path)?, most);
    }
    read(path, most)
}

/// [`read_given`], as text.
///
/// # Errors
///
/// As [`read_given`], and `InvalidData` when it is not UTF-8.
pub fn read_given_text(path: &Path, most: u64) -> io::Result<String> {
    let bytes = read_given(path, most)?;
    String::from_utf8(bytes).map_err(|_| {
        let text = format!("{} is not UTF-8", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// Whether a file was not opened since it is not within its directory.
pub fn leads_out(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<LeadsOut>)
}

const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// A path that does not stay in its directory.
#[derive(Debug)]
struct LeadsOut(PathBuf);

impl std::fmt::Display for LeadsOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} leads out of its directory", self.0.display())
    }
}

impl std::error::Error for LeadsOut {}

fn named(path: &Path, errno: Errno) -> io::Error {
    let error = io::Error::from(errno);
    match errno {
        Errno::XDEV => io::Error::new(error.kind(), LeadsOut(path.to_owned())),
        _ => io::Error::new(error.kind(), format!("{}: {error}", path.display())),
    }
}

/// Opens what is there, and then looks where it is.
fn open_and_look(top: &OwnedFd, file: &Path) -> Result<OwnedFd, Errno> {
    if file.is_absolute() {
        return Err(Errno::XDEV);
    }
    // Nothing happens to what is only a reference: opening a device may do something to it.
    let place = openat(top, file, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let shown = |fd: &OwnedFd| fs_err::read_link(by_fd(fd)).map_err(|_| Errno::NOSYS);
    if !shown(&place)?.starts_with(shown(top)?) {
        return Err(Errno::XDEV);
    }
    openat(CWD, by_fd(&place), FLAGS, Mode::empty())
}

fn by_fd(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn regular(opened: OwnedFd, path: &Path) -> io::Result<fs_err::File> {
    let file = fs_err::File::from_parts(std::fs::File::from(opened), path);
    let kind = file.metadata()?.file_type();
    if !kind.is_file() {
        let what = match () {
            () if kind.is_dir() => {
                return Err(io::Error::new(
                    io::ErrorKind::IsADirectory,
                    not_a_file(path, "a directory"),
                ));
            }
            () if kind.is_fifo() => "a fifo",
            () if kind.is_socket() => "a socket",
            () => "a device",
        };
        return Err(io::Error::new(io::ErrorKind::InvalidInput, not_a_file(path, what)));
    }
    // Some file systems heed it also for regular files.
    fcntl_setfl(file.file(), OFlags::empty()).map_err(|errno| named(path, errno))?;
    Ok(file)
}

fn not_a_file(path: &Path, what: &str) -> String {
    format!("{} is {what}, not a file", path.display())
}

fn bounded(file: fs_err::File, most: u64) -> io::Result<Vec<u8>> {
    let path = file.path().to_owned();
    let mut content = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        let text = format!("{} has more than {most} bytes", path.display());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::{sys::stat::Mode as Permissions, unistd::mkfifo};

    use super::*;

    fn kind(read: io::Result<Vec<u8>>) -> io::ErrorKind {
        read.unwrap_err().kind()
    }

    #[test]
    fn only_regular_files_are_read_and_no_more_of_them_than_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs_err::write(at("six"), "123456").unwrap();
        mkfifo(&at("fifo"), Permissions::S_IRWXU).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        symlink("six", at("link")).unwrap();
        for read in [read, read_given] {
            assert_eq!(read(&at("link"), 6).unwrap(), b"123456");
            assert_eq!(kind(read(&at("six"), 5)), io::ErrorKind::FileTooLarge);
            assert_eq!(kind(read(&at("zero"), 5)), io::ErrorKind::InvalidInput);
            assert_eq!(kind(read(dir.path(), 5)), io::ErrorKind::IsADirectory);
            assert_eq!(kind(read(&at("gone"), 5)), io::ErrorKind::NotFound);
        }
        assert_eq!(kind(read(&at("fifo"), 5)), io::ErrorKind::InvalidInput);
        let said = read(&at("fifo"), 5).unwrap_err().to_string();
        assert_eq!(said, format!("{} is a fifo, not a file", at("fifo").display()));
    }

    #[test]
    fn a_given_fifo_is_read_up_to_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mkfifo(&fifo, Permissions::S_IRWXU).unwrap();
        for (text, read) in [("secret", Some("secret")), ("much more than that", None)] {
            let writer = std::thread::spawn({
                let fifo = fifo.clone();
                move || fs_err::write(fifo, text)
            });
            assert_eq!(read_given_text(&fifo, 6).ok().as_deref(), read);
            let _ = writer.join();
        }
    }

    #[test]
    fn links_stay_in_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs_err::create_dir_all(top.join("in")).unwrap();
        fs_err::write(top.join("in/file"), "inside").unwrap();
        fs_err::write(dir.path().join("other"), "outside").unwrap();
        for (target, link) in [("in/file", "fine"), ("../in/file", "in/also"), ("../other", "up")] {
            symlink(target, top.join(link)).unwrap();
        }
        symlink(dir.path().join("other"), top.join("away")).unwrap();
        symlink("..", top.join("over")).unwrap();
        let fd = openat(CWD, &top, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for (name, content) in [("in/file", true), ("fine", true), ("in/also", true)] {
            assert_eq!(read_beneath(&top, Path::new(name), 9).is_ok(), content, "{name}");
            assert!(open_and_look(&fd, Path::new(name)).is_ok(), "{name}");
        }
        for name in ["up", "away", "over/other", "../other"] {
            let error = read_beneath(&top, Path::new(name), 9).unwrap_err();
            assert!(leads_out(&error), "{name}: {error}");
            assert_eq!(open_and_look(&fd, Path::new(name)).unwrap_err(), Errno::XDEV, "{name}");
        }
        let absolute = top.join("in/file");
        assert!(leads_out(&open_beneath(&top, &absolute).unwrap_err()));
        let gone = open_beneath(&top, Path::new("gone")).unwrap_err();
        assert!(gone.kind() == io::ErrorKind::NotFound && !leads_out(&gone));
    }
}
