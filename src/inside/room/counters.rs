//! Reads the counters of a sandbox's control groups, on either version. Reads files only.

use std::{path::PathBuf, time::Duration};

/// The groups: one directory on version 2, one per controller on version 1.
#[derive(Debug, Default, Clone)]
pub struct Counters {
    dirs: Vec<PathBuf>,
}

impl Counters {
    /// The counters of these groups.
    pub fn of(dirs: Vec<PathBuf>) -> Self {
        Self { dirs }
    }

    /// How often the kernel killed a process of the sandbox because memory ran out.
    pub fn oom_kills(&self) -> u64 {
        self.find(&["memory.events", "memory.oom_control"], "oom_kill ")
    }

    /// Peak memory in bytes so far; 0 if it is not counted.
    pub fn memory_peak(&self) -> u64 {
        self.find(&["memory.peak", "memory.max_usage_in_bytes"], "")
    }

    /// CPU time used so far.
    pub fn cpu(&self) -> Duration {
        match self.find(&["cpuacct.usage"], "") {
            0 => Duration::from_micros(self.find(&["cpu.stat"], "usage_usec ")),
            nanoseconds => Duration::from_nanos(nanoseconds),
        }
    }

    /// The number after `name` in the first of these files that exists in any of the groups; 0 without one.
    fn find(&self, files: &[&str], name: &str) -> u64 {
        let paths = self.dirs.iter().flat_map(|dir| files.iter().map(|file| dir.join(file)));
        let number = |text: String| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        paths
            .filter_map(|path| fs_err::read_to_string(path).ok())
            .find_map(number)
            .unwrap_or(0)
    }
}
