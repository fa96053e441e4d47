//! The failure of a job or a request: a stable code, the cause in one line, and advice. Pure: no I/O.

mod code;
/// An error with its causes: the outermost one alone only says that something failed.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod document;
mod row;
mod table;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Step, TwinPair, log, names};

pub use code::Blame;
pub use table::Code;

/// The cause of a failed job. The CLI prints it, and the job's record keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of failure, which decides the consequences.
    pub code: Code,
    /// The cause, on one line.
    pub detail: String,
    /// Advice for the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The step that failed; absent when the failure lies outside the steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// The native twin that died, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin: Option<Box<TwinPair>>,
    /// Whether it is known that no native twin is the cause, though its code allows it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beyond_twins: bool,
}

impl Failure {
    /// A failure with its code and cause.
    pub fn new(code: Code, detail: impl fmt::Display) -> Self {
        Self {
            code,
            detail: detail.to_string(),
            hint: None,
            step: None,
            twin: None,
            beyond_twins: false,
        }
    }

    /// Says whether it is known that no native twin is the cause.
    #[must_use]
    pub fn beyond_twins(mut self, is_known: bool) -> Self {
        self.beyond_twins = is_known;
        self
    }

    /// Whether the cause may be that programs of the image ran as native twins, if some did.
    pub const fn may_be_of_twins(&self) -> bool {
        self.code.may_be_of_twins() && !self.beyond_twins
    }

    /// Adds advice.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Sets the step of the failure, unless it is known already.
    #[must_use]
    pub fn at(mut self, step: Step) -> Self {
        self.step.get_or_insert(step);
        self
    }

    /// The same failure in words that can be shown, for one whose words are somebody else's: on one line, of limited
    /// length, with nothing that a terminal obeys.
    #[must_use]
    pub fn shown(mut self) -> Self {
        for text in [Some(&mut self.detail), self.hint.as_mut()].into_iter().flatten() {
            *text = log::cut(names::shown(text).into_owned());
        }
        self.twin = self.twin.filter(|twin| twin.is_sound());
        self
    }

    /// An operating-system error without a better name. A full disk is recognised and gets its own code.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        let detail = format!("{what}: {error}");
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::disk_full(detail),
            _ => Self::new(Code::Io, detail),
        }
    }

    /// No space, or no inodes, left on a disk.
    pub fn disk_full(detail: impl fmt::Display) -> Self {
        Self::new(Code::DiskFull, detail)
            .hint("free space in Kiln's data directory, or set KILN_DATA_DIR to a larger file system")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl std::error::Error for Failure {}
