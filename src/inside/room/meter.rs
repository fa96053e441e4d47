//! Measures the usage of a sandbox from outside. Reads control groups and file systems.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use kiln_records::run::Used;
use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};

use super::{counters::Counters, walk::Walker};

/// Interval between measurements.
const EVERY: Duration = Duration::from_secs(1);

/// The usage of a sandbox. Values that cannot be measured here are 0.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Peak memory in bytes so far, including the kernel's cache of files.
    pub memory_peak: u64,
    /// CPU time so far.
    pub cpu: Duration,
    /// Peak disk space in bytes so far.
    pub disk: u64,
    /// Peak number of files, directories and links on disk so far.
    pub inodes: u64,
    /// How often the kernel killed a process because memory ran out so far.
    pub oom_kills: u64,
}

impl From<Usage> for Used {
    fn from(usage: Usage) -> Self {
        Self {
            memory: usage.memory_peak,
            disk: usage.disk,
            cpu_ms: u64::try_from(usage.cpu.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// How the disk space is measured.
#[derive(Debug)]
pub enum DiskGauge {
    /// Not at all.
    None,
    /// By the usage of a mounted file system, less its usage when it was new.
    FileSystem {
        /// The mount point.
        mounted_on: PathBuf,
        /// Bytes and inodes in use when it was new.
        empty: (u64, u64),
    },
    /// By the size of a machine's disk file, and the machine's own reports on its content.
    Machine {
        /// The file.
        file: PathBuf,
        /// Bytes that it took when it was new.
        empty: u64,
        /// Whether the machine was the first to use it.
        is_new: bool,
        /// Inodes, as last reported by the machine.
        inodes: u64,
    },
    /// By walking a directory.
    Directory(Walker),
}

/// Measures a sandbox, and remembers the peaks.
#[derive(Debug)]
pub struct Meter {
    gauge: DiskGauge,
    most: Usage,
    due: Instant,
}

impl DiskGauge {
    /// The gauge for a file system that has just been mounted, and was `is_new`.
    pub fn of_file_system(mounted_on: &Path, is_new: bool) -> Self {
        let empty = if is_new { used(mounted_on) } else { (0, 0) };
        Self::FileSystem {
            mounted_on: mounted_on.to_owned(),
            empty,
        }
    }

    /// The gauge for the disk of a machine, which `is_new`.
    pub fn of_machine(file: &Path, is_new: bool) -> Self {
        Self::Machine {
            file: file.to_owned(),
            empty: if is_new { allocated(file) } else { 0 },
            is_new,
            inodes: 0,
        }
    }

    /// Bytes and inodes in use.
    fn read(&mut self) -> (u64, u64) {
        match self {
            Self::None => (0, 0),
            Self::FileSystem { mounted_on, empty } => {
                let (bytes, inodes) = used(mounted_on);
                (bytes.saturating_sub(empty.0), inodes.saturating_sub(empty.1))
            }
            Self::Machine {
                file, empty, inodes, ..
            } => (allocated(file).saturating_sub(*empty), *inodes),
            Self::Directory(walker) => walker.last(),
        }
    }
}

/// Bytes that a file takes on disk, without its holes.
fn allocated(file: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    const UNIT: u64 = 512;
    fs_err::metadata(file).map_or(0, |metadata| metadata.blocks() * UNIT)
}

/// Bytes and inodes in use on a file system.
fn used(path: &Path) -> (u64, u64) {
    statvfs(path).map_or((0, 0), |stat| {
        (
            (stat.blocks() - stat.blocks_free()) * stat.fragment_size(),
            stat.files() - stat.files_free(),
        )
    })
}

impl Meter {
    /// A meter without measurements yet.
    pub fn new(gauge: DiskGauge) -> Self {
        Self {
            gauge,
            most: Usage::default(),
            due: Instant::now(),
        }
    }

    /// Records how many inodes a machine's disk has gained, and has in all.
    pub fn inodes_of_machine(&mut self, (new, all): (u64, u64)) {
        if let DiskGauge::Machine { is_new, inodes, .. } = &mut self.gauge {
            *inodes = if *is_new { new } else { all };
        }
    }

    /// Measures, if the interval has passed.
    pub fn tick(&mut self, counters: &Counters) -> Option<Usage> {
        let now = Instant::now();
        (now >= self.due).then(|| {
            self.due = now + EVERY;
            self.read(counters)
        })
    }

    /// Measures now.
    pub fn read(&mut self, counters: &Counters) -> Usage {
        let (disk, inodes) = self.gauge.read();
        self.most = Usage {
            // What cannot be read now is at least what it was.
            memory_peak: counters.memory_peak().unwrap_or(self.most.memory_peak),
            cpu: counters.cpu().unwrap_or(self.most.cpu),
            disk: disk.max(self.most.disk),
            inodes: inodes.max(self.most.inodes),
            oom_kills: counters.oom_kills().unwrap_or(self.most.oom_kills),
        };
        self.most
    }
}
