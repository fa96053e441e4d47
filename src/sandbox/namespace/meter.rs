//! Measuring what a sandbox uses, from beside it.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::sys::statvfs::statvfs;

use super::{cgroup::Cgroup, walk::Walker};
use crate::sandbox::Usage;

/// How often a sandbox is measured.
const EVERY: Duration = Duration::from_secs(1);

/// How its disk space is measured.
#[derive(Debug)]
pub(super) enum DiskGauge {
    /// Not at all.
    None,
    /// A file system of its own is mounted there; what was used of it before anything was written does not count.
    FileSystem { mounted_on: PathBuf, empty: (u64, u64) },
    /// A directory is walked through.
    Directory(Walker),
}

/// Measures a sandbox, and remembers the most.
#[derive(Debug)]
pub(super) struct Meter {
    gauge: DiskGauge,
    most: Usage,
    due: Instant,
}

impl DiskGauge {
    /// For a file system that has just been mounted, and was `is_new`.
    pub(super) fn of_file_system(mounted_on: &Path, is_new: bool) -> Self {
        let empty = if is_new { used(mounted_on) } else { (0, 0) };
        Self::FileSystem {
            mounted_on: mounted_on.to_owned(),
            empty,
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
            Self::Directory(walker) => walker.last(),
        }
    }
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
    pub(super) fn new(gauge: DiskGauge) -> Self {
        Self {
            gauge,
            most: Usage::default(),
            due: Instant::now(),
        }
    }

    /// Measures, if it is time to.
    pub(super) fn tick(&mut self, cgroup: &Cgroup) -> Option<Usage> {
        let now = Instant::now();
        (now >= self.due).then(|| {
            self.due = now + EVERY;
            self.read(cgroup)
        })
    }

    /// Measures now.
    pub(super) fn read(&mut self, cgroup: &Cgroup) -> Usage {
        let (disk, inodes) = self.gauge.read();
        self.most = Usage {
            memory_peak: cgroup.memory_peak(),
            cpu: cgroup.cpu(),
            disk: disk.max(self.most.disk),
            inodes: inodes.max(self.most.inodes),
            oom_kills: cgroup.oom_kills(),
        };
        self.most
    }
}
