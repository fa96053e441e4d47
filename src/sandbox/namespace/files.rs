//! What a sandbox has on disk, beside each other in the driver's directory, and who may touch it when.
//!
//! ```text
//! JOB/         the disk space, or where it is mounted
//! JOB.disk     the disk space as one file, when it has a size
//! JOB.agent    the agent, as the sandbox may run it and not read it; or a machine's first root, with the agent in it
//! JOB.kvm      /dev/kvm as a machine may use it
//! JOB.lock     held as long as the supervisor, or a process that it forked, lives; says who it is
//! JOB.stderr   what the agent and the supervisor said; there from the first moment of a detached sandbox to the last
//! JOB.usage    what it uses, written every second
//! JOB.report   how it ended
//! JOB.stop     asks the supervisor to end it
//! JOB.keep     the disk space stays though the sandbox is gone
//! ```

use std::{
    io::{ErrorKind, Read, Seek, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::plan::Report;
use crate::{
    records::{Failure, JobId},
    sandbox::Usage,
};

/// The files of one sandbox.
#[derive(Debug, Clone)]
pub(super) struct Files {
    dir: PathBuf,
}

/// Which process supervises a sandbox. A bare number would soon be another process's.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Supervisor {
    pid: i32,
    /// When it started, in the kernel's ticks since the boot.
    started: u64,
    /// Which boot that was.
    boot: String,
}

/// Room for a report is taken when the sandbox starts, so that a full disk does not hide how it ended.
const REPORT_ROOM: usize = 4096;

impl Files {
    /// Those of the sandbox whose directory is `dir`.
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

    /// The copy of the agent that the sandbox runs. Its name is not needed once the sandbox has it.
    pub(super) fn agent(&self) -> PathBuf {
        self.with("agent")
    }

    /// The device that runs guests on the CPU, as the sandbox's own.
    pub(super) fn kvm(&self) -> PathBuf {
        self.with("kvm")
    }

    pub(super) fn stderr(&self) -> PathBuf {
        self.with("stderr")
    }

    pub(super) fn stop(&self) -> PathBuf {
        self.with("stop")
    }

    /// Whether a live sandbox is to end. One whose files somebody removed could never be asked to.
    pub(super) fn is_to_end(&self) -> bool {
        self.stop().exists() || !self.lock_path().exists()
    }

    pub(super) fn keep(&self) -> PathBuf {
        self.with("keep")
    }

    /// Whether this is, or was, a sandbox that lives on without the process that started it.
    pub(super) fn is_detached(&self) -> bool {
        self.stderr().exists() || self.keep().exists()
    }

    /// Whether there is anything at all.
    pub(super) fn is_anything(&self) -> bool {
        self.is_detached() || self.dir.exists() || self.disk().exists() || self.lock_path().exists()
    }

    /// Whether a supervisor holds the lock.
    pub(super) fn is_alive(&self) -> bool {
        // A shared lock, since others may look at the same moment.
        fs_err::File::open(self.lock_path()).is_ok_and(|lock| lock.file().try_lock_shared().is_err())
    }

    /// Takes the lock, waiting for whoever has it.
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

    /// Takes the lock if nobody has it.
    pub(super) fn try_lock(&self) -> Result<Option<fs_err::File>, Failure> {
        // Others may be looking, for a moment.
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

    /// Whether the locked file still has its name: who removes a sandbox removes its lock too.
    fn is_current(&self, lock: &fs_err::File) -> bool {
        use std::os::unix::fs::MetadataExt;
        let named = fs_err::metadata(self.lock_path());
        matches!((lock.metadata(), named), (Ok(ours), Ok(named)) if ours.ino() == named.ino())
    }

    /// Says in the lock that this process is the supervisor.
    pub(super) fn sign(mut lock: &std::fs::File) -> std::io::Result<()> {
        let pid = std::process::id().cast_signed();
        let me = Supervisor {
            pid,
            started: start_time(pid)?,
            boot: boot_id()?,
        };
        lock.set_len(0)?;
        lock.rewind()?;
        lock.write_all(serde_json::to_string(&me)?.as_bytes())
    }

    /// Kills the supervisor, which takes the whole sandbox along.
    pub(super) fn kill_supervisor(&self) {
        if let Some(them) = read_json::<Supervisor>(&self.lock_path())
            && boot_id().is_ok_and(|boot| boot == them.boot)
            && start_time(them.pid).is_ok_and(|started| started == them.started)
        {
            // An error means that it has just ended.
            let _ = kill(Pid::from_raw(them.pid), Signal::SIGKILL);
        }
    }

    /// Whether the sandbox ran since the machine was started. What an earlier boot wrote without syncing may be lost.
    pub(super) fn is_of_this_boot(&self) -> bool {
        let signed = read_json::<Supervisor>(&self.lock_path());
        signed.is_some_and(|them| boot_id().is_ok_and(|boot| boot == them.boot))
    }

    /// Takes the room for the report.
    pub(super) fn reserve_report(&self) -> std::io::Result<()> {
        fs_err::write(self.with("report.new"), [b' '; REPORT_ROOM])
    }

    /// Writes the report so that it is there whole or not at all, whatever ends when.
    pub(super) fn write_report(&self, report: &Report) -> std::io::Result<()> {
        let mut text = serde_json::to_string(report)?;
        // Blanks after the text are no part of it.
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

    /// How it ended, if it has.
    pub(super) fn report(&self) -> Option<Report> {
        read_json(&self.with("report"))
    }

    /// Notes what it uses. Readers see the note before or after, never half of it.
    pub(super) fn write_usage(&self, usage: &Usage) -> std::io::Result<()> {
        let path = self.with("usage.new");
        fs_err::write(&path, serde_json::to_string(usage)?)?;
        fs_err::rename(path, self.with("usage"))
    }

    /// What it used when that was last noted.
    pub(super) fn usage(&self) -> Option<Usage> {
        read_json(&self.with("usage"))
    }

    /// The last lines of what was said.
    pub(super) fn last_words(&self) -> Vec<String> {
        const LINES: usize = 20;
        const LONGEST: usize = 1000;
        let mut said = Vec::new();
        if let Ok(mut file) = fs_err::File::open(self.stderr()) {
            // It is bounded by its writer.
            let _ = file.read_to_end(&mut said);
        }
        let text = String::from_utf8_lossy(&said);
        let lines: Vec<_> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(LINES)..];
        last.iter().map(|line| line.chars().take(LONGEST).collect()).collect()
    }

    /// Removes everything but the disk space and the lock. What makes it a detached sandbox goes last.
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

/// When a process started: field 22 of `/proc/PID/stat`. Field 2, the name, is in parentheses and may hold anything.
fn start_time(pid: i32) -> std::io::Result<u64> {
    let stat = fs_err::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after_name.split_whitespace().nth(19).and_then(|text| text.parse().ok());
    field.ok_or_else(|| std::io::Error::from(ErrorKind::InvalidData))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let text = serde_json::to_string(&Supervisor { pid, started, boot }).unwrap();
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
            failure: Some(Failure::new("no_network", "x".repeat(2 * REPORT_ROOM))),
            ..Report::default()
        };
        files.write_report(&report).unwrap();
        let read = files.report().unwrap();
        assert_eq!((read.exit_code, read.failure), (7, report.failure));
    }
}
