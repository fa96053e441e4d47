//! The files of a sandbox, side by side in the driver's directory, and the rules for using them. Touches these files,
//! and kills supervisors.
//!
//! A file that cannot be looked at, for want of a descriptor perhaps, is an error: it is neither there nor gone.
//!
//! ```text
//! JOB/         the disk space, or where it is mounted
//! JOB.disk     the disk space as one file, when it has a size; only this kernel has written its structures
//! JOB.raw      the disk of a virtual machine, which may have written anything into it: no kernel but a machine's mounts it
//! JOB.agent    the agent, which the sandbox can run but not read; or a machine's initrd with the agent in it
//! JOB.kvm      /dev/kvm for a machine
//! JOB.lock     held while the supervisor or a process that it forked lives; identifies the supervisor
//! JOB.stderr   standard error of agent and supervisor; exists as long as a job's sandbox does
//! JOB.usage    current usage, written every second
//! JOB.report   how the sandbox ended
//! JOB.stop     asks the supervisor to end the sandbox
//! JOB.keep     the disk space is kept although the sandbox is gone
//! trial-ID     the same for a trial of virtual machines, of which the directory, the lock and the device are there
//! ```

use std::{
    fs::TryLockError,
    io::{ErrorKind, Read, Seek, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use kiln_records::{Failure, JobId};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::plan::Report;
use crate::sandbox::{Kernel, Usage, lease::start_time};

/// The files of one sandbox.
#[derive(Debug, Clone)]
pub(super) struct Files {
    dir: PathBuf,
}

/// Identifies a sandbox's supervisor. A process number alone would soon be another process's.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Supervisor {
    pid: i32,
    /// Its start time, in the kernel's ticks since boot.
    started: u64,
    /// The boot during which it started.
    boot: String,
    /// Whether the sandbox ends with the process that started it.
    attached: bool,
}

/// Space for a report is reserved at the start, so that a full disk does not hide how the sandbox ended.
const REPORT_ROOM: usize = 4096;

impl Files {
    /// The files of the sandbox whose directory is `dir`.
    pub(super) fn of(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The job that a file of a sandbox belongs to.
    pub(super) fn job_of(file: &Path) -> Option<JobId> {
        file.file_name()?.to_str()?.split('.').next()?.parse().ok()
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn with(&self, extension: &str) -> PathBuf {
        self.dir.with_extension(extension)
    }

    pub(super) fn lock_path(&self) -> PathBuf {
        self.with("lock")
    }

    /// The disk space of a sandbox on this kernel, or of a machine. Its name says who could write to it, since its
    /// content cannot.
    pub(super) fn disk(&self, kernel: Kernel) -> PathBuf {
        match kernel {
            Kernel::Shared => self.with("disk"),
            Kernel::Own => self.with("raw"),
        }
    }

    /// The disk space of either kind, if it is a file.
    pub(super) fn some_disk(&self) -> Result<Option<PathBuf>, Failure> {
        for disk in [Kernel::Shared, Kernel::Own].map(|kernel| self.disk(kernel)) {
            if is_there(&disk)? {
                return Ok(Some(disk));
            }
        }
        Ok(None)
    }

    /// The copy of the agent that the sandbox runs. Its name is no longer needed once the sandbox has opened it.
    pub(super) fn agent(&self) -> PathBuf {
        self.with("agent")
    }

    /// The device for running guests on the CPU, owned by the sandbox's root.
    pub(super) fn kvm(&self) -> PathBuf {
        self.with("kvm")
    }

    pub(super) fn stderr(&self) -> PathBuf {
        self.with("stderr")
    }

    pub(super) fn stop(&self) -> PathBuf {
        self.with("stop")
    }

    /// Whether a live sandbox has to end, also because its files were removed: such a sandbox could never be asked to.
    pub(super) fn is_to_end(&self) -> Result<bool, Failure> {
        Ok(is_there(&self.stop())? || !is_there(&self.lock_path())?)
    }

    pub(super) fn keep(&self) -> PathBuf {
        self.with("keep")
    }

    /// Whether this is, or was, the sandbox of a job.
    pub(super) fn is_of_job(&self) -> Result<bool, Failure> {
        Ok(is_there(&self.stderr())? || self.is_kept()?)
    }

    /// Whether the disk space is kept although the sandbox is gone, or going.
    pub(super) fn is_kept(&self) -> Result<bool, Failure> {
        is_there(&self.keep())
    }

    /// Whether the sandbox is alive, and the process that started it too: that one ends it.
    pub(super) fn is_in_use(&self) -> Result<bool, Failure> {
        Ok(self.is_alive()? && self.supervisor()?.is_some_and(|them| them.attached))
    }

    /// Whether any file of the sandbox exists.
    pub(super) fn is_anything(&self) -> Result<bool, Failure> {
        Ok(self.is_of_job()? || is_there(&self.dir)? || self.some_disk()?.is_some() || is_there(&self.lock_path())?)
    }

    /// Whether a supervisor holds the lock.
    pub(super) fn is_alive(&self) -> Result<bool, Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot see whether a sandbox is alive", &error);
        let lock = match fs_err::File::open(self.lock_path()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            lock => lock.map_err(failed)?,
        };
        // A shared lock, since other processes may check at the same moment.
        match lock.file().try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Takes the lock, waiting for its holder.
    pub(super) fn lock(&self) -> Result<fs_err::File, Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot lock the sandbox", &error);
        loop {
            let lock = self.open_lock().map_err(failed)?;
            lock.file().lock().map_err(failed)?;
            if self.is_current(&lock).map_err(failed)? {
                return Ok(lock);
            }
        }
    }

    /// Takes the lock if it is free.
    pub(super) fn try_lock(&self) -> Result<Option<fs_err::File>, Failure> {
        // Other processes may be checking it for a moment.
        const TRIES: u32 = 10;
        let failed = |error: std::io::Error| Failure::io("cannot lock the sandbox", &error);
        for _ in 0..TRIES {
            let lock = self.open_lock().map_err(failed)?;
            match lock.file().try_lock() {
                Ok(()) if self.is_current(&lock).map_err(failed)? => return Ok(Some(lock)),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(None)
    }

    fn open_lock(&self) -> std::io::Result<fs_err::File> {
        fs_err::OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(self.lock_path())
    }

    /// Whether the locked file still has its name: the lock file is removed together with its sandbox.
    fn is_current(&self, lock: &fs_err::File) -> std::io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        match fs_err::metadata(self.lock_path()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            named => Ok(lock.metadata()?.ino() == named?.ino()),
        }
    }

    /// Records in the lock file that this process is the supervisor.
    pub(super) fn sign(mut lock: &std::fs::File, attached: bool) -> std::io::Result<()> {
        let pid = std::process::id().cast_signed();
        let me = Supervisor {
            pid,
            started: start_time(pid)?.ok_or(ErrorKind::NotFound)?,
            boot: boot_id()?,
            attached,
        };
        lock.set_len(0)?;
        lock.rewind()?;
        lock.write_all(serde_json::to_string(&me)?.as_bytes())
    }

    /// The supervisor that signed the lock, if one did.
    fn supervisor(&self) -> Result<Option<Supervisor>, Failure> {
        read_json(&self.lock_path())
    }

    /// Kills the supervisor, and with it the whole sandbox.
    pub(super) fn kill_supervisor(&self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot find a sandbox's supervisor", &error);
        if let Some(them) = self.supervisor()?
            && boot_id().map_err(failed)? == them.boot
            && start_time(them.pid).map_err(failed)? == Some(them.started)
        {
            // An error means that it has just ended.
            let _ = kill(Pid::from_raw(them.pid), Signal::SIGKILL);
        }
        Ok(())
    }

    /// Whether the sandbox ran during this boot. Unsynced writes of an earlier boot may be lost.
    pub(super) fn is_of_this_boot(&self) -> Result<bool, Failure> {
        let Some(them) = self.supervisor()? else {
            return Ok(false);
        };
        let boot = boot_id().map_err(|error| Failure::io("cannot tell this boot from others", &error))?;
        Ok(boot == them.boot)
    }

    /// Reserves the space for the report.
    pub(super) fn reserve_report(&self) -> std::io::Result<()> {
        fs_err::write(self.with("report.new"), [b' '; REPORT_ROOM])
    }

    /// Writes the report atomically, even if processes end at any point.
    pub(super) fn write_report(&self, report: &Report) -> std::io::Result<()> {
        let mut text = serde_json::to_string(report)?;
        // Trailing blanks do not matter to the parser.
        text.extend(std::iter::repeat_n(' ', REPORT_ROOM.saturating_sub(text.len())));
        let path = self.with("report.new");
        let mut file = fs_err::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs_err::rename(&path, self.with("report"))?;
        fs_err::File::open(self.dir.parent().unwrap_or(Path::new("/")))?.sync_all()
    }

    /// The report, if the sandbox has ended.
    pub(super) fn report(&self) -> Result<Option<Report>, Failure> {
        read_json(&self.with("report"))
    }

    /// Records the usage. A reader sees the old record or the new one, never a part.
    pub(super) fn write_usage(&self, usage: &Usage) -> std::io::Result<()> {
        let path = self.with("usage.new");
        fs_err::write(&path, serde_json::to_string(usage)?)?;
        fs_err::rename(path, self.with("usage"))
    }

    /// The usage recorded last.
    pub(super) fn usage(&self) -> Result<Option<Usage>, Failure> {
        read_json(&self.with("usage"))
    }

    /// The last lines of standard error.
    pub(super) fn last_words(&self) -> Vec<String> {
        const LINES: usize = 20;
        const LONGEST: usize = 1000;
        let mut said = Vec::new();
        if let Ok(mut file) = fs_err::File::open(self.stderr()) {
            // The writer bounds its size.
            let _ = file.read_to_end(&mut said);
        }
        let text = String::from_utf8_lossy(&said);
        let lines: Vec<_> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(LINES)..];
        last.iter().map(|line| line.chars().take(LONGEST).collect()).collect()
    }

    /// Removes everything except the disk space and the lock. The mark of a detached sandbox goes last.
    pub(super) fn remove_notes(&self) -> Result<(), Failure> {
        for extension in [
            "agent",
            "kvm",
            "report.new",
            "report",
            "usage.new",
            "usage",
            "stop",
            "stderr",
        ] {
            remove_file(&self.with(extension))?;
        }
        Ok(())
    }
}

/// A path to an open file, for a process that may not walk to it any more.
pub(super) fn link_to(fd: &OwnedFd) -> PathBuf {
    // Process 1 has its own /proc only after furnishing; the old one names it by the same self link.
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// Removes a file that may be gone already.
pub(super) fn remove_file(path: &Path) -> Result<(), Failure> {
    match fs_err::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::io("cannot remove a sandbox", &error)),
        _ => Ok(()),
    }
}

/// Whether a file of a sandbox exists.
pub(super) fn is_there(path: &Path) -> Result<bool, Failure> {
    path.try_exists().map_err(|error| {
        let what = format!("cannot see whether {} exists", path.display());
        Failure::io(what, &error)
    })
}

/// A note of a sandbox. One that does not exist, or that was cut off when its writer was killed, says nothing.
fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    match fs_err::read(path) {
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io("cannot read a note of a sandbox", &error)),
    }
}

fn boot_id() -> std::io::Result<String> {
    Ok(fs_err::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_records::Code;

    fn files() -> (tempfile::TempDir, Files) {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::of(&dir.path().join(JobId::new().to_string()));
        (dir, files)
    }

    #[test]
    fn a_number_that_is_another_process_by_now_is_not_killed() {
        let (_dir, files) = files();
        let mut bystander = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = bystander.id().cast_signed();
        let sign = |started: u64, boot: &str| {
            let boot = boot.to_owned();
            let text = serde_json::to_string(&Supervisor {
                pid,
                started,
                boot,
                attached: false,
            })
            .unwrap();
            fs_err::write(files.lock_path(), text).unwrap();
        };
        let (started, boot) = (start_time(pid).unwrap().unwrap(), boot_id().unwrap());
        sign(started - 1, &boot);
        files.kill_supervisor().unwrap();
        sign(started, "another");
        files.kill_supervisor().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(bystander.try_wait().unwrap().is_none(), "it was killed");
        sign(started, &boot);
        files.kill_supervisor().unwrap();
        assert!(!bystander.wait().unwrap().success());
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let (_dir, files) = files();
        files.reserve_report().unwrap();
        assert!(files.report().unwrap().is_none());
        let report = Report {
            exit_code: 7,
            failure: Some(Failure::new(Code::NoNetwork, "x".repeat(2 * REPORT_ROOM))),
            ..Report::default()
        };
        files.write_report(&report).unwrap();
        let read = files.report().unwrap().unwrap();
        assert_eq!((read.exit_code, read.failure), (7, report.failure));
    }

    #[test]
    fn what_cannot_be_looked_at_is_not_gone() {
        let (dir, files) = files();
        assert!(!files.is_alive().unwrap() && files.report().unwrap().is_none());
        // A name that is longer than any file system allows stands for a table of descriptors that is full.
        let hidden = Files::of(&dir.path().join("x".repeat(5000)));
        assert!(hidden.is_alive().is_err() && hidden.is_of_job().is_err() && hidden.is_to_end().is_err());
        assert!(hidden.report().is_err() && hidden.usage().is_err() && hidden.kill_supervisor().is_err());
    }
}
