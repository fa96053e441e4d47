//! Prints results to standard output and messages to standard error, fewer or more of them as requested.

use std::{
    fmt::Display,
    io::{IsTerminal, Write},
};

use owo_colors::OwoColorize;

use crate::records::Failure;

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
}

impl Printer {
    pub(super) fn new(quiet: bool, verbose: bool) -> Self {
        let level = match (quiet, verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        };
        Self { level }
    }

    /// Whether tools' output is shown.
    pub(super) fn is_verbose(&self) -> bool {
        self.level == Level::Verbose
    }

    /// Whether a user can watch a progress bar.
    pub(super) fn wants_bars(&self) -> bool {
        self.level == Level::Normal && std::io::stderr().is_terminal() && std::env::var_os("KILN_NO_PROGRESS").is_none()
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
            let _ = writeln!(anstream::stderr(), "{text}");
        }
    }

    /// Prints the failure of the command.
    #[expect(clippy::unused_self, reason = "callers should not care which output obeys the level")]
    pub(super) fn failure(&self, failure: &Failure) {
        let mut err = anstream::stderr();
        let _ = writeln!(err, "{} {}", "error:".red().bold(), failure.detail);
        if let Some(hint) = &failure.hint {
            let _ = writeln!(err, "\n{} {hint}", "hint:".cyan().bold());
        }
    }
}
