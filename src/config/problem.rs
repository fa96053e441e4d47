//! Mistakes in the configuration, and where each is.

use std::{fmt, path::PathBuf};

use crate::records::{Code, Failure};

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A line of the file.
    File(PathBuf, usize),
    /// A variable.
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

/// Something that is wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file and line, or the variable; none for what nobody set.
    pub origin: Option<Origin>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
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

    /// Its line in the file; what is in none comes after.
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

/// The first problem as a failure that says how many more there are.
pub fn first_of(problems: Vec<Problem>) -> Option<Failure> {
    let more = problems.len().saturating_sub(1);
    let mut failure = Failure::from(problems.into_iter().next()?);
    if more > 0 {
        let hint = failure.hint.take().unwrap_or_default();
        failure = failure.hint(format_args!("{hint}\n      `kiln config check` tells {more} more"));
    }
    Some(failure)
}
