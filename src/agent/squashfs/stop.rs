//! The error type of this module. Pure: no I/O.

use std::{fmt, io};

use super::NotPossible;
use kiln_records::Failure;

/// The two reasons to stop: mksquashfs can do the job instead, or the operating system failed.
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

/// Errors from fs_err already name the file.
impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(Failure::io("cannot repackage the root", &error))
    }
}

/// The base is malformed.
pub fn damaged(what: impl fmt::Display) -> Stop {
    NotPossible::Base(what.to_string()).into()
}

/// The root has something that cannot be written, or it changed.
pub fn unfit(what: impl fmt::Display) -> Stop {
    NotPossible::Root(what.to_string()).into()
}
