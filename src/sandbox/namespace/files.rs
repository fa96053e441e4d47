//! The files of a sandbox, side by side in the driver's directory, and the rules for using them. Touches these files,
//! and kills supervisors.
//!
//! ```text
//! JOB/         the disk space, or where it is mounted
//! JOB.disk     the disk space as one file, when it has a size
//! JOB.agent    the agent, which the sandbox can run but not read; or a machine's initrd with the agent in it
//! JOB.kvm      /dev/kvm for a machine
//! JOB.lock     held while the supervisor or a process that it forked lives; identifies the supervisor
//! JOB.stderr   standard error of agent and supervisor; exists as long as a job's sandbox does
//! JOB.usage    current usage, written every second
//! JOB.report   how the sandbox ended
//! JOB.stop     asks the supervisor to end the sandbox
//! JOB.keep     the disk space is kept although the sandbox is gone
//! ```

use std::{
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
use crate::sandbox::Usage;

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

    pub(super) fn disk(&self) -> PathBuf {
        self.with("disk")
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
    pub(super) fn is_to_end(&self) -> bool {
        self.stop().exists() || !self.lock_path().exists()
    }

    pub(super) fn keep(&self) -> PathBuf {
        self.with("keep")
    }

    /// Whether this is, or was, the sandbox of a job.
    pub(super) fn is_of_job(&self) -> bool {
        self.stderr().exists() || self.keep().exists()
    }

    /// Whether the sandbox is alive, and the process that started it too: that one ends it.
    pub(super) fn is_in_use(&self) -> bool {
        self.is_alive() && read_json::<Supervisor>(&self.lock_path()).is_some_and(|them| them.attached)
    }

    /// Whether any file of the sandbox exists.
    pub(super) fn is_anything(&self) -> bool {
        self.is_of_job() || self.dir.exists() || self.disk().exists() || self.lock_path().exists()
    }

    /// Whether a supervisor holds the lock.
    pub(super) fn is_alive(&self) -> bool {
        // A shared lock, since other processes may check at the same moment.
        fs_err::File::open(self.lock_path()).is_ok_and(|lock| lock.file().try_lock_shared().is_err())
    }

    /// Takes the lock, waiting for its holder.
    pub(super) fn lock(&self) -> Result<fs_err::File, Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot lock the sandbox", &error);
        loop {
            let lock = self.open_lock().map_err(failed)?;
            lock.file().lock().map_err(failed)?;
            if self.is_current(&lock) {
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
            if lock.file().try_lock().is_ok() && self.is_current(&lock) {
                return Ok(Some(lock));
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
    fn is_current(&self, lock: &fs_err::File) -> bool {
        use std::os::unix::fs::MetadataExt;
        let named = fs_err::metadata(self.lock_path());
        matches!((lock.metadata(), named), (Ok(ours), Ok(named)) if ours.ino() == named.ino())
    }

    /// Records in the lock file that this process is the supervisor.
    pub(super) fn sign(mut lock: &std::fs::File, attached: bool) -> std::io::Result<()> {
        let pid = std::process::id().cast_signed();
        let me = Supervisor {
            pid,
            started: start_time(pid)?,
            boot: boot_id()?,
            attached,
        };
        lock.set_len(0)?;
        lock.rewind()?;
        lock.write_all(serde_json::to_string(&me)?.as_bytes())
    }

    /// Kills the supervisor, and with it the whole sandbox.
    pub(super) fn kill_supervisor(&self) {
        if let Some(them) = read_json::<Supervisor>(&self.lock_path())
            && boot_id().is_ok_and(|boot| boot == them.boot)
            && start_time(them.pid).is_ok_and(|started| started == them.started)
        {
            // An error means that it has just ended.
            let _ = kill(Pid::from_raw(them.pid), Signal::SIGKILL);
        }
    }

    /// Whether the sandbox ran during this boot. Unsynced writes of an earlier boot may be lost.
    pub(super) fn is_of_this_boot(&self) -> bool {
        let signed = read_json::<Supervisor>(&self.lock_path());
        signed.is_some_and(|them| boot_id().is_ok_and(|boot| boot == them.boot))
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
    pub(super) fn report(&self) -> Option<Report> {
        read_json(&self.with("report"))
    }

    /// Records the usage. A reader sees the old record or the new one, never a part.
    pub(super) fn write_usage(&self, usage: &Usage) -> std::io::Result<()> {
        let path = self.with("usage.new");
        fs_err::write(&path, serde_json::to_string(usage)?)?;
        fs_err::rename(path, self.with("usage"))
    }

    /// The usage recorded last.
    pub(super) fn usage(&self) -> Option<Usage> {
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

fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs_err::read(path).ok()?).ok()
}

fn boot_id() -> std::io::Result<String> {
    Ok(fs_err::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// The start time of a process: field 22 of `/proc/PID/stat`. Field 2, the name, is in parentheses and may contain
/// anything.
fn start_time(pid: i32) -> std::io::Result<u64> {
    let stat = fs_err::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after_name.split_whitespace().nth(19).and_then(|text| text.parse().ok());
    field.ok_or_else(|| std::io::Error::from(ErrorKind::InvalidData))
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
        let (started, boot) = (start_time(pid).unwrap(), boot_id().unwrap());
        sign(started - 1, &boot);
        files.kill_supervisor();
        sign(started, "another");
        files.kill_supervisor();
        std::thread::sleep(Duration::from_millis(50));
        assert!(bystander.try_wait().unwrap().is_none(), "it was killed");
        sign(started, &boot);
        files.kill_supervisor();
        assert!(!bystander.wait().unwrap().success());
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let (_dir, files) = files();
        files.reserve_report().unwrap();
        assert!(files.report().is_none());
        let report = Report {
            exit_code: 7,
            failure: Some(Failure::new(Code::NoNetwork, "x".repeat(2 * REPORT_ROOM))),
            ..Report::default()
        };
        files.write_report(&report).unwrap();
        let read = files.report().unwrap();
        assert_eq!((read.exit_code, read.failure), (7, report.failure));
    }
}
