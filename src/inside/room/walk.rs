//! Measures a directory whose files belong to the ids of a sandbox: a separate process with just the rights of those
//! ids adds it up again and again. Forks, and reads metadata of files.

use std::{
    collections::HashSet,
    io::{Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{fs::MetadataExt, net::UnixStream},
    },
    path::{Path, PathBuf},
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

use super::{die_with_parent, idmap::IdMap};

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
                // It ends with an error when the socket is closed.
                let _ = walk_for_ever(&dir, theirs);
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
        let mut ready = [0];
        results.read_exact(&mut ready).map_err(socket)?;
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

fn walk_for_ever(dir: &OwnedFd, mut results: UnixStream) -> std::io::Result<()> {
    die_with_parent();
    let _ = prctl::set_name(c"kiln-walk");
    unshare(CloneFlags::CLONE_NEWUSER)?;
    results.write_all(&[1])?;
    results.read_exact(&mut [0])?;
    setgroups(&[])?;
    setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0))?;
    setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0))?;
    // The change of user cleared the setting (prctl(2)). If the supervisor died in between, writing the next result
    // fails.
    die_with_parent();
    let path = PathBuf::from(format!("/proc/self/fd/{}/.", dir.as_raw_fd()));
    loop {
        let begun = Instant::now();
        let (bytes, inodes) = add_up(&path);
        let mut result = [0; RESULT];
        result[..8].copy_from_slice(&bytes.to_ne_bytes());
        result[8..].copy_from_slice(&inodes.to_ne_bytes());
        results.write_all(&result)?;
        std::thread::sleep(SHORTEST_PAUSE.max(begun.elapsed() * PAUSES_PER_WALK));
    }
}

/// Bytes on disk and inodes below a directory. Files that vanish meanwhile do not count.
fn add_up(dir: &Path) -> (u64, u64) {
    let (mut bytes, mut inodes) = (0, 0);
    let mut linked = HashSet::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs_err::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                dirs.push(entry.path());
            } else if metadata.nlink() > 1 && !linked.insert(metadata.ino()) {
                continue;
            }
            // These blocks have 512 bytes, whatever the file system's size is (stat(2)).
            bytes += metadata.blocks() * 512;
            inodes += 1;
        }
    }
    (bytes, inodes)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

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
        let (bytes, inodes) = add_up(dir.path());
        assert_eq!(inodes, 3);
        assert!((1 << 20..(1 << 20) + 65_536).contains(&bytes), "{bytes}");
    }
}
