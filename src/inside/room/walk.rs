//! Measures a directory whose files belong to the ids of a sandbox: a separate process with just the rights of those
//! ids adds it up again and again. Forks, and reads metadata of files.

use std::{
    collections::HashSet,
    ffi::{CStr, CString},
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    time::{Duration, Instant},
};

use kiln_records::{Code, Failure};
use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sched::{CloneFlags, unshare},
    sys::{
        prctl,
        signal::{Signal, kill},
        stat::Mode,
        wait::waitpid,
    },
    unistd::{ForkResult, Gid, Pid, Uid, fork, setgroups, setresgid, setresuid},
};

use rustix::fs::{AtFlags, Dir, FileType, OFlags, fstat, openat, statat};

use super::{die_with_parent, idmap::IdMap, user_namespace_failure};

/// The shortest pause between two walks.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// A pause is this many times as long as the walk before it, so that walking takes less than 1 % of a CPU.
const PAUSES_PER_WALK: u32 = 100;

/// The size of one result on the socket: bytes, then inodes.
const RESULT: usize = 16;

/// The walking process. Dropping this ends it.
#[derive(Debug)]
pub struct Walker {
    child: Pid,
    results: UnixStream,
    last: (u64, u64),
}

impl Walker {
    /// Starts to walk `dir` with the rights of `ids`. The calling process must be single-threaded.
    ///
    /// # Errors
    ///
    /// The process or its user namespace cannot be made.
    pub fn start(dir: &Path, ids: IdMap) -> Result<Self, Failure> {
        let system = |errno: Errno| Failure::new(Code::SandboxStart, format!("cannot measure the disk: {errno}"));
        let socket = |error: std::io::Error| Failure::io("cannot measure the disk", &error);
        let dir = open(dir, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(system)?;
        let (mut results, theirs) = UnixStream::pair().map_err(socket)?;
        // SAFETY: this process has one thread, so the child may allocate and call anything.
        #[expect(unsafe_code, reason = "fork has no safe form")]
        let child = match unsafe { fork() }.map_err(system)? {
            ForkResult::Child => {
                drop(results);
                // A walk ends with an error when the socket is closed, and no reader is left for it.
                if let Err(errno) = unshare_for_walk() {
                    let _ = (&theirs).write_all(&(errno as i32).to_ne_bytes());
                } else {
                    let _ = walk_for_ever(&dir, theirs);
                }
                std::process::exit(0);
            }
            ForkResult::Parent { child } => child,
        };
        drop(theirs);
        let walker = Self {
            child,
            last: (0, 0),
            results: results.try_clone().map_err(socket)?,
        };
        // Zero, or the number of what went wrong.
        let mut ready = [0; 4];
        results.read_exact(&mut ready).map_err(socket)?;
        match i32::from_ne_bytes(ready) {
            0 => {}
            errno => return Err(user_namespace_failure(Errno::from_raw(errno))),
        }
        ids.apply(child)?;
        results.write_all(&ready).map_err(socket)?;
        walker.results.set_nonblocking(true).map_err(socket)?;
        Ok(walker)
    }

    /// Bytes and inodes at the end of the last walk.
    pub fn last(&mut self) -> (u64, u64) {
        let mut result = [0; RESULT];
        // Results are written whole, and there are few of them.
        while self.results.read(&mut result).is_ok_and(|count| count == RESULT) {
            let number = |at: usize| result[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
            self.last = (number(0), number(8));
        }
        self.last
    }
}

impl Drop for Walker {
    fn drop(&mut self) {
        // The process may have been killed already.
        let _ = kill(self.child, Signal::SIGKILL);
        let _ = waitpid(self.child, None);
    }
}

fn unshare_for_walk() -> Result<(), Errno> {
    die_with_parent();
    let _ = prctl::set_name(c"kiln-walk");
    unshare(CloneFlags::CLONE_NEWUSER)
}

fn walk_for_ever(dir: &OwnedFd, mut results: UnixStream) -> std::io::Result<()> {
    results.write_all(&0_i32.to_ne_bytes())?;
    results.read_exact(&mut [0; 4])?;
    setgroups(&[])?;
    setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0))?;
    setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0))?;
    // The change of user cleared the setting (prctl(2)). If the supervisor died in between, writing the next result
    // fails.
    die_with_parent();
    loop {
        let begun = Instant::now();
        let (bytes, inodes) = add_up(dir)?;
        let mut result = [0; RESULT];
        result[..8].copy_from_slice(&bytes.to_ne_bytes());
        result[8..].copy_from_slice(&inodes.to_ne_bytes());
        results.write_all(&result)?;
        std::thread::sleep(SHORTEST_PAUSE.max(begun.elapsed() * PAUSES_PER_WALK));
    }
}

/// Bytes on disk and inodes below a directory, however deep. Files that vanish meanwhile do not count.
///
/// Only one directory is open at a time, and none is reached by a path: a path has at most 4096 bytes.
fn add_up(top: &OwnedFd) -> std::io::Result<(u64, u64)> {
    let mut sum = Sum::default();
    let mut at = enter(top, c".")?;
    let mut way = vec![sum.add(&at, c".")?];
    while let Some(level) = way.last_mut() {
        if let Some(name) = level.dirs.pop() {
            // It may have vanished, or become a link.
            if let Ok(inside) = enter(&at, &name)
                && let Ok(level) = sum.add(&inside, &name)
            {
                way.push(level);
                at = inside;
            }
            continue;
        }
        way.pop();
        let Some(parent) = way.last() else { break };
        at = match enter(&at, c"..") {
            Ok(above) if id_of(&above).is_ok_and(|id| id == parent.id) => above,
            // The directory was moved meanwhile.
            _ => walk_down(top, &mut way)?,
        };
    }
    Ok((sum.bytes, sum.inodes))
}

/// A directory on the way from the top to the current one.
struct Level {
    name: CString,
    id: (u64, u64),
    /// Its directories that are still to be visited.
    dirs: Vec<CString>,
}

#[derive(Default)]
struct Sum {
    bytes: u64,
    inodes: u64,
    /// Files with several names that are counted already.
    linked: HashSet<u64>,
}

impl Sum {
    /// Adds the entries of a directory.
    fn add(&mut self, dir: &OwnedFd, name: &CStr) -> std::io::Result<Level> {
        let mut dirs = Vec::new();
        for entry in Dir::read_from(dir)?.flatten() {
            let name = entry.file_name();
            let Ok(stat) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if [c".", c".."].contains(&name) {
                continue;
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                dirs.push(name.to_owned());
            } else if stat.st_nlink > 1 && !self.linked.insert(stat.st_ino) {
                continue;
            }
            // These blocks have 512 bytes, whatever the file system's size is (stat(2)).
            self.bytes += stat.st_blocks.cast_unsigned() * 512;
            self.inodes += 1;
        }
        Ok(Level {
            name: name.to_owned(),
            id: id_of(dir)?,
            dirs,
        })
    }
}

fn enter(dir: &OwnedFd, name: &CStr) -> Result<OwnedFd, rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, rustix::fs::Mode::empty())
}

/// Device and inode.
fn id_of(dir: &OwnedFd) -> Result<(u64, u64), rustix::io::Errno> {
    fstat(dir).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Opens the last directory of a way, which is cut where it leads elsewhere by now.
fn walk_down(top: &OwnedFd, way: &mut Vec<Level>) -> std::io::Result<OwnedFd> {
    let mut at = enter(top, c".")?;
    let mut known = 1;
    for level in way.iter().skip(1) {
        match enter(&at, &level.name) {
            Ok(next) if id_of(&next).is_ok_and(|id| id == level.id) => at = next,
            _ => break,
        }
        known += 1;
    }
    way.truncate(known);
    Ok(at)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::room::remove::{remove_tree, tests::nest};

    #[test]
    fn files_are_counted_once_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("below");
        fs_err::create_dir(&below).unwrap();
        let mut file = File::create_new(below.join("file")).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        fs_err::hard_link(below.join("file"), below.join("again")).unwrap();
        fs_err::os::unix::fs::symlink("/usr", below.join("link")).unwrap();
        let (bytes, inodes) = measure(dir.path());
        assert_eq!(inodes, 3);
        assert!((1 << 20..(1 << 20) + 65_536).contains(&bytes), "{bytes}");
    }

    fn enter_path(dir: &Path) -> OwnedFd {
        std::fs::File::from(fs_err::File::open(dir).unwrap()).into()
    }

    /// The result of one walk.
    fn measure(dir: &Path) -> (u64, u64) {
        add_up(&enter_path(dir)).unwrap()
    }

    #[test]
    fn nothing_is_too_deep_to_be_counted() {
        const DEPTH: usize = 10_000;
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs_err::create_dir_all(tree.join("beside/more")).unwrap();
        let last = nest(&tree, DEPTH);
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = openat(&last, c"file", flags, rustix::fs::Mode::RUSR).unwrap();
        File::from(file).write_all(&vec![1; 1 << 20]).unwrap();
        let (bytes, inodes) = measure(&tree);
        assert_eq!(inodes, DEPTH as u64 + 3);
        assert!(bytes >= 1 << 20, "{bytes}");
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn a_walk_goes_on_where_it_can_when_its_directory_is_moved() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir_all(dir.path().join("a/b/c")).unwrap();
        fs_err::create_dir_all(dir.path().join("elsewhere")).unwrap();
        let top = enter_path(dir.path());
        let mut sum = Sum::default();
        let mut at = enter(&top, c".").unwrap();
        let mut way = vec![sum.add(&at, c".").unwrap()];
        for name in [c"a", c"b", c"c"] {
            at = enter(&at, name).unwrap();
            way.push(sum.add(&at, name).unwrap());
        }
        fs_err::rename(dir.path().join("a/b"), dir.path().join("elsewhere/b")).unwrap();
        let known = walk_down(&top, &mut way).unwrap();
        assert_eq!(way.len(), 2);
        assert_eq!(id_of(&known).unwrap(), way[1].id);
    }
}
