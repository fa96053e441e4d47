//! Problems of the configuration, and their places. Pure: no I/O.

use std::{fmt, path::PathBuf};

use kiln_records::{Code, Failure};

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file.
    File(PathBuf, usize),
    /// An environment variable.
    Environment(String),
    /// `--data-dir` or `KILN_DATA_DIR`.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Environment(name) => f.write_str(name),
            Origin::CommandLine => f.write_str("--data-dir or KILN_DATA_DIR"),
        }
    }
}

/// A problem of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file and line, or the variable; none for a value that was not set.
    pub origin: Option<Origin>,
    /// The mistake.
    pub what: String,
    /// The advice.
    pub hint: String,
}

impl Problem {
    pub(super) fn new(origin: impl Into<Option<Origin>>, what: impl fmt::Display) -> Self {
        Self {
            origin: origin.into(),
            what: what.to_string(),
            hint: "`kiln config reference` lists every key".to_owned(),
        }
    }

    pub(super) fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = hint.to_string();
        self
    }

    /// Its line in the file; problems outside the file sort last.
    pub(super) fn line(&self) -> usize {
        match &self.origin {
            Some(Origin::File(_, line)) => *line,
            _ => usize::MAX,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Some(origin) => write!(f, "{origin}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Failure::new(Code::ConfigInvalid, &problem).hint(problem.hint)
    }
}

/// The first problem as a failure, with the number of the others.
pub fn first_of(problems: Vec<Problem>) -> Option<Failure> {
    let more = problems.len().saturating_sub(1);
    let mut failure = Failure::from(problems.into_iter().next()?);
    if more > 0 {
        let hint = failure.hint.take().unwrap_or_default();
        failure = failure.hint(format_args!("{hint}\n      `kiln config check` shows {more} more"));
    }
    Some(failure)
}
