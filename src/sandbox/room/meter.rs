//! Measuring what a sandbox uses, from beside it.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};

use super::{counters::Counters, walk::Walker};

/// How often a sandbox is measured.
const EVERY: Duration = Duration::from_secs(1);

/// What a sandbox uses. What cannot be measured here is 0.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of memory, at most so far; what the kernel keeps of files counts too.
    pub memory_peak: u64,
    /// CPU time so far.
    pub cpu: Duration,
    /// Bytes on disk, at most so far.
    pub disk: u64,
    /// Files, directories and links on disk, at most so far.
    pub inodes: u64,
    /// How often the kernel killed a process for want of memory so far.
    pub oom_kills: u64,
}

/// How its disk space is measured.
#[derive(Debug)]
pub enum DiskGauge {
    /// Not at all.
    None,
    /// A file system of its own is mounted there; what was used of it before anything was written does not count.
    FileSystem {
        /// Where.
        mounted_on: PathBuf,
        /// Bytes and inodes that it used when it was new.
        empty: (u64, u64),
    },
    /// A machine has a file for a disk, and tells what is in it.
    Machine {
        /// The file.
        file: PathBuf,
        /// Bytes that it took when it was new.
        empty: u64,
        /// Whether it is the machine's own from the first.
        is_new: bool,
        /// Inodes, as the machine told last.
        inodes: u64,
    },
    /// A directory is walked through.
    Directory(Walker),
}

/// Measures a sandbox, and remembers the most.
#[derive(Debug)]
pub struct Meter {
    gauge: DiskGauge,
    most: Usage,
    due: Instant,
}

impl DiskGauge {
    /// For a file system that has just been mounted, and was `is_new`.
    pub fn of_file_system(mounted_on: &Path, is_new: bool) -> Self {
        let empty = if is_new { used(mounted_on) } else { (0, 0) };
        Self::FileSystem {
            mounted_on: mounted_on.to_owned(),
            empty,
        }
    }

    /// For the disk of a machine, which `is_new`.
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

/// Bytes that a file has on disk; its holes do not count.
fn allocated(file: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    const UNIT: u64 = 512;
    fs_err::metadata(file).map_or(0, |metadata| metadata.blocks() * UNIT)
}

/// Bytes and inodes of a file system that are in use.
fn used(path: &Path) -> (u64, u64) {
    statvfs(path).map_or((0, 0), |stat| {
        (
            (stat.blocks() - stat.blocks_free()) * stat.fragment_size(),
            stat.files() - stat.files_free(),
        )
    })
}

impl Meter {
    /// One that has measured nothing yet.
    pub fn new(gauge: DiskGauge) -> Self {
        Self {
            gauge,
            most: Usage::default(),
            due: Instant::now(),
        }
    }

    /// Takes note of how many inodes a machine's disk has come to have, and has in all.
    pub fn inodes_of_machine(&mut self, (new, all): (u64, u64)) {
        if let DiskGauge::Machine { is_new, inodes, .. } = &mut self.gauge {
            *inodes = if *is_new { new } else { all };
        }
    }

    /// Measures, if it is time to.
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
            memory_peak: counters.memory_peak(),
            cpu: counters.cpu(),
            disk: disk.max(self.most.disk),
            inodes: inodes.max(self.most.inodes),
            oom_kills: counters.oom_kills(),
        };
        self.most
    }
}
