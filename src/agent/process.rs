//! Runs tools and turns each line of their output into an event at once. Starts processes, and ends those that they leave.

use std::{
    collections::VecDeque,
    ffi::OsStr,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{ExitStatus, Stdio},
};

use kiln_records::{
    Code, Failure, log,
    protocol::{Emulator, Stream},
};
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::Command,
    time::{Instant, sleep_until},
};

use super::{
    cause, deaths,
    events::{Events, line},
    programs::Programs,
    remnants,
    watch::{Death, Failures},
};

/// How many of a tool's last lines are kept, to find the cause of a failure.
const TAIL: usize = 400;

/// How a tool ended.
#[derive(Debug)]
pub struct Finished {
    /// Its program, as it was named.
    pub program: String,
    /// Its exit status.
    pub status: ExitStatus,
    /// Its last lines, both streams mixed as they arrived.
    pub tail: Vec<String>,
    /// What it said last to standard error; empty if it said nothing there.
    pub last_error: String,
    /// Whose failures were passed on while it ran, if programs ran under the emulator.
    pub failures: Failures,
    /// Programs that died under the emulator while it ran, whether or not the tool itself failed.
    pub deaths: Vec<Death>,
    /// The programs that ran under the emulator meanwhile.
    pub programs: Programs,
}

impl Finished {
    /// What it said last: to standard error, or else at all.
    pub fn last_words(&self) -> Option<&str> {
        let error = Some(self.last_error.as_str()).filter(|error| !error.is_empty());
        error.or_else(|| cause::last_words(&self.tail))
    }

    /// Its exit status, or the number of the signal that ended it, with a minus.
    pub fn status(&self) -> i32 {
        let signal = || self.status.signal().map_or(0, |signal| -signal);
        self.status.code().unwrap_or_else(signal)
    }

    /// Checks that the tool succeeded.
    ///
    /// # Errors
    ///
    /// `emulator_fault` when a program died under the emulator, even if no tool reported it; otherwise the result of
    /// `cause` for a tool that failed.
    pub fn check(&self, cause: impl FnOnce(&Self) -> Failure) -> Result<(), Failure> {
        match deaths::fault(&self.deaths) {
            Some(fault) => Err(fault),
            None if self.status.success() => Ok(()),
            None => Err(cause(self)),
        }
    }

    /// Checks that a program of the toolbox succeeded, as [`Finished::check`].
    ///
    /// # Errors
    ///
    /// Also `tool_killed` when something killed it, which proves nothing about the recipe. The server says whether that
    /// was the kernel, for lack of memory.
    pub fn check_own(&self, cause: impl FnOnce(&Self) -> Failure) -> Result<(), Failure> {
        self.check(|tool| killed(&tool.program, tool.status).unwrap_or_else(|| cause(tool)))
    }
}

/// `tool_killed` if this program of the toolbox ended so.
pub fn killed(program: &str, status: ExitStatus) -> Option<Failure> {
    let is_killed = status.signal() == Some(Signal::SIGKILL as i32);
    is_killed.then(|| {
        Failure::new(Code::ToolKilled, format!("{program} was killed")).hint("the kernel's log may say what killed it")
    })
}

/// Runs a tool to its end. With an `emulator`, deaths of programs under it are reported.
///
/// `look` sees every line first; a line for which it returns `true` becomes no event.
///
/// Programs that it leaves behind with its output open are named and ended some seconds after its own end.
///
/// # Errors
///
/// `tool_missing` when it cannot be started. A tool that fails is not an error here: see [`Finished::status`].
pub async fn run(
    mut command: Command,
    emulator: Option<&Emulator>,
    events: &Events,
    mut look: impl FnMut(&str) -> bool,
) -> Result<Finished, Failure> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let name = name_of(&command);
    let missing = |error: std::io::Error| Failure::new(Code::ToolMissing, format!("cannot run {program}: {error}"));
    events.say(shown(&command)).await;
    let mut reports = None;
    if let Some(emulator) = emulator {
        let (watched, told) = deaths::watched(&command, emulator).map_err(missing)?;
        reports = Some(deaths::collect(told, events.clone()));
        command = watched;
    } else {
        command.stdin(Stdio::null());
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(missing)?;
    // The command holds the other end of the watcher's socket.
    drop(command);
    let pipes = [
        child.stdout.as_ref().and_then(remnants::number),
        child.stderr.as_ref().and_then(remnants::number),
    ];
    let mut out = child.stdout.take().map(Lines::new);
    let mut err = child.stderr.take().map(Lines::new);
    let mut tail = VecDeque::with_capacity(TAIL);
    let mut last_error = String::new();
    let (mut status, mut until, mut left) = (None, Instant::now(), Left::Unknown);
    while out.is_some() || err.is_some() {
        let (stream, text) = tokio::select! {
            text = next(&mut out) => (Stream::Stdout, text),
            text = next(&mut err) => (Stream::Stderr, text),
            ended = child.wait(), if status.is_none() => {
                (status, until) = (Some(ended), Instant::now() + remnants::GRACE);
                continue;
            }
            () = sleep_until(until), if status.is_some() => {
                until = Instant::now() + remnants::PATIENCE;
                left = left.end(&name, &pipes, events).await?;
                if left == Left::Alone {
                    (out, err) = (None, None);
                }
                continue;
            }
        };
        let Some(text) = text else { continue };
        if look(&text) {
            continue;
        }
        if tail.len() == TAIL {
            tail.pop_front();
        }
        let said = log::cut(text.clone());
        if stream == Stream::Stderr && !said.trim().is_empty() {
            said.trim().clone_into(&mut last_error);
        }
        tail.push_back(said);
        events.send(line(stream, text)).await;
    }
    let status = match status {
        Some(status) => status,
        None => child.wait().await,
    };
    let status = status.map_err(|error| Failure::io(format!("lost {program}"), &error))?;
    let (deaths, programs, failures) = match reports {
        Some(collected) => collected.await.unwrap_or_default(),
        None => Default::default(),
    };
    Ok(Finished {
        program,
        status,
        tail: tail.into(),
        last_error,
        failures,
        deaths,
        programs,
    })
}

/// How far it is with the programs that a tool left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Unknown,
    Asked,
    Killed,
    /// They are left to themselves, and their output is not read any more.
    Alone,
}

impl Left {
    /// The next step: they are asked to end, and then killed. Where there are none, the rest of the output is still on its way.
    async fn end(self, program: &str, pipes: &[Option<u64>], events: &Events) -> Result<Self, Failure> {
        let pipes: Vec<u64> = pipes.iter().copied().flatten().collect();
        let left = blocking(move || Ok(remnants::holders(&pipes))).await?;
        Ok(match self {
            _ if left.is_empty() => self,
            Self::Unknown => {
                events.warn(remnants::told(program, &left)).await;
                remnants::send(&left, Signal::SIGTERM);
                Self::Asked
            }
            Self::Asked => {
                remnants::send(&left, Signal::SIGKILL);
                Self::Killed
            }
            Self::Killed | Self::Alone => Self::Alone,
        })
    }
}

/// Runs blocking code on a thread for it.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure::new(Code::AgentPanic, error))?
}

/// The next line; at the end of the stream the source becomes `None`. Never returns for a source that is `None`.
async fn next<R: AsyncRead + Unpin>(source: &mut Option<Lines<R>>) -> Option<String> {
    let Some(lines) = source else {
        return std::future::pending().await;
    };
    let text = lines.next().await;
    if text.is_none() {
        *source = None;
    }
    text
}

/// Splits a tool's output at line ends. A carriage return also ends a line, since progress displays use it.
struct Lines<R> {
    reader: BufReader<R>,
    partial: Vec<u8>,
}

/// A line without an end is passed on in pieces of this size.
const LONGEST_PIECE: usize = 64 * 1024;

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(reader: R) -> Self {
        Self {
            reader: BufReader::new(reader),
            partial: Vec::new(),
        }
    }

    /// Cancel-safe: bytes already read stay in `partial`.
    async fn next(&mut self) -> Option<String> {
        loop {
            let available = self.reader.fill_buf().await.unwrap_or_default();
            if available.is_empty() {
                return (!self.partial.is_empty()).then(|| take_text(&mut self.partial));
            }
            let end = available.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            self.partial
                .extend_from_slice(&available[..end.unwrap_or(available.len())]);
            let used = end.map_or(available.len(), |at| at + 1);
            self.reader.consume(used);
            if end.is_some() || self.partial.len() > LONGEST_PIECE {
                if self.partial.is_empty() {
                    continue;
                }
                return Some(take_text(&mut self.partial));
            }
        }
    }
}

fn take_text(bytes: &mut Vec<u8>) -> String {
    let text = String::from_utf8_lossy(bytes).into_owned();
    bytes.clear();
    text
}

/// The name of a command's program; for one that enters a root, that of the program in it.
fn name_of(command: &Command) -> String {
    let command = command.as_std();
    let mut words = std::iter::once(command.get_program()).chain(command.get_args());
    let program = match words.next() {
        Some(word) if word == "chroot" => words.nth(1).unwrap_or(word),
        word => word.unwrap_or_default(),
    };
    let name = Path::new(program).file_name().unwrap_or(program);
    name.to_string_lossy().into_owned()
}

/// The command as typed in a shell.
fn shown(command: &Command) -> String {
    let quote = |word: &OsStr| {
        let word = word.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            format!("{word:?}")
        }
    };
    let command = command.as_std();
    let words: Vec<String> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(quote)
        .collect();
    format!("$ {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines_of(text: &'static [u8]) -> Vec<String> {
        let mut lines = Lines::new(text);
        let mut all = Vec::new();
        while let Some(line) = lines.next().await {
            all.push(line);
        }
        all
    }

    #[tokio::test]
    async fn lines_end_at_both_kinds_of_ends_and_at_the_end() {
        assert_eq!(lines_of(b"a\r\nb\rc\n\nd").await, ["a", "b", "c", "d"]);
        assert_eq!(lines_of(b"\xff\xfe\n").await, ["\u{fffd}\u{fffd}"]);
        assert_eq!(lines_of(b"").await, Vec::<String>::new());
    }
}
