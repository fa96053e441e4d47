//! The processes of the sandbox beside the agent and its tools: those that users and programs left running. Reads `/proc`
//! and ends processes.
//!
//! Process 1 of a sandbox adopts and reaps orphans, so no process that has ended stays. Nothing here needs a new
//! process or thread: the limit of these may be reached.

use std::{
    collections::{HashMap, HashSet},
    io,
    time::{Duration, Instant},
};

use kiln_records::{Code, Failure};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// How long killed processes may take to disappear.
const KILLED: Duration = Duration::from_secs(20);

/// The pause before processes are looked for again.
const PAUSE: Duration = Duration::from_millis(20);

/// The name of a sandbox's process 1. Elsewhere, process 1 has other children than a job's.
const INIT: &str = "kiln-init";

/// The process that adopts orphans.
const ADOPTS: i32 = 1;

/// What a look at `/proc` says of one process.
#[derive(Debug, PartialEq, Eq)]
struct Seen<'a> {
    name: std::borrow::Cow<'a, str>,
    parent: i32,
    has_ended: bool,
}

/// Ends all processes of the sandbox but the agent.
///
/// # Errors
///
/// `sandbox_stuck` when some do not end.
pub async fn end_all() -> Result<(), Failure> {
    let own = Pid::this().as_raw();
    end(move || Ok(below(&living()?, &[own], own))).await
}

/// Ends these children of the agent, all processes below them, and all that process 1 has adopted.
///
/// # Errors
///
/// As [`end_all`].
pub async fn end_strays(children: Vec<i32>) -> Result<(), Failure> {
    let own = Pid::this().as_raw();
    end(move || {
        let all = living()?;
        // A child that has ended may have a successor of its number.
        let children: Vec<i32> = children
            .iter()
            .copied()
            .filter(|child| all.get(child).is_some_and(|(parent, _)| *parent == own))
            .collect();
        let mut found = below(&all, &children, own);
        found.extend(children);
        Ok(found)
    })
    .await
}

/// Ends the processes that `look` finds, until there are none. They are stopped first, so that none can start another.
async fn end(look: impl Fn() -> io::Result<HashSet<i32>>) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut stopped = HashSet::new();
    loop {
        let found = look().map_err(|error| Failure::io("cannot look for processes that were left running", &error))?;
        if found.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > KILLED {
            return Err(Failure::new(
                Code::SandboxStuck,
                format!(
                    "{} processes that were left running in the root do not end",
                    found.len()
                ),
            ));
        }
        let are_known = found.is_subset(&stopped);
        let signal = if are_known { Signal::SIGKILL } else { Signal::SIGSTOP };
        for pid in &found {
            // The process may be gone already.
            let _ = kill(Pid::from_raw(*pid), signal);
        }
        stopped = found;
        if are_known {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The processes below `tops`, and in a sandbox also those below process 1, without those below `own` otherwise.
fn below(all: &HashMap<i32, (i32, String)>, tops: &[i32], own: i32) -> HashSet<i32> {
    let mut within: HashSet<i32> = tops.iter().copied().collect();
    if all.get(&ADOPTS).is_some_and(|(_, name)| name == INIT) {
        within.insert(ADOPTS);
    }
    loop {
        let more: Vec<i32> = all
            .iter()
            .filter(|(pid, (parent, _))| **pid != own && within.contains(parent) && !within.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            break;
        }
        within.extend(more);
    }
    within.retain(|pid| *pid != ADOPTS && !tops.contains(pid));
    within
}

/// All processes that have not ended: their parents and names.
fn living() -> io::Result<HashMap<i32, (i32, String)>> {
    let mut living = HashMap::new();
    for entry in fs_err::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        match fs_err::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => {
                let unknown = || io::Error::other(format!("the kernel's description of process {pid} is not known"));
                let seen = read(&stat).ok_or_else(unknown)?;
                if !seen.has_ended {
                    living.insert(pid, (seen.parent, seen.name.into_owned()));
                }
            }
            // It has ended since the directory was read.
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(living)
}

/// Whether reading a file of `/proc` failed since its process is gone.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

/// Reads `/proc/PID/stat`.
fn read(stat: &[u8]) -> Option<Seen<'_>> {
    // A name can contain anything, blanks, parentheses and bytes that are no text included.
    let (begin, end) = (
        stat.iter().position(|byte| *byte == b'(')?,
        stat.iter().rposition(|byte| *byte == b')')?,
    );
    let words: Vec<&str> = str::from_utf8(&stat[end + 1..]).ok()?.split_whitespace().collect();
    let (state, threads) = (*words.first()?, words.get(17)?.parse::<u32>().ok()?);
    Some(Seen {
        name: String::from_utf8_lossy(stat.get(begin + 1..end)?),
        parent: words.get(1)?.parse().ok()?,
        // A process whose first thread has ended lives on in the others.
        has_ended: matches!(state, "Z" | "X") && threads <= 1,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What is ended of processes 1 (named so), 2 (the agent), 3 and 4 below that, and 5, an orphan with the child 6.
    fn ended(init: &str, tops: &[i32]) -> Vec<i32> {
        let parents = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 1), (6, 5)];
        let named = |pid: i32| if pid == 1 { init.to_owned() } else { String::new() };
        let all = parents.into_iter().map(|(pid, parent)| (pid, (parent, named(pid))));
        let mut ended: Vec<_> = below(&all.collect(), tops, 2).into_iter().collect();
        ended.sort_unstable();
        ended
    }

    #[test]
    fn orphans_are_ended_in_a_sandbox_and_nobody_elses_processes_elsewhere() {
        assert_eq!(ended(INIT, &[2]), [3, 4, 5, 6]);
        assert_eq!(ended("systemd", &[2]), [3, 4]);
        assert_eq!(ended(INIT, &[]), [5, 6]);
        assert_eq!(ended("systemd", &[]), Vec::<i32>::new());
        assert_eq!(ended(INIT, &[3]), [4, 5, 6]);
    }

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let rest = "5 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0";
        let stat = |name: &[u8], state: &str, threads: u32| {
            [b"7 (", name, format!(") {state} {rest} {threads} 0 1").as_bytes()].concat()
        };
        for (name, state, threads, has_ended) in [
            (&b"sleep"[..], "S", 1, false),
            (b") Z 1 (", "S", 1, false),
            (b"\xff\xfe\n", "R", 1, false),
            (b"sshd", "Z", 1, true),
            // Its first thread has ended.
            (b"java", "Z", 3, false),
        ] {
            let stat = stat(name, state, threads);
            let seen = read(&stat).unwrap();
            assert_eq!((seen.parent, seen.has_ended), (5, has_ended), "{state} {threads}");
            assert_eq!(seen.name, String::from_utf8_lossy(name));
        }
        assert_eq!(read(b"7 (sleep"), None);
    }

    #[tokio::test]
    async fn a_child_is_ended_with_all_below_it_and_other_children_are_not() {
        let start = |script: &str| {
            let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pid = i32::try_from(child.id()).unwrap();
            (child, pid)
        };
        let (mut stray, pid) = start("sleep 600 & wait");
        let (mut tool, of_tool) = start("exec sleep 600");
        let child = loop {
            let all = living().unwrap();
            if let Some((child, _)) = all.iter().find(|(_, (parent, _))| *parent == pid) {
                break *child;
            }
        };
        end_strays(vec![pid]).await.unwrap();
        assert!(!stray.wait().unwrap().success());
        while living().unwrap().contains_key(&child) {}
        assert!(living().unwrap().contains_key(&of_tool));
        // No child of this process.
        end_strays(vec![child]).await.unwrap();
        tool.kill().unwrap();
        tool.wait().unwrap();
    }
}
