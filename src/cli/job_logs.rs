//! `kiln jobs logs`: prints a job's log from a server, also with `--follow`.

use std::{
    borrow::Cow,
    io::{self, BufWriter, ErrorKind, IsTerminal, StdoutLock, Write},
};

use clap::Args;
use kiln_records::{
    Failure,
    names::{self, is_invisible},
};

use super::{
    follow::Follower,
    records::{Which, missing},
    session::Session,
};
use crate::client::{LogEntry, News, collection::JOBS};

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
                let news = follower.next().await.map_err(|failure| missing(&JOBS, failure))?;
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
