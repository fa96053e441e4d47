//! Finds and kills the processes of a job.

use std::path::Path;

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::faults::{random::Random, site::Site};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Server,
    Supervisor,
    /// The process that goes into the sandbox's namespaces.
    Entrance,
    /// Process 1 of the sandbox.
    Init,
    Agent,
    /// Anything that the agent started.
    Tool,
}

impl Victim {
    pub const ALL: [Victim; 6] = [
        Victim::Server,
        Victim::Supervisor,
        Victim::Entrance,
        Victim::Init,
        Victim::Agent,
        Victim::Tool,
    ];

    /// The victim's current process, if any.
    fn find(self, site: &Site, job: &str, random: &mut Random) -> Option<Pid> {
        if self == Victim::Server {
            return site.server_pid();
        }
        let mut pid = supervisor(&site.kiln.data().join("sandboxes"), job)?;
        let depth = match self {
            Victim::Entrance => 1,
            Victim::Init => 2,
            Victim::Agent | Victim::Tool => 3,
            Victim::Server | Victim::Supervisor => 0,
        };
        for _ in 0..depth {
            pid = children(pid).first().copied()?;
        }
        if self == Victim::Tool {
            let mut tools = descendants(pid);
            random.shuffle(&mut tools);
            return tools.first().copied();
        }
        Some(pid)
    }

    /// Kills the victim. Returns whether there was one.
    pub fn kill(self, site: &Site, job: &str, random: &mut Random) -> bool {
        if self == Victim::Server {
            return site.down(Signal::SIGKILL).is_some();
        }
        let found = self.find(site, job, random);
        found.is_some_and(|pid| kill(pid, Signal::SIGKILL).is_ok())
    }
}

/// The process that looks after a job's sandbox: as its lock says, if that process is still the same.
fn supervisor(sandboxes: &Path, job: &str) -> Option<Pid> {
    let lock = fs_err::read(sandboxes.join(format!("{job}.lock"))).ok()?;
    let lock: Value = serde_json::from_slice(&lock).ok()?;
    let pid = i32::try_from(lock["pid"].as_i64()?).ok()?;
    let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Field 22, counted from behind the name, which is the second.
    let started = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse::<u64>().ok()?;
    (lock["started"].as_u64()? == started).then(|| Pid::from_raw(pid))
}

fn children(pid: Pid) -> Vec<Pid> {
    let Ok(tasks) = fs_err::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let of = |task: std::io::Result<fs_err::DirEntry>| fs_err::read_to_string(task.ok()?.path().join("children")).ok();
    let pids: Vec<_> = tasks.filter_map(of).collect();
    let pids = pids.iter().flat_map(|text| text.split_whitespace());
    pids.map(|pid| Pid::from_raw(pid.parse().unwrap())).collect()
}

fn descendants(pid: Pid) -> Vec<Pid> {
    let below = |child| [vec![child], descendants(child)].concat();
    children(pid).into_iter().flat_map(below).collect()
}
