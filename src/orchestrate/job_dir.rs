//! Keeps one job's files on disk: its record, its whole log, and a lock that tells whether a process still runs it. It
//! touches the directory of jobs and nothing else.

use std::{
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use jiff::{Timestamp, tz::TimeZone};
use serde::{Deserialize, Serialize};

use crate::{
    arch::Arch,
    records::{
        Code, Execs, Failure, ImageId, JobId, Step,
        protocol::{SandboxFacts, Stream},
        run::How,
    },
    sandbox::namespace::make_private_dir,
};

const LOG: &str = "build.log";
const RECORD: &str = "job.json";
const LOCK: &str = "lock";
const DOORS: &str = "doors";

/// A job's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobRecord {
    /// The job.
    pub id: JobId,
    /// The image that it makes.
    pub image: ImageId,
    /// The image's name.
    pub name: String,
    /// The image's architecture.
    pub arch: Arch,
    /// How it runs.
    pub how: How,
    /// The toolbox it runs in: the digest of its description.
    pub toolbox: String,
    /// SHA-256 of the recipe archive.
    pub recipe_sha256: String,
    /// When it began.
    pub begun: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// The sandbox's properties, as its agent found them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxFacts>,
    /// Which programs ran emulated and which natively, once the root of an emulated job is built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execs: Option<Execs>,
    /// Its outcome.
    pub state: JobState,
}

/// The outcome of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// A process holds its lock, or the job died without recording its end.
    Running,
    /// The image exists and is complete.
    Success,
    /// There is no image, for this reason.
    Error(Failure),
}

/// The directory of a job that this process runs.
#[derive(Debug)]
pub struct JobDir {
    dir: PathBuf,
    log: fs_err::File,
    /// The record as last written.
    pub record: JobRecord,
    _lock: fs_err::File,
}

impl JobDir {
    /// Makes the directory of a new job below `jobs`.
    pub fn create(jobs: &Path, record: JobRecord) -> Result<Self, Failure> {
        let dir = jobs.join(record.id.to_string());
        make_private_dir(&dir)?;
        let failed = |error: std::io::Error| Failure::io("cannot keep the job's files", &error);
        let lock = fs_err::File::create(dir.join(LOCK)).map_err(failed)?;
        lock.file().lock().map_err(failed)?;
        let log = fs_err::File::create(dir.join(LOG)).map_err(failed)?;
        write_record(&dir, &record)?;
        Ok(Self {
            dir,
            log,
            record,
            _lock: lock,
        })
    }

    /// The whole log.
    pub fn log_path(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    /// Makes the directory for the sockets that the job's sandbox sees. It is removed when this process's work on the
    /// job ends.
    pub fn make_doors(&self) -> Result<PathBuf, Failure> {
        let doors = self.dir.join(DOORS);
        make_open_dir(&doors)?;
        Ok(doors)
    }

    /// Adds a line to the log.
    pub fn write_line(
        &mut self,
        time: Timestamp,
        step: Option<Step>,
        stream: Stream,
        text: &str,
    ) -> Result<(), Failure> {
        let time = time
            .to_zoned(TimeZone::UTC)
            .strftime("%Y-%m-%dT%H:%M:%S.%3fZ")
            .to_string();
        let step = step.map_or("-", Step::name);
        let mark = match stream {
            Stream::Agent => '*',
            Stream::Stdout => ' ',
            Stream::Stderr => '!',
        };
        writeln!(self.log, "{time} {step:<8} {mark} {text}")
            .map_err(|error| Failure::io("cannot write the log", &error))
    }

    /// Records how the job ended.
    pub fn end(&mut self, state: JobState) -> Result<(), Failure> {
        self.record.state = state;
        self.record.ended = Some(Timestamp::now());
        remove_doors(&self.dir)?;
        write_record(&self.dir, &self.record)
    }
}

/// Makes a directory that every user may look into. The directories above decide which users can reach it.
fn make_open_dir(dir: &Path) -> Result<(), Failure> {
    fs_err::create_dir(dir)
        .and_then(|()| fs_err::set_permissions(dir, std::fs::Permissions::from_mode(0o755)))
        .map_err(|error| Failure::io("cannot keep the job's files", &error))
}

/// Removes the sockets of a job that is over.
fn remove_doors(dir: &Path) -> Result<(), Failure> {
    match fs_err::remove_dir_all(dir.join(DOORS)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::io("cannot remove the job's sockets", &error))
        }
        _ => Ok(()),
    }
}

/// Writes the record so that a reader finds the old one or the new one, never half of one.
fn write_record(dir: &Path, record: &JobRecord) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::io("cannot keep the job's record", &error);
    let json = serde_json::to_vec_pretty(record).map_err(|error| Failure::new(Code::JobRecord, error))?;
    let mut file = tempfile::NamedTempFile::new_in(dir).map_err(failed)?;
    file.write_all(&json).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(dir.join(RECORD)).map_err(|error| failed(error.error))?;
    Ok(())
}

/// The records of jobs that claim to be running although no process runs them.
pub fn find_dead(jobs: &Path) -> Vec<JobRecord> {
    let Ok(entries) = fs_err::read_dir(jobs) else {
        return Vec::new();
    };
    let dead = |dir: PathBuf| {
        let record: JobRecord = serde_json::from_slice(&fs_err::read(dir.join(RECORD)).ok()?).ok()?;
        let running = record.state == JobState::Running;
        (running && !is_live(jobs, record.id)).then_some(record)
    };
    entries.flatten().filter_map(|entry| dead(entry.path())).collect()
}

/// Whether a process runs a job.
pub fn is_live(jobs: &Path, job: JobId) -> bool {
    let lock = fs_err::File::open(jobs.join(job.to_string()).join(LOCK));
    lock.is_ok_and(|lock| lock.file().try_lock().is_err())
}

/// Records the end of a dead job; `finished` when its image exists all the same.
pub fn bury(jobs: &Path, mut record: JobRecord, finished: bool) -> Result<(), Failure> {
    record.state = if finished {
        JobState::Success
    } else {
        let failure = Failure::new(Code::Interrupted, "the build was killed");
        JobState::Error(failure.hint("start it again; nothing of it was left behind"))
    };
    record.ended = Some(Timestamp::now());
    let dir = jobs.join(record.id.to_string());
    remove_doors(&dir)?;
    write_record(&dir, &record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> JobRecord {
        JobRecord {
            id: JobId::new(),
            image: ImageId::new(),
            name: "test".into(),
            arch: Arch::Aarch64,
            how: How::Emulated,
            toolbox: String::new(),
            recipe_sha256: String::new(),
            begun: Timestamp::UNIX_EPOCH,
            ended: None,
            sandbox: None,
            execs: None,
            state: JobState::Running,
        }
    }

    #[test]
    fn a_job_is_dead_when_its_lock_is_free_and_buried_once() {
        let jobs = tempfile::tempdir().unwrap();
        let dir = JobDir::create(jobs.path(), record()).unwrap();
        assert!(find_dead(jobs.path()).is_empty());
        drop(dir);
        let dead = find_dead(jobs.path());
        assert_eq!(dead.len(), 1);
        bury(jobs.path(), dead.into_iter().next().unwrap(), false).unwrap();
        assert!(find_dead(jobs.path()).is_empty());
    }

    #[test]
    fn the_log_is_readable_text() {
        let jobs = tempfile::tempdir().unwrap();
        let mut dir = JobDir::create(jobs.path(), record()).unwrap();
        dir.write_line(Timestamp::UNIX_EPOCH, Some(Step::Build), Stream::Stderr, "it broke")
            .unwrap();
        dir.write_line(Timestamp::UNIX_EPOCH, None, Stream::Agent, "hello")
            .unwrap();
        let log = fs_err::read_to_string(dir.log_path()).unwrap();
        assert_eq!(
            log,
            "1970-01-01T00:00:00.000Z build    ! it broke\n1970-01-01T00:00:00.000Z -        * hello\n"
        );
    }
}
