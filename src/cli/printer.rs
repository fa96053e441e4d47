//! Prints results to standard output and messages to standard error, fewer or more of them as requested.

use std::{
    fmt::Display,
    io::{IsTerminal, Write},
    sync::{Arc, Mutex, PoisonError},
};

use indicatif::MultiProgress;
use kiln_records::{Failure, names};
use owo_colors::OwoColorize;

/// The amount of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Quiet,
    Normal,
    Verbose,
}

/// Writes to the terminal.
#[derive(Debug, Clone)]
pub(super) struct Printer {
    level: Level,
    /// The progress bars on the terminal, if there are any: lines are written above them.
    bars: Arc<Mutex<Option<MultiProgress>>>,
}

impl Printer {
    pub(super) fn new(quiet: bool, verbose: bool) -> Self {
        let level = match (quiet, verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        };
        let bars = Arc::default();
        Self { level, bars }
    }

    /// Whether tools' output is shown.
    pub(super) fn is_verbose(&self) -> bool {
        self.level == Level::Verbose
    }

    /// Whether a user can watch a progress bar.
    pub(super) fn wants_bars(&self) -> bool {
        self.level == Level::Normal && std::io::stderr().is_terminal() && std::env::var_os("KILN_NO_PROGRESS").is_none()
    }

    /// Writes lines above these bars from now on, or no longer.
    pub(super) fn set_bars(&self, bars: Option<MultiProgress>) {
        *self.bars.lock().unwrap_or_else(PoisonError::into_inner) = bars;
    }

    fn write(&self, text: impl Display) {
        let bars = self.bars.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A reader that went away is no failure of ours.
        let write = || {
            let _ = writeln!(anstream::stderr(), "{text}");
        };
        match bars {
            Some(bars) => bars.suspend(write),
            None => write(),
        }
    }

    /// Prints a result.
    #[expect(clippy::unused_self, reason = "callers should not care which output obeys the level")]
    pub(super) fn result(&self, text: impl Display) {
        // A reader that went away (`| head`) is not a failure of Kiln.
        let _ = writeln!(anstream::stdout(), "{text}");
    }

    /// Prints an event.
    pub(super) fn note(&self, text: impl Display) {
        if self.level >= Level::Normal {
            self.write(safe(text));
        }
    }

    /// Something that the user may want to put right; the command goes on.
    pub(super) fn warning(&self, text: impl Display, hint: Option<&str>) {
        if self.level >= Level::Normal {
            self.write(format_args!(
                "{} {}{}",
                "warning:".yellow().bold(),
                safe(text),
                hint_line(hint)
            ));
        }
    }

    /// Something that did not work, though the command may go on.
    pub(super) fn error(&self, text: impl Display, hint: Option<&str>) {
        self.write(format_args!(
            "{} {}{}",
            "error:".red().bold(),
            safe(text),
            hint_line(hint)
        ));
    }

    /// Prints the failure of the command.
    pub(super) fn failure(&self, failure: &Failure) {
        self.error(&failure.detail, None);
        if let Some(hint) = &failure.hint {
            self.write(hint_line(Some(hint)));
        }
    }
}

/// A hint on a line of its own.
fn hint_line(hint: Option<&str>) -> String {
    hint.map_or_else(String::new, |hint| {
        format!("\n{} {}", "hint:".cyan().bold(), safe(hint))
    })
}

/// A message in which nothing but its line ends steers the terminal: names and causes in it may be a recipe's.
fn safe(text: impl Display) -> String {
    let text = text.to_string();
    let lines: Vec<_> = text.split('\n').map(names::shown).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_steers_the_terminal() {
        assert_eq!(safe("two\nlines, 日本"), "two\nlines, 日本");
        let hint = hint_line(Some("gnp\u{202e}exe\u{7}"));
        assert!(hint.ends_with("gnp\\u{202e}exe\\u{7}"), "{hint:?}");
        assert_eq!(safe("\u{1b}]0;evil\u{7}"), "\\u{1b}]0;evil\\u{7}");
    }
}
