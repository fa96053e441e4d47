//! Limits a sandbox through control groups, version 1 or 2, where the host lets Kiln make groups. Touches
//! `/sys/fs/cgroup` only.
//!
//! Without that right (an ordinary user without delegation) a sandbox runs without limits, and the log says so.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use kiln_inside::room::Counters;
use kiln_records::{Code, Failure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::sandbox::Limits;

/// The usual mount point of control groups.
const MOUNT: &str = "/sys/fs/cgroup";

/// The groups of one sandbox: one directory on version 2, one per controller on version 1.
#[derive(Debug, Default)]
pub(super) struct Cgroup {
    dirs: Vec<PathBuf>,
}

/// A controller's directory and the files to write in it.
type Plan = Vec<(PathBuf, Vec<(&'static str, String)>)>;

/// Scheduling period for the CPU limit, in microseconds; the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;

fn plan_v2(parent: &Path, name: &str, limits: &Limits) -> Plan {
    let mut files = vec![("pids.max", limits.pids.to_string())];
    if let Some(bytes) = limits.memory {
        files.push(("memory.max", bytes.to_string()));
        files.push(("memory.swap.max", "0".to_owned()));
        files.push(("memory.oom.group", "1".to_owned()));
    }
    if let Some(cpus) = limits.cpus {
        files.push((
            "cpu.max",
            format!("{} {CPU_PERIOD_US}", u64::from(cpus) * CPU_PERIOD_US),
        ));
    }
    vec![(parent.join(name), files)]
}

fn plan_v1(mount: &Path, name: &str, limits: &Limits) -> Plan {
    let group = |controller: &str| mount.join(controller).join("kiln").join(name);
    let memory = limits.memory.map(|bytes| ("memory.limit_in_bytes", bytes.to_string()));
    let mut plan = vec![
        (group("pids"), vec![("pids.max", limits.pids.to_string())]),
        // Made even without a limit, since they count usage.
        (group("memory"), memory.into_iter().collect()),
        (group("cpuacct"), Vec::new()),
        (group("freezer"), Vec::new()),
    ];
    if let Some(cpus) = limits.cpus {
        plan.push((
            group("cpu"),
            vec![("cpu.cfs_quota_us", (u64::from(cpus) * CPU_PERIOD_US).to_string())],
        ));
    }
    plan
}

/// Kiln's own group on version 2; an ordinary user may have rights delegated below it. `None` on version 1.
fn own_v2_group(mount: &Path) -> std::io::Result<Option<PathBuf>> {
    let text = fs_err::read_to_string("/proc/self/cgroup")?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"));
    Ok(path.map(|path| mount.join(path.trim_start_matches('/'))))
}

impl Cgroup {
    /// Makes the groups for a sandbox called `name`.
    ///
    /// # Errors
    ///
    /// `cgroup_unavailable` with the reason; nothing is left behind.
    pub(super) fn create(name: &str, limits: &Limits) -> Result<Self, Failure> {
        let mount = Path::new(MOUNT);
        let unseen = |error: std::io::Error| Failure::new(Code::CgroupUnavailable, format!("no limits: {error}"));
        let is_v2 = mount.join("cgroup.controllers").try_exists().map_err(unseen)?;
        let plan = if is_v2 {
            let own = own_v2_group(mount).map_err(unseen)?.unwrap_or_else(|| mount.to_owned());
            plan_v2(&own, &format!("kiln-{name}"), limits)
        } else {
            plan_v1(mount, name, limits)
        };
        let mut cgroup = Self::default();
        for (dir, files) in plan {
            let made = make_group(&dir).and_then(|()| {
                cgroup.dirs.push(dir.clone());
                files
                    .iter()
                    .try_for_each(|(file, value)| fs_err::write(dir.join(file), value))
            });
            // A controller without limits may be missing.
            if made.is_err() && files.is_empty() {
                continue;
            }
            if let Err(error) = made {
                cgroup.remove();
                return Err(Failure::new(
                    Code::CgroupUnavailable,
                    format!("no limits on memory and CPU: {error}"),
                ));
            }
        }
        Ok(cgroup)
    }

    /// Moves a process, and everything it starts from now on, into the groups.
    pub(super) fn admit(&self, pid: Pid) -> Result<(), Failure> {
        self.dirs.iter().try_for_each(|dir| {
            fs_err::write(dir.join("cgroup.procs"), pid.to_string())
                .map_err(|error| Failure::io("cannot limit the sandbox", &error))
        })
    }

    /// Makes all processes of the groups stand still, or go on.
    ///
    /// # Errors
    ///
    /// When the host has no group for that.
    pub(super) fn stand_still(&self, still: bool) -> std::io::Result<()> {
        let mut outcome = Err(ErrorKind::NotFound.into());
        for dir in &self.dirs {
            if let Some(done) = stand_still(dir, still) {
                outcome = Ok(done?);
            }
        }
        outcome
    }

    /// Kills all processes of the groups, also those that stand still.
    pub(super) fn kill(&self) -> std::io::Result<()> {
        kill_all(&self.dirs)
    }

    /// The counters of the groups.
    pub(super) fn counters(&self) -> Counters {
        Counters::of(self.dirs.clone())
    }

    /// Removes the groups; every process in them must have ended.
    pub(super) fn remove(&mut self) {
        self.dirs.drain(..).for_each(|dir| remove_group(&dir));
    }
}

/// The counters of a sandbox's groups, read by another process than its supervisor.
pub(super) fn counters_by_name(name: &str) -> Result<Counters, Failure> {
    Ok(Counters::of(groups_of(name)?))
}

/// Removes the groups of a sandbox whose supervisor died. Blocks for a moment while its processes end.
pub(super) fn remove_by_name(name: &str) -> Result<(), Failure> {
    groups_of(name)?.iter().for_each(|dir| remove_group(dir));
    Ok(())
}

/// Kills every process in the groups of a sandbox.
pub(super) fn kill_by_name(name: &str) -> Result<(), Failure> {
    kill_all(&groups_of(name)?).map_err(|error| Failure::io("cannot kill what is left of a sandbox", &error))
}

/// Kills every process in these groups. What stands still ends without going on.
fn kill_all(dirs: &[PathBuf]) -> std::io::Result<()> {
    for dir in dirs {
        // Version 2 has a file for this. If neither file exists, there is no group.
        if dir.join("cgroup.kill").try_exists()? {
            let _ = fs_err::write(dir.join("cgroup.kill"), "1");
            continue;
        }
        let pids = match fs_err::read_to_string(dir.join("cgroup.procs")) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            pids => pids?,
        };
        for pid in pids.lines().filter_map(|line| line.parse().ok()) {
            // An error means that the process has just ended.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    for dir in dirs {
        // On version 1, what stands still does not even end.
        let _ = stand_still(dir, false);
    }
    Ok(())
}

/// The groups that a sandbox may have, on either version.
fn groups_of(name: &str) -> Result<Vec<PathBuf>, Failure> {
    let mount = Path::new(MOUNT);
    let own = own_v2_group(mount).map_err(|error| Failure::io("cannot find a sandbox's control groups", &error))?;
    let controllers = ["pids", "memory", "cpuacct", "freezer", "cpu"].iter();
    let v1 = controllers.map(|controller| mount.join(controller).join("kiln").join(name));
    Ok(v1.chain(own.map(|own| own.join(format!("kiln-{name}")))).collect())
}

/// Makes the processes of a group stand still, or go on. `None` if the group has no file for that: version 2 has it in every
/// group, version 1 in those of one controller.
fn stand_still(dir: &Path, still: bool) -> Option<std::io::Result<()>> {
    let words = [("cgroup.freeze", ["0", "1"]), ("freezer.state", ["THAWED", "FROZEN"])];
    let (file, word) = words.into_iter().find_map(|(file, [go, stop])| {
        let file = dir.join(file);
        file.exists().then_some((file, if still { stop } else { go }))
    })?;
    Some(fs_err::write(file, word))
}

/// Makes a group, and its parent that all sandboxes share. Outside the control group file system it would be a plain
/// directory, which limits nothing.
fn make_group(dir: &Path) -> std::io::Result<()> {
    let above = dir.ancestors().find(|dir| dir.exists());
    if above.is_some_and(|dir| dir.join("cgroup.procs").exists()) {
        return fs_err::create_dir_all(dir);
    }
    let detail = format!("the controller of {} is not mounted", dir.display());
    Err(std::io::Error::new(ErrorKind::NotFound, detail))
}

/// A group is busy until its last process has been reaped, by the host's init if a supervisor was killed. A group that
/// stays longer is left: an empty group limits nothing.
fn remove_group(dir: &Path) {
    const TRIES: u32 = 100;
    for _ in 0..TRIES {
        match fs_err::remove_dir(dir) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(20));
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_say_the_same_in_their_own_words() {
        let limits = Limits {
            memory: Some(1 << 30),
            cpus: Some(2),
            pids: 500,
            disk: None,
        };
        insta::assert_debug_snapshot!((
            plan_v1(Path::new("/cg"), "job", &limits),
            plan_v2(Path::new("/cg"), "kiln-job", &limits)
        ));
    }
}
