//! Puts questions to programs of the root, emulated and as twins, and compares the answers. Runs these programs in the
//! root.

use std::{
    ffi::{CString, OsString},
    io::{self, PipeReader, Read, pipe},
    ops::RangeInclusive,
    os::{
        fd::AsFd,
        unix::{ffi::OsStringExt, process::ExitStatusExt},
    },
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::{chdir, chroot, execve},
};

use super::{mount, side_by_side::side_by_side};
use crate::twins::{call, layout, table::Table, world::Trial};

/// The hidden subcommand of the agent that runs one program in the root.
pub const COMMAND: &str = "in-root";

/// Marks the end of the environment among the subcommand's arguments.
const END: &str = "--";

/// Seconds for one question. An emulated interpreter needs one or two, on a busy machine ten.
const PATIENCE: &str = "60";

/// How long an answer is read. A process that the program left behind may hold the pipe open for ever.
const READING: Duration = Duration::from_secs(65);

/// The most bytes of an answer; the rest is cut.
const LONGEST_ANSWER: usize = 1 << 20;

/// How often a question is put to a program whose answers change.
const MOST_ROUNDS: u32 = 20;

/// The number of programs questioned at the same time.
pub(super) const ASKERS: usize = 2;

/// The environment that both kinds of runs have in common.
const ENVIRONMENT: [&str; 3] = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C"];

/// The subcommand: `arguments` are the root, the directory of twins, the environment in the order in which the program
/// gets it, `--`, and the program with its arguments. Returns only when it cannot be run.
pub fn main(arguments: impl Iterator<Item = OsString>) -> io::Error {
    fn run(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
        let mut next = || arguments.next().ok_or(io::ErrorKind::InvalidInput);
        let (root, world) = (next()?, next()?);
        let words: Vec<CString> = arguments
            .map(|word| CString::new(word.into_vec()))
            .collect::<Result<_, _>>()?;
        let mut halves = words.splitn(2, |word| word.to_bytes() == END.as_bytes());
        let environment = halves.next().unwrap_or_default();
        let command = halves.next().unwrap_or_default();
        let program = command.first().ok_or(io::ErrorKind::InvalidInput)?;
        mount::enter(Path::new(&root), Path::new(&world))?;
        mount::devices(Path::new(&root))?;
        chroot(root.as_os_str())?;
        chdir("/")?;
        match execve(program, command, environment)? {}
    }
    match run(arguments) {
        Ok(()) => io::ErrorKind::Other.into(),
        Err(error) => error,
    }
}

/// A program's output, both streams as they arrived, and its exit status.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    status: i32,
    text: Vec<u8>,
}

/// The releases of glibc, 2.34 and so on, of which it is known what their loader looks at before it answers `--verify`.
const KNOWN: RangeInclusive<u32> = 34..=41;

/// Whether a loader says that it is of such a release.
fn is_known(version: &[u8]) -> bool {
    let text = String::from_utf8_lossy(version);
    let release = text.split_once(" release version 2.").map(|(_, rest)| rest);
    let digits = release.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    digits
        .and_then(|digits| digits.parse().ok())
        .is_some_and(|release| KNOWN.contains(&release))
}

/// What becomes of the standard error of a program.
#[derive(Debug, Clone, Copy)]
enum Errors {
    Kept,
    Dropped,
}

/// What arrives until all writers are gone, the answer has its full length, or the time is over.
fn read(mut pipe: &PipeReader, time: Duration) -> io::Result<Vec<u8>> {
    let end = Instant::now() + time;
    let mut text = Vec::new();
    while text.len() < LONGEST_ANSWER {
        let left = end.saturating_duration_since(Instant::now());
        let mut waited = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        if poll(&mut waited, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX))? == 0 {
            break;
        }
        let mut piece = [0; 4096];
        match pipe.read(&mut piece)? {
            0 => break,
            length => text.extend_from_slice(piece.get(..length).unwrap_or_default()),
        }
    }
    text.truncate(LONGEST_ANSWER);
    Ok(text)
}

/// Where programs are questioned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) root: &'a Path,
    pub(super) world: &'a Path,
}

impl Place<'_> {
    fn run(self, environment: &[&str], command: &[&str], errors: Errors) -> io::Result<Said> {
        let (reader, writer) = pipe()?;
        let mut timeout = Command::new("timeout");
        timeout.args(["--signal=KILL", PATIENCE]).arg(std::env::current_exe()?);
        timeout.arg(COMMAND).arg(self.root).arg(self.world);
        timeout.args(environment).args(ENVIRONMENT).arg(END).args(command);
        let errors = match errors {
            Errors::Kept => writer.try_clone()?.into(),
            Errors::Dropped => Stdio::null(),
        };
        timeout.stdin(Stdio::null()).stdout(writer).stderr(errors);
        let mut child = timeout.spawn()?;
        // It holds the writing ends of the pipe.
        drop(timeout);
        let text = read(&reader, READING)?;
        drop(reader);
        let status = child.wait()?.into_raw();
        Ok(Said { status, text })
    }

    fn emulated(self, command: &[&str], errors: Errors) -> io::Result<Said> {
        self.run(&[&format!("{}=off", layout::SWITCH)], command, errors)
    }

    /// What the image's dynamic loader says of its version on standard output, if that is all it does.
    pub(super) fn loader_version(self, loader: &str) -> Option<Vec<u8>> {
        let ask = |errors| self.emulated(&[loader, "--version"], errors);
        let (all, output) = (ask(Errors::Kept).ok()?, ask(Errors::Dropped).ok()?);
        (all == output && all.status == 0 && is_known(&all.text)).then_some(all.text)
    }

    /// `/proc/cpuinfo` as the emulator shows it. `None` while the root has no program to read it.
    pub(super) fn cpuinfo(self) -> Option<Vec<u8>> {
        let said = self.emulated(&["/bin/cat", "/proc/cpuinfo"], Errors::Kept).ok()?;
        (said.status == 0 && !said.text.is_empty()).then_some(said.text)
    }

    /// Whether a twin answers like the emulated program.
    fn is_equal(self, trial: &Trial, questions: &[&[String]]) -> io::Result<bool> {
        let name = trial.path.rsplit('/').next().unwrap_or_default();
        // The same environment, in the same order, as from `kiln-exec`; children must not wait for trials, which wait
        // for them.
        let environment = [
            &*[call::EXE, &trial.path].concat(),
            &*[call::COMM, name].concat(),
            &*format!("{}=now", layout::SWITCH),
        ];
        let twin = trial.twin.to_string_lossy();
        let call = call::words(&trial.path, &twin);
        for question in questions {
            let question: Vec<&str> = question.iter().map(String::as_str).collect();
            let emulated = || self.emulated(&[&[&*trial.path], &*question].concat(), Errors::Kept);
            let native = || self.run(&environment, &[&call, &*question].concat(), Errors::Kept);
            if !are_equal(emulated, native)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Tries programs. Returns whether the twin of each answers like it, or why that could not be tried.
    pub(super) fn try_all(self, table: &Table, trials: Vec<Trial>) -> Vec<(Trial, io::Result<bool>)> {
        side_by_side(trials, ASKERS, |trial| {
            let questions: Vec<_> = table.probes(&trial.path).collect();
            self.is_equal(trial, &questions)
        })
    }
}

/// Whether both answers are equal, asked for again where the first one changes: files of the root are being installed.
fn are_equal<T: PartialEq>(
    mut one: impl FnMut() -> io::Result<T>,
    mut other: impl FnMut() -> io::Result<T>,
) -> io::Result<bool> {
    let mut before = one()?;
    for _ in 0..MOST_ROUNDS {
        if before == other()? {
            return Ok(true);
        }
        let now = one()?;
        if now == before {
            return Ok(false);
        }
        before = now;
    }
    Err(io::Error::other("its answers change all the time"))
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, io::Write};

    use super::*;

    #[test]
    fn a_loader_of_another_release_is_not_answered_for() {
        for (release, known) in [
            ("2.33", false),
            ("2.36", true),
            ("2.41", true),
            ("2.42", false),
            ("3.36", false),
        ] {
            let text =
                format!("ld.so (Debian GLIBC 2.36-9+deb12u14) stable release version {release}.\nCopyright (C) 2022");
            assert_eq!(is_known(text.as_bytes()), known, "{text}");
        }
        assert!(!is_known(b"musl libc (aarch64)\nVersion 1.2.3"));
    }

    #[test]
    fn answers_that_differ_because_the_root_changes_are_asked_for_again() {
        let files = Cell::new(0);
        let grown = || {
            files.set((files.get() + 1).min(7));
            Ok(files.get())
        };
        assert!(are_equal(grown, grown).unwrap());
        assert!(!are_equal(|| Ok(1), || Ok(2)).unwrap());
        assert!(are_equal(|| Ok(1), || Ok(1)).unwrap());
        let (count, next) = (Cell::new(0), |count: &Cell<u32>| Ok(count.replace(count.get() + 1)));
        are_equal(|| next(&count), || next(&count)).unwrap_err();
    }

    #[test]
    fn a_process_that_keeps_the_pipe_open_is_not_waited_for_for_ever() {
        let (reader, mut writer) = pipe().unwrap();
        writer.write_all(b"version 1").unwrap();
        assert_eq!(read(&reader, Duration::from_millis(50)).unwrap(), b"version 1");
        drop(writer);
        assert_eq!(read(&reader, Duration::from_mins(1)).unwrap(), b"");
    }
}
