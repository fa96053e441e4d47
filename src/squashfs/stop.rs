//! Why the work ends early.

use std::{fmt, io};

use super::NotPossible;
use crate::records::Failure;

/// The two ways in which the work ends early: mksquashfs can do it instead, or nobody can.
#[derive(Debug)]
pub enum Stop {
    NotPossible(NotPossible),
    Failed(Failure),
}

impl From<NotPossible> for Stop {
    fn from(why: NotPossible) -> Self {
        Self::NotPossible(why)
    }
}

/// Errors of fs_err name the file.
impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(Failure::io("cannot repackage the root", &error))
    }
}

/// The base is not as it should be.
pub fn damaged(what: impl fmt::Display) -> Stop {
    NotPossible::Base(what.to_string()).into()
}

/// The root has something that cannot be written, or not now.
pub fn unfit(what: impl fmt::Display) -> Stop {
    NotPossible::Root(what.to_string()).into()
}
