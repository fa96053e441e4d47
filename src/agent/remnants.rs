//! What a tool leaves behind when it ends: programs that hold its output open, which nobody would wait for. Reads `/proc` and ends
//! processes.

use std::{os::fd::AsFd, time::Duration};

use kiln_records::{Code, Warning};
use nix::{
    sys::{
        signal::{Signal, kill},
        stat::fstat,
    },
    unistd::Pid,
};

/// How long a tool's output may stay open after its end.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// How long a program may take to end when it is asked, and then when it is killed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// The most programs that are named at once.
const MOST_NAMED: usize = 20;

/// The most characters of a program's command line that are shown.
const MOST_SHOWN: usize = 200;

/// A process that holds an end of a pipe, and its command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pid: i32,
    command: String,
}

/// The number of a pipe, which is the same at both of its ends.
pub(crate) fn number(pipe: &impl AsFd) -> Option<u64> {
    fstat(pipe).ok().map(|found| found.st_ino)
}

/// The other processes that hold one of these pipes.
pub(crate) fn holders(pipes: &[u64]) -> Vec<Holder> {
    let names: Vec<String> = pipes.iter().map(|number| format!("pipe:[{number}]")).collect();
    let own = Pid::this().as_raw();
    let all = fs_err::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let holds = |pid: &i32| {
        let open = fs_err::read_dir(format!("/proc/{pid}/fd"));
        let mut open = open.into_iter().flatten().flatten();
        open.any(|file| {
            let target = fs_err::read_link(file.path());
            target.is_ok_and(|target| names.iter().any(|name| target.as_os_str() == name.as_str()))
        })
    };
    let holders = all.filter(|pid| *pid != own).filter(holds);
    let described = holders.map(|pid| Holder {
        pid,
        command: command_of(pid),
    });
    described.collect()
}

fn command_of(pid: i32) -> String {
    let words = fs_err::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&words).replace('\0', " ");
    text.trim().chars().take(MOST_SHOWN).collect()
}

/// Sends a signal to each.
pub(crate) fn send(holders: &[Holder], signal: Signal) {
    for holder in holders {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(holder.pid), signal);
    }
}

/// The warning of programs that a tool left.
pub(crate) fn told(program: &str, left: &[Holder]) -> Warning {
    let mut names: Vec<String> = left
        .iter()
        .take(MOST_NAMED)
        .map(|holder| format!("`{}` (process {})", holder.command, holder.pid))
        .collect();
    if left.len() > MOST_NAMED {
        names.push("and more".to_owned());
    }
    let message = format!(
        "{program} has ended, but programs that it left hold its output open; they are ended: {}",
        names.join(", ")
    );
    Warning::new(Code::ProgramsLeft, message)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn who_holds_a_pipe_is_found_by_its_number() {
        let mut child = Command::new("sleep").arg("600").stdout(Stdio::piped()).spawn().unwrap();
        let pipe = number(child.stdout.as_ref().unwrap()).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found = holders(&[pipe]);
        assert_eq!(
            found,
            [Holder {
                pid,
                command: "sleep 600".to_owned()
            }]
        );
        let text = told("images.sh", &found).message;
        assert!(
            text.ends_with(&format!("they are ended: `sleep 600` (process {pid})")),
            "{text}"
        );
        send(&found, Signal::SIGKILL);
        assert!(!child.wait().unwrap().success());
        assert_eq!(holders(&[pipe]), []);
    }
}
