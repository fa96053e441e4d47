//! Collects a watcher's reports on programs of the image that ran under the emulator, or died. Reads one socket.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    process::Stdio,
};

use kiln_records::{Code, Failure, protocol::Emulator};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::UnixStream,
    process::Command,
    task::JoinHandle,
};

use super::{
    events::Events,
    programs::Programs,
    watch::{self, Death, Ran, Report},
};

/// The same command, run through a watcher, and the socket with the watcher's reports. Output, environment and
/// directory stay unchanged; the program's standard input is empty.
pub(super) fn watched(command: &Command, emulator: &Emulator) -> io::Result<(Command, UnixStream)> {
    let command = command.as_std();
    let (ours, theirs) = StdUnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut watched = Command::new(std::env::current_exe()?);
    watched.args([watch::COMMAND, &emulator.binfmt.interpreter]);
    watched.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => watched.env(name, value),
            None => watched.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        watched.current_dir(dir);
    }
    watched.stdin(Stdio::from(OwnedFd::from(theirs)));
    Ok((watched, UnixStream::from_std(ours)?))
}

/// Logs each death, and collects all reports until the watcher ends.
pub(super) fn collect(reports: UnixStream, events: Events) -> JoinHandle<(Vec<Death>, Programs)> {
    tokio::spawn(async move {
        let (mut deaths, mut programs) = (Vec::new(), Programs::default());
        let mut lines = BufReader::new(reports).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            match serde_json::from_str(&line) {
                Ok(Report::Death(death)) => {
                    events.say(format!("emulator fault: {}", told(&death))).await;
                    deaths.push(death);
                }
                Ok(Report::Programs(ran)) => programs.merge(ran),
                Ok(Report::Blind(why)) => {
                    let text = format!("warning: crashes of the image's programs are not detected: {why}");
                    events.say(text).await;
                }
                Err(_) => break,
            }
        }
        if let Some(first) = deaths.first().filter(|first| first.ran == Ran::Twin) {
            programs.note_dead_twin(&first.program);
        }
        (deaths, programs)
    })
}

/// The failure of the job that these deaths cause.
pub(super) fn fault(deaths: &[Death]) -> Option<Failure> {
    let first = deaths.first()?;
    let detail = match deaths.len() - 1 {
        0 => told(first),
        more => format!("{}, and {more} more after it", told(first)),
    };
    let advice = match first.ran {
        Ran::Emulated => "build natively, or without that program, to find out whether the emulator is at fault",
        Ran::Twin => "build with `--twins off`, to find out whether the twin is at fault",
        Ran::TwinGivenUp => {
            "set KILN_TWINS=off for that command: the line in the log that begins with `kiln:` has the reason"
        }
    };
    let hint = format!("its work is not done, even if the script continued; {advice}");
    Some(Failure::new(Code::EmulatorFault, detail).hint(hint))
}

fn told(death: &Death) -> String {
    let Death {
        pid,
        program,
        command,
        signal,
        ran,
    } = death;
    let how = match ran {
        Ran::Emulated => "under the emulator",
        Ran::Twin => "as a native twin",
        Ran::TwinGivenUp => return format!("`{command}` ({program}, process {pid}) can only go on under the emulator"),
    };
    format!("`{command}` ({program}, process {pid}) was ended by {signal} {how}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_death_is_the_cause() {
        let death = |pid| Death {
            pid,
            program: "/bin/busybox".to_owned(),
            command: "sh crash".to_owned(),
            signal: "SIGSEGV".to_owned(),
            ran: Ran::Emulated,
        };
        assert_eq!(fault(&[]), None);
        let one = fault(&[death(7)]).unwrap();
        assert_eq!(
            (one.code, one.detail.as_str()),
            (
                Code::EmulatorFault,
                "`sh crash` (/bin/busybox, process 7) was ended by SIGSEGV under the emulator"
            )
        );
        let three = fault(&[death(7), death(8), death(9)]).unwrap().detail;
        let twin = Death {
            ran: Ran::Twin,
            ..death(7)
        };
        let failure = fault(&[twin]).unwrap();
        assert_eq!(failure.code, Code::EmulatorFault);
        assert!(failure.detail.ends_with("by SIGSEGV as a native twin"), "{failure}");
        let given_up = Death {
            ran: Ran::TwinGivenUp,
            ..death(7)
        };
        let failure = fault(&[given_up]).unwrap();
        assert!(
            failure.detail.ends_with("can only go on under the emulator"),
            "{failure}"
        );
        assert!(
            three.starts_with(&one.detail) && three.ends_with(", and 2 more after it"),
            "{three}"
        );
    }
}
