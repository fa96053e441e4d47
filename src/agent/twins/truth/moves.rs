//! Strings that move when they become longer, and the references to them. Pure: no I/O.

use std::ops::Range;

/// A string that becomes longer and therefore moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    /// The addresses that move: at the earliest from the start of the string, up to the first byte that differs.
    /// Linkers let strings with equal ends share them, and references behind the difference can stay.
    pub from: Range<u64>,
    /// The end of the string: the address of its NUL.
    pub end: u64,
    /// The new address of the start of `from`.
    pub to: u64,
    /// The offset of the string in the file.
    pub at: usize,
    /// The new text.
    pub new: Vec<u8>,
}

impl Move {
    /// The new address of `address`. None when it does not move.
    pub fn moved(&self, address: u64) -> Option<u64> {
        self.from
            .contains(&address)
            .then(|| self.to + (address - self.from.start))
    }

    /// The number of bytes by which the string grows.
    pub fn growth(&self) -> u64 {
        (self.from.start + self.new.len() as u64).saturating_sub(self.end)
    }

    /// Whether a part of the string, from the first differing byte on, is within `piece`.
    pub fn is_within(&self, piece: &Range<u64>) -> bool {
        piece.start <= self.end && self.from.end <= piece.end
    }
}

/// The instructions that use a string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// The number of redirected references.
    pub turned: usize,
    /// The address up to which instructions read the text itself, in order to copy it piece by piece.
    pub read_until: Option<u64>,
}
