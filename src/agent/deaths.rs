//! Collects a watcher's reports on programs of the image that ran under the emulator, or died. Reads one socket.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    process::Stdio,
};

use kiln_records::{Code, Failure, Warning, protocol::Emulator};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::UnixStream,
    process::Command,
    task::JoinHandle,
};

use super::{
    events::Events,
    programs::Programs,
    watch::{self, Cause, Death, Failures, Report},
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
pub(super) fn collect(reports: UnixStream, events: Events) -> JoinHandle<(Vec<Death>, Programs, Failures)> {
    tokio::spawn(async move {
        let (mut deaths, mut programs, mut failures) = (Vec::new(), Programs::default(), Failures::default());
        let mut lines = BufReader::new(reports).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            match serde_json::from_str(&line) {
                Ok(Report::Death(death)) => {
                    events.say(format!("emulator fault: {}", told(&death))).await;
                    deaths.push(death);
                }
                Ok(Report::Programs(ran)) => programs.merge(ran),
                Ok(Report::Failures(passed_on)) => failures = passed_on,
                Ok(Report::Blind(why)) => {
                    programs.note_unwatched();
                    let text = format!("crashes of the image's programs are not detected: {why}");
                    events.warn(Warning::new(Code::CrashesUnwatched, text)).await;
                }
                Err(_) => break,
            }
        }
        if let Some(first) = deaths.first().filter(|first| matches!(first.cause, Cause::Twin(_))) {
            programs.note_dead_twin(&first.program);
        }
        for death in &deaths {
            if let Cause::TwinUnequal(Some(command)) = death.cause {
                programs.note_given_up(command);
            }
        }
        (deaths, programs, failures)
    })
}

/// The failure of the job that these deaths cause.
pub(super) fn fault(deaths: &[Death]) -> Option<Failure> {
    let first = deaths.first()?;
    let detail = match deaths.len() - 1 {
        0 => told(first),
        more => format!("{}, and {more} more after it", told(first)),
    };
    let advice = match first.cause {
        Cause::Emulated(_) => "build natively, or without that program, to find out whether the emulator is at fault",
        Cause::Twin(_) => "build with `--twins off`, to find out whether the twin is at fault",
        Cause::TwinGaveUp => {
            "set KILN_TWINS=off for that command: the line in the log that begins with `kiln:` has the reason"
        }
        Cause::TwinUnequal(_) => "set KILN_TWINS=off for that command",
    };
    let hint = format!("its work is not done, even if the script continued; {advice}");
    // An emulated program that dies does so without twins, too.
    let all_emulated = deaths.iter().all(|death| matches!(death.cause, Cause::Emulated(_)));
    Some(
        Failure::new(Code::EmulatorFault, detail)
            .hint(hint)
            .beyond_twins(all_emulated),
    )
}

fn told(death: &Death) -> String {
    let Death {
        pid, program, command, ..
    } = death;
    let what = match &death.cause {
        Cause::Emulated(signal) => format!("was ended by {signal} under the emulator"),
        Cause::Twin(signal) => format!("was ended by {signal} as a native twin"),
        Cause::TwinGaveUp => "can only go on under the emulator".to_owned(),
        Cause::TwinUnequal(_) => {
            "computed 0/0, or a number too large for its integer, as a native twin, which has other results".to_owned()
        }
    };
    format!("`{command}` ({program}, process {pid}) {what}")
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
            cause: Cause::Emulated("SIGSEGV".to_owned()),
        };
        assert_eq!(fault(&[]), None);
        assert!(!fault(&[death(7), death(8)]).unwrap().may_be_of_twins());
        let one = fault(&[death(7)]).unwrap();
        assert_eq!(
            (one.code, one.detail.as_str()),
            (
                Code::EmulatorFault,
                "`sh crash` (/bin/busybox, process 7) was ended by SIGSEGV under the emulator"
            )
        );
        let three = fault(&[death(7), death(8), death(9)]).unwrap().detail;
        for (cause, told) in [
            (
                Cause::Twin("SIGSEGV".to_owned()),
                "was ended by SIGSEGV as a native twin",
            ),
            (Cause::TwinGaveUp, "can only go on under the emulator"),
            (Cause::TwinUnequal(None), "as a native twin, which has other results"),
        ] {
            let failure = fault(&[Death { cause, ..death(7) }]).unwrap();
            assert_eq!(failure.code, Code::EmulatorFault);
            assert!(failure.detail.ends_with(told), "{failure}");
            assert!(failure.may_be_of_twins());
        }
        assert!(
            three.starts_with(&one.detail) && three.ends_with(", and 2 more after it"),
            "{three}"
        );
    }
}
