//! Reads the counters of a sandbox's control groups, on either version. Reads files only.

use std::{io, path::PathBuf, time::Duration};

/// The kernel's code for a device, or a control group, that is gone.
const ENODEV: i32 = nix::errno::Errno::ENODEV as i32;

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

    /// How often the kernel killed a process of the sandbox because memory ran out; 0 if it is not counted.
    ///
    /// # Errors
    ///
    /// When a counter exists and cannot be read; so for all of these.
    pub fn oom_kills(&self) -> io::Result<u64> {
        self.find(&["memory.events", "memory.oom_control"], "oom_kill ")
    }

    /// Peak memory in bytes so far; 0 if it is not counted.
    pub fn memory_peak(&self) -> io::Result<u64> {
        self.find(&["memory.peak", "memory.max_usage_in_bytes"], "")
    }

    /// CPU time used so far.
    pub fn cpu(&self) -> io::Result<Duration> {
        Ok(match self.find(&["cpuacct.usage"], "")? {
            0 => Duration::from_micros(self.find(&["cpu.stat"], "usage_usec ")?),
            nanoseconds => Duration::from_nanos(nanoseconds),
        })
    }

    /// The number after `name` in the first of these files that exists in any of the groups; 0 without one.
    fn find(&self, files: &[&str], name: &str) -> io::Result<u64> {
        for path in self.dirs.iter().flat_map(|dir| files.iter().map(|file| dir.join(file))) {
            let text = match fs_err::read_to_string(path) {
                // Reading a counter of a group that is being removed fails with the latter.
                Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ENODEV) => {
                    continue;
                }
                text => text?,
            };
            let number = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            if let Some(number) = number {
                return Ok(number);
            }
        }
        Ok(0)
    }
}
