//! Watches how programs of the image end, under the emulator or as native twins. Traces processes, and reports on a
//! socket.
//!
//! A program that a signal ends under the emulator is a fault of the emulation, and scripts often hide it. A script
//! cannot hide it from a tracer: `kiln-agent watch EMULATOR PROGRAM ARGUMENT…` starts a program and follows it and all
//! its descendants. System calls are not traced; a process stops only when it begins, starts a program, gets a signal, or
//! ends. A native twin stands for an emulated program, so its death counts as much. The CPU time of processes that end
//! under the emulator is added up.
//!
//! A result that no number stands for differs between CPUs, but the CPU keeps that there was one. So the registers of
//! each thread are looked at when it ends: a twin that had such a result was not equal to the emulated program.

mod family;
mod tracing;

use std::{
    collections::BTreeSet,
    ffi::{CString, OsString},
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStringExt, fs::MetadataExt},
    },
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    libc,
    sys::{prctl, signal::Signal, stat::Mode},
    unistd::{ForkResult, Pid, dup2_stdin, execvp, fork, pipe2},
};
use serde::{Deserialize, Serialize};

pub use self::family::{Culprit, Failures};
use self::{
    family::{Family, Program},
    tracing::{ending_status, event_message, go_on, interrupt, seize, traced, wait, was_invalid},
};
use super::programs::Programs;

/// The hidden subcommand of the agent.
pub const COMMAND: &str = "watch";

/// Signals that end a program after a fault of its own; other signals are sent deliberately to end it.
const FAULTS: [Signal; 7] = [
    Signal::SIGSEGV,
    Signal::SIGILL,
    Signal::SIGBUS,
    Signal::SIGABRT,
    Signal::SIGTRAP,
    Signal::SIGFPE,
    Signal::SIGSYS,
];

/// The names of shells' files.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash"];

/// Longer command lines are cut.
const LONGEST_COMMAND: usize = 200;

/// The most processes whose end is reported. A recipe whose programs all die gets no more memory for it; its job fails for the
/// first one.
const MOST_REPORTED: usize = 1000;

/// How long processes that go on at the end may take to stop.
const PATIENCE: Duration = Duration::from_secs(1);

/// A message of the watcher, one JSON line each, on its former standard input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// A program of the image died, or should not have lived.
    Death(Death),
    /// The programs that ran under the emulator; once, at the end.
    Programs(Programs),
    /// Deaths cannot be watched here, for this reason; the program runs unwatched.
    Blind(String),
    /// Whose failures were passed on; once, at the end.
    Failures(Failures),
}

/// The end of one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// Its process number inside the sandbox.
    pub pid: i32,
    /// The program's path in the image.
    pub program: String,
    /// Its command line: name and arguments.
    pub command: String,
    /// How it ran, and what was wrong.
    pub cause: Cause,
}

/// Why the end of a program is reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The signal of this name ended it under the emulator.
    Emulated(String),
    /// The signal of this name ended it as its native twin.
    Twin(String),
    /// As its native twin, it ended itself: only the emulated program can do what it came to.
    TwinGaveUp,
    /// As its native twin, it had a result that differs between CPUs, or that could not be ruled out. The hash of its
    /// command, unless it has written over its words.
    TwinUnequal(Option<u64>),
}

/// Two parts of a list of strings, each of which ends with a zero.
pub type Parts<'a> = (&'a [u8], &'a [u8]);

/// How the processes of native twins are recognised, and what they stand for.
#[derive(Debug, Clone, Copy)]
pub struct Twins {
    /// Their loader in the root of such a process, which is its file.
    pub loader: &'static str,
    /// The program's name and its arguments, from the arguments of such a process.
    pub words: fn(&[u8]) -> Option<Parts<'_>>,
    /// The program's path and its variables, from the variables of such a process.
    pub variables: fn(&[u8]) -> Parts<'_>,
    /// The hash of a command, from the program's path and its arguments.
    pub hash: fn(Parts<'_>) -> u64,
    /// The number of the signal by which one ends itself.
    pub given_up: i32,
}

/// The subcommand: `arguments` are the emulator's path, then the program and its arguments. Returns the program's exit
/// code, or 128 plus the number of the signal that ended it.
///
/// # Errors
///
/// The program cannot be started.
pub fn main(mut arguments: impl Iterator<Item = OsString>, twins: Twins) -> io::Result<i32> {
    let emulator = arguments.next().and_then(file_id);
    let command: Vec<CString> = arguments
        .map(|word| CString::new(word.into_vec()))
        .collect::<Result<_, _>>()?;
    let program = command.first().ok_or(io::ErrorKind::InvalidInput)?;
    let reports = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    dup2_stdin(open("/dev/null", OFlag::O_RDONLY, Mode::empty())?)?;

    // The agent's file is not readable, so no process may trace the processes that run it, not even the watcher its
    // child. This process knows no secrets. Before the fork: the child must be traceable by the time it is seized.
    prctl::set_dumpable(true)?;
    let (go_out, go_in) = pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: this process has one thread, so the child may allocate and call anything.
    #[expect(unsafe_code, reason = "fork has no safe form")]
    let child = match unsafe { fork() }? {
        ForkResult::Child => {
            drop(go_in);
            let error = wait_and_exec(go_out, program, &command);
            let _ = writeln!(io::stderr(), "cannot run {}: {error}", program.to_string_lossy());
            // The child must not return into the watcher's code.
            std::process::exit(127);
        }
        ForkResult::Parent { child } => child,
    };
    drop(go_out);
    let mut watcher = Watcher {
        reports,
        emulator,
        twins,
        known: BTreeSet::new(),
        threaded: BTreeSet::new(),
        programs: Programs::default(),
        family: Family::of(child.as_raw()),
    };
    if let Err(errno) = seize(child) {
        watcher.tell(&Report::Blind(format!("this kernel does not allow tracing: {errno}")));
    }
    drop(go_in);
    let ended = watcher.follow(child);
    watcher.look_at_rest();
    let programs = std::mem::take(&mut watcher.programs);
    watcher.tell(&Report::Programs(programs));
    let failures = watcher.family.failures();
    watcher.tell(&Report::Failures(failures));
    ended
}

/// In the child: waits until it is watched, then becomes the program.
fn wait_and_exec(go: OwnedFd, program: &CString, command: &[CString]) -> io::Error {
    // Nothing is ever written: the end of the pipe is the signal.
    if let Err(error) = File::from(go).read(&mut [0]) {
        return error;
    }
    match execvp(program, command) {
        Ok(never) => match never {},
        Err(errno) => errno.into(),
    }
}

struct Watcher {
    reports: File,
    /// The emulator's file: device and inode.
    emulator: Option<(u64, u64)>,
    twins: Twins,
    /// Processes whose death was reported; every thread of a process ends separately.
    known: BTreeSet<i32>,
    /// Threads of multi-threaded processes. Every emulated process is one, since the emulator adds a thread of its
    /// own. The files of single-threaded processes, most of which live for a millisecond, are not examined at their end
    /// unless something was wrong.
    threaded: BTreeSet<i32>,
    /// The programs that have ended under the emulator.
    programs: Programs,
    family: Family,
}

impl Watcher {
    /// Follows all processes until `main` has ended. Remaining ones are killed when this process, their tracer, ends.
    fn follow(&mut self, main: Pid) -> io::Result<i32> {
        loop {
            let (pid, status) = match wait(0) {
                Ok(Some(stopped)) => stopped,
                Ok(None) | Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            if libc::WIFSTOPPED(status) {
                self.pass(pid, status);
            } else if pid == main && libc::WIFEXITED(status) {
                return Ok(libc::WEXITSTATUS(status));
            } else if pid == main && libc::WIFSIGNALED(status) {
                return Ok(128 + libc::WTERMSIG(status));
            } else {
                self.family.is_gone(pid.as_raw());
            }
        }
    }

    /// Resumes a stopped process.
    fn pass(&mut self, pid: Pid, status: i32) {
        let signal = libc::WSTOPSIG(status);
        let group_stop = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal);
        match status >> 16 {
            0 => go_on(libc::PTRACE_CONT, pid, signal),
            // Stopped by another process, it must stay stopped until that process resumes it.
            libc::PTRACE_EVENT_STOP if group_stop => go_on(libc::PTRACE_LISTEN, pid, 0),
            event => {
                match event {
                    libc::PTRACE_EVENT_CLONE => self.note_thread(pid),
                    libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => self.note_child(pid),
                    libc::PTRACE_EVENT_EXEC => self.family.becomes_another(pid.as_raw()),
                    libc::PTRACE_EVENT_EXIT => self.look_at_end(pid),
                    _ => {}
                }
                go_on(libc::PTRACE_CONT, pid, 0);
            }
        }
    }

    /// Records that a thread has created another one.
    fn note_thread(&mut self, pid: Pid) {
        let made = event_message(pid).and_then(|made| i32::try_from(made).ok());
        self.threaded.insert(pid.as_raw());
        self.threaded.extend(made);
        if let Some(made) = made {
            self.family.has_thread(pid.as_raw(), made);
        }
    }

    /// Records that a process has started another one.
    fn note_child(&mut self, pid: Pid) {
        if let Some(child) = event_message(pid).and_then(|child| i32::try_from(child).ok()) {
            self.family.has_child(pid.as_raw(), child);
        }
    }

    /// Records with which status a thread ends.
    fn note_status(&mut self, pid: Pid, status: i32) {
        let thread = pid.as_raw();
        // It may end before the word of its start has come.
        if status != 0
            && !self.family.knows(thread)
            && let [Some(process), Some(parent)] = fields_of(pid, ["Tgid:", "PPid:"])
            && process == thread
        {
            self.family.has_child(parent, thread);
        }
        let (emulator, twins) = (self.emulator, self.twins);
        self.family.ends(thread, status, || program_of(pid, emulator, twins));
    }

    /// Examines a process that is about to end, while it still has its memory and files.
    fn look_at_end(&mut self, pid: Pid) {
        let status = ending_status(pid).unwrap_or(0);
        let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
        let fault = signal.and_then(|signal| Signal::try_from(signal).ok());
        let fault = fault.filter(|fault| FAULTS.contains(fault));
        // As a shell has it.
        self.note_status(pid, signal.map_or(libc::WEXITSTATUS(status), |signal| 128 + signal));
        let is_invalid = was_invalid(pid) != Some(false);
        if self.threaded.remove(&pid.as_raw()) || fault.is_some() || is_invalid {
            self.examine(pid, fault, is_invalid);
        }
    }

    /// Examines the processes that go on at the end, and that no longer will.
    fn look_at_rest(&mut self) {
        let mut rest: BTreeSet<Pid> = traced().into_iter().collect();
        for pid in &rest {
            interrupt(*pid);
        }
        let end = Instant::now() + PATIENCE;
        while !rest.is_empty() && Instant::now() < end {
            match wait(libc::WNOHANG) {
                Ok(Some((pid, status))) if libc::WIFSTOPPED(status) => {
                    if rest.remove(&pid) {
                        self.examine(pid, None, was_invalid(pid) != Some(false));
                    }
                }
                // It has ended after all.
                Ok(Some((pid, _))) => drop(rest.remove(&pid)),
                Ok(None) | Err(Errno::EINTR) => thread::sleep(Duration::from_millis(1)),
                // There is none.
                Err(_) => return,
            }
        }
        for pid in rest {
            self.examine(pid, None, true);
        }
    }

    /// Reports a process that died by a `fault`, or a twin that had an invalid result.
    fn examine(&mut self, pid: Pid, fault: Option<Signal>, is_invalid: bool) {
        let of_process = |name: &str| fs_err::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let Some(exe) = file_id(format!("/proc/{pid}/exe")) else {
            return;
        };
        let process = process_of(pid);
        let signal = |fault: Signal| fault.as_str().to_owned();
        let (cause, (program, command)) = if self.emulator == Some(exe) {
            let called = called(&of_process("cmdline"));
            self.programs.note(&called.0, process == pid.as_raw(), cpu_ns_of(pid));
            (fault.map(|fault| Cause::Emulated(signal(fault))), called)
        } else if (fault.is_some() || is_invalid) && is_twin(pid, exe, self.twins) {
            let (words, variables) = (of_process("cmdline"), of_process("environ"));
            let cause = match fault {
                Some(fault) if fault as i32 == self.twins.given_up => Cause::TwinGaveUp,
                // Whatever else it died of may follow from that.
                _ if is_invalid => Cause::TwinUnequal(hash_of_twin(self.twins, &words, &variables)),
                Some(fault) => Cause::Twin(signal(fault)),
                None => return,
            };
            (Some(cause), called_as_twin(self.twins, &words, &variables))
        } else {
            return;
        };
        if let Some(cause) = cause
            && self.known.len() < MOST_REPORTED
            && self.known.insert(process)
        {
            self.tell(&Report::Death(Death {
                pid: process,
                program,
                command,
                cause,
            }));
        }
    }

    fn tell(&mut self, report: &Report) {
        // The agent reads until this process ends; if it is gone, there is no reader.
        if let Ok(mut line) = serde_json::to_vec(report) {
            line.push(b'\n');
            let _ = self.reports.write_all(&line);
        }
    }
}

/// Device and inode of a file.
fn file_id(path: impl AsRef<Path>) -> Option<(u64, u64)> {
    let found = fs_err::metadata(path.as_ref()).ok()?;
    Some((found.dev(), found.ino()))
}

/// The process that a thread belongs to.
fn process_of(thread: Pid) -> i32 {
    let [process] = fields_of(thread, ["Tgid:"]);
    process.unwrap_or(thread.as_raw())
}

/// Numbers that the kernel gives of a thread.
fn fields_of<const N: usize>(thread: Pid, names: [&str; N]) -> [Option<i32>; N] {
    let status = fs_err::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    names.map(|name| {
        let field = status.lines().find_map(|line| line.strip_prefix(name))?;
        field.trim().parse().ok()
    })
}

/// Whether the process with this file is a native twin. Twins are mounted where their processes see them, and not here.
fn is_twin(process: Pid, exe: (u64, u64), twins: Twins) -> bool {
    file_id(format!("/proc/{process}/root{}", twins.loader)) == Some(exe)
}

/// The program of a process that is about to end.
fn program_of(process: Pid, emulator: Option<(u64, u64)>, twins: Twins) -> Program {
    let of_process = |name: &str| fs_err::read(format!("/proc/{process}/{name}")).unwrap_or_default();
    let exe = file_id(format!("/proc/{process}/exe"));
    let (ran, path) = if exe.is_some() && exe == emulator {
        (Culprit::Emulated, called(&of_process("cmdline")).0)
    } else if exe.is_some_and(|exe| is_twin(process, exe, twins)) {
        let (words, variables) = (of_process("cmdline"), of_process("environ"));
        (Culprit::Twin, called_as_twin(twins, &words, &variables).0)
    } else {
        let exe = fs_err::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
        (Culprit::Outside, exe.to_string_lossy().into_owned())
    };
    let name = path.rsplit('/').next().unwrap_or_default();
    Program {
        ran,
        is_shell: SHELLS.contains(&name),
    }
}

/// CPU time of a thread in nanoseconds, including the time before its last exec.
fn cpu_ns_of(thread: Pid) -> u64 {
    let stat = fs_err::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    let running = stat.split_ascii_whitespace().next();
    running.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The program of an emulated process and its command line, from the arguments of the emulator. The kernel puts two
/// arguments before the program's own: the emulator's name and the program's path.
fn called(words: &[u8]) -> (String, String) {
    let mut words = strings(words);
    let program = words.nth(1).unwrap_or_default();
    (cut(&program), cut(&words.collect::<Vec<_>>().join(" ")))
}

/// The program of a twin's process and its command line, from its arguments and variables.
fn called_as_twin(twins: Twins, words: &[u8], variables: &[u8]) -> (String, String) {
    let (program, _) = (twins.variables)(variables);
    let (name, arguments) = (twins.words)(words).unwrap_or_default();
    let command: Vec<_> = strings(name).chain(strings(arguments)).collect();
    (cut(&strings(program).collect::<String>()), cut(&command.join(" ")))
}

/// The hash of a twin's command. `None` if it has written over its words or variables.
fn hash_of_twin(twins: Twins, words: &[u8], variables: &[u8]) -> Option<u64> {
    let (program, _) = (twins.variables)(variables);
    let (_, arguments) = (twins.words)(words).filter(|_| !program.is_empty())?;
    Some((twins.hash)((program, arguments)))
}

/// The strings of a list in which each ends with a zero.
fn strings(list: &[u8]) -> impl Iterator<Item = String> {
    list.split_inclusive(|byte| *byte == 0)
        .map(|text| String::from_utf8_lossy(text.strip_suffix(b"\0").unwrap_or(text)).into_owned())
}

/// The text in one line of limited length.
fn cut(text: &str) -> String {
    let mut text = text.replace('\n', " ");
    if text.len() > LONGEST_COMMAND {
        text.truncate(text.floor_char_boundary(LONGEST_COMMAND));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twins::{call, layout};

    #[test]
    fn a_command_is_shown_as_it_was_typed() {
        for (words, program, command) in [
            (
                &b"/usr/bin/qemu-aarch64\0/usr/bin/busybox\0sh\0-c\0kill -SEGV $$\0"[..],
                "/usr/bin/busybox",
                "sh -c kill -SEGV $$",
            ),
            (b"/usr/bin/qemu-aarch64\0/bin/true\0true\0", "/bin/true", "true"),
            (b"", "", ""),
        ] {
            assert_eq!(called(words), (program.to_owned(), command.to_owned()));
        }
        let twins = Twins {
            loader: "",
            words: call::of_program,
            variables: call::variables_of_program,
            hash: call::hash_of,
            given_up: 0,
        };
        let variables = b"KILN_EXE=/usr/bin/bash\0KILN_COMM=sh\0HOME=/\0";
        let named = ("/usr/bin/bash".to_owned(), "sh -c kill -SEGV $$".to_owned());
        for place in [layout::BIN, layout::TRIAL] {
            let twin = [place, "ab-1-2"].concat();
            let words = [&call::words("sh", &twin)[..], &["-c", "kill -SEGV $$", ""]].concat();
            assert_eq!(called_as_twin(twins, words.join("\0").as_bytes(), variables), named);
        }
        // A program may have written over them.
        assert_eq!(called_as_twin(twins, b"other", b""), (String::new(), String::new()));
        let long = [&b"q\0/bin/echo\0echo\0"[..], "ä\n".repeat(300).as_bytes()].concat();
        let (_, command) = called(&long);
        assert!(command.len() <= LONGEST_COMMAND + '…'.len_utf8(), "{command}");
        assert!(!command.contains('\n'), "{command}");
    }
}
