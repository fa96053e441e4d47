//! What a job warns of, and how much of it a record has. Pure: no I/O.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};

use super::{Code, Failure, Step};

/// Something that a job went on without, or that its user should look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Warning {
    /// Its stable code; docs/errors.md lists all codes.
    #[schema(value_type = String)]
    pub code: Code,
    /// What it is about, on one line.
    pub message: String,
    /// The suggested remedy.
    #[serde(default)]
    pub hint: Option<String>,
    /// The step in which it was said.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub step: Option<Step>,
}

/// The warnings of an attempt, as its record has them: an agent decides neither how many there are nor how long they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warnings {
    /// The first ones, at most [`Warnings::MOST`].
    pub list: Vec<Warning>,
    /// How many more there were.
    #[serde(default)]
    pub more: u64,
    /// The number of the first event that was not looked at yet. Events may arrive twice.
    #[serde(default)]
    next: u64,
}

impl Warning {
    /// The longest message, and the longest hint, in bytes.
    pub const LONGEST: (usize, usize) = (1000, 500);

    /// A warning.
    pub fn new(code: Code, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string(),
            hint: None,
            step: None,
        }
    }

    /// Adds advice.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same, said in this step.
    #[must_use]
    pub fn at(&self, step: Option<Step>) -> Self {
        Self { step, ..self.clone() }
    }

    /// One of a failure that ends nothing.
    pub fn of(failure: &Failure, message: impl fmt::Display) -> Self {
        Self {
            hint: failure.hint.clone(),
            ..Self::new(failure.code, message)
        }
    }

    /// The line of the log.
    pub fn line(&self) -> String {
        format!("warning: {self}")
    }

    fn size(&self) -> usize {
        self.message.len() + self.hint.as_ref().map_or(0, String::len)
    }

    fn cut(self) -> Self {
        Self {
            message: cut(&self.message, Self::LONGEST.0),
            hint: self.hint.map(|hint| cut(&hint, Self::LONGEST.1)),
            ..self
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl Warnings {
    /// The most warnings of a record.
    pub const MOST: usize = 100;

    /// The most bytes of their texts.
    pub const MOST_BYTES: usize = 32 << 10;

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.list.is_empty() && self.more == 0
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.list.len() as u64 + self.more
    }

    /// What to say of those that are not in the list.
    pub fn rest(&self) -> Option<Cow<'static, str>> {
        match self.more {
            0 => None,
            1 => Some("1 more warning is in the log".into()),
            more => Some(format!("{more} more warnings are in the log").into()),
        }
    }

    /// Adds the warning of event number `event`, unless that was looked at before. One that is there already counts once: a root
    /// may be made more than once.
    pub fn note(&mut self, event: u64, warning: Warning) {
        if event < self.next {
            return;
        }
        self.next = event + 1;
        self.add(warning);
    }

    /// Adds a warning of the server's own.
    pub fn add(&mut self, warning: Warning) {
        let warning = warning.cut();
        if self.list.contains(&warning) {
            return;
        }
        let bytes: usize = self.list.iter().map(Warning::size).sum();
        if self.list.len() < Self::MOST && bytes + warning.size() <= Self::MOST_BYTES {
            self.list.push(warning);
        } else {
            self.more = self.more.saturating_add(1);
        }
    }
}

/// Cuts a text, which becomes one line.
fn cut(text: &str, longest: usize) -> String {
    const CUT: &str = " …";
    let mut text = text.replace(|c: char| c.is_control(), " ");
    if text.len() > longest {
        text.truncate(text.floor_char_boundary(longest - CUT.len()));
        text.push_str(CUT);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(number: usize, length: usize) -> Warning {
        Warning::new(Code::RootModes, format!("{number:05}{}", "ä".repeat(length))).hint("y".repeat(length))
    }

    #[test]
    fn a_record_does_not_grow_beyond_its_bound() {
        for length in [0, 10, 100, 10_000] {
            let mut warnings = Warnings::default();
            for number in 0..1000 {
                warnings.note(number as u64, warning(number, length));
            }
            let size = serde_json::to_vec(&warnings).unwrap().len();
            assert!(size < Warnings::MOST_BYTES + Warnings::MOST * 120, "{size}");
            assert!(warnings.list.len() <= Warnings::MOST);
            assert!(warnings.list.len() > 20, "{}", warnings.list.len());
            assert_eq!(warnings.count(), 1000);
            for kept in &warnings.list {
                assert!(kept.message.len() <= Warning::LONGEST.0);
                assert!(kept.hint.as_ref().unwrap().len() <= Warning::LONGEST.1);
            }
        }
    }

    #[test]
    fn what_is_said_twice_counts_once() {
        let mut warnings = Warnings::default();
        for event in 0..200 {
            warnings.note(event, warning(usize::try_from(event).unwrap(), 0));
        }
        let once = warnings.clone();
        assert_eq!((once.list.len(), once.more), (Warnings::MOST, 100));
        assert_eq!(once.rest().unwrap(), "100 more warnings are in the log");
        // The same events, because the answer was lost.
        for event in 150..200 {
            warnings.note(event, warning(usize::try_from(event).unwrap(), 0));
        }
        assert_eq!(warnings, once);
        // A root that is made once more.
        warnings.note(200, warning(3, 0));
        assert_eq!((warnings.list, warnings.more), (once.list, once.more));
    }

    #[test]
    fn a_message_is_one_line() {
        let mut warnings = Warnings::default();
        warnings.note(0, Warning::new(Code::RootModes, "a\nb\x1b[31m"));
        assert_eq!(warnings.list[0].to_string(), "a b [31m (root_modes)");
    }
}
