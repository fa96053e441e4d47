//! `kiln jobs logs`: prints a job's log from a server, also with `--follow`.

use std::{
    borrow::Cow,
    future::Future,
    io::{self, BufWriter, ErrorKind, IsTerminal, StdoutLock, Write},
    os::fd::AsFd,
    pin::pin,
    time::Duration,
};

use clap::Args;
use kiln_records::{
    Failure,
    names::{self, is_invisible},
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{
    follow::Follower,
    records::{Which, missing},
    session::Session,
};
use crate::client::{LogEntry, News, collection::JOBS};

/// The interval between checks for a reader that left while the job says nothing.
const READER_CHECK: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct ShowLog {
    #[command(flatten)]
    which: Which,

    /// Follow the log until the job ends.
    #[arg(long, short)]
    follow: bool,

    /// Show only lines after this number; the first line is number 0.
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,

    /// Print the time (UTC) before each line.
    #[arg(long)]
    timestamps: bool,
}

impl ShowLog {
    pub(super) async fn run(self, session: &Session) -> Result<(), Failure> {
        let job = session.client.find(&JOBS, &self.which.id).await?.id;
        let mut output = Output::new(self.timestamps);
        if self.follow {
            let mut follower = Follower::new(session, &job, self.after);
            loop {
                let Some(news) = while_read(follower.next()).await else {
                    return Ok(());
                };
                let news = news.map_err(|failure| missing(&JOBS, failure))?;
                let lines = news.iter().filter_map(|news| match news {
                    News::Line(line) => Some(line),
                    _ => None,
                });
                if !output.show(lines)? || news.contains(&News::End) {
                    return Ok(());
                }
            }
        }
        let mut after = self.after;
        loop {
            let page = session.client.log_page(&job, after).await;
            let page = page.map_err(|failure| missing(&JOBS, failure))?;
            if !output.show(&page.lines)? || !page.more {
                return Ok(());
            }
            after = page.next;
        }
    }
}

/// Writes lines to standard output: to a terminal without control sequences, elsewhere unchanged.
struct Output {
    timestamps: bool,
    is_terminal: bool,
}

impl Output {
    fn new(timestamps: bool) -> Self {
        Self {
            timestamps,
            is_terminal: io::stdout().is_terminal(),
        }
    }

    /// Writes lines. Returns whether the reader is still there.
    fn show<'l>(&mut self, lines: impl IntoIterator<Item = &'l LogEntry>) -> Result<bool, Failure> {
        match self.write(BufWriter::new(io::stdout().lock()), lines) {
            Ok(()) => Ok(true),
            // A reader that went away (`| head`) is not a failure of Kiln.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::io("cannot write the log", &error)),
        }
    }

    fn write<'l>(
        &self,
        mut out: BufWriter<StdoutLock<'_>>,
        lines: impl IntoIterator<Item = &'l LogEntry>,
    ) -> io::Result<()> {
        for line in lines {
            if self.timestamps {
                write!(out, "{} ", harmless(&line.time))?;
            }
            let text = if self.is_terminal {
                harmless(&line.text)
            } else {
                Cow::Borrowed(line.text.as_str())
            };
            writeln!(out, "{text}")?;
        }
        out.flush()
    }
}

/// Waits as long as standard output has a reader. None if the reader left: a command that writes only what it waits for
/// would otherwise outlive its reader (`| head`) until the next line, which may never come.
async fn while_read<F: Future>(waited: F) -> Option<F::Output> {
    let mut waited = pin!(waited);
    let mut check = tokio::time::interval(READER_CHECK);
    loop {
        tokio::select! {
            output = &mut waited => return Some(output),
            _ = check.tick() => if has_no_reader(io::stdout()) { return None },
        }
    }
}

/// Whether all readers of a pipe or a terminal have left. A file has none to lose.
fn has_no_reader(output: impl AsFd) -> bool {
    // Errors and hang-ups are reported without being asked for (poll(2)).
    let mut watched = [PollFd::new(output.as_fd(), PollFlags::empty())];
    let left = PollFlags::POLLERR | PollFlags::POLLHUP;
    poll(&mut watched, PollTimeout::ZERO).is_ok() && watched[0].revents().is_some_and(|events| events.intersects(left))
}

/// A line without control sequences for a terminal: colours and other commands are left out, and other characters that
/// could deceive a reader are [shown](names::shown).
pub(super) fn harmless(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| is_invisible(c) && c != '\t';
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let plain = anstream::adapter::strip_str(text).to_string();
    Cow::Owned(names::shown(&plain).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_left_is_noticed() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(!has_no_reader(&writer));
        drop(reader);
        assert!(has_no_reader(&writer));
        assert!(!has_no_reader(fs_err::File::open("/dev/null").unwrap().file()));
    }

    #[test]
    fn a_terminal_obeys_nothing_in_a_log() {
        for (text, shown) in [
            ("plain\tnäme 100 %", "plain\tnäme 100 %"),
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]52;c;aGk=\u{1b}\\after", "after"),
            ("a\u{8}\u{8}b", "ab"),
            ("a\rb", "a\\u{d}b"),
            ("\u{9b}31mred", "\\u{9b}31mred"),
            ("gnp\u{202e}exe", "gnp\\u{202e}exe"),
        ] {
            let clean = harmless(text);
            assert!(!clean.contains(|c| is_invisible(c) && c != '\t'), "{clean:?}");
            assert_eq!(clean, shown, "{text:?}");
        }
    }
}
